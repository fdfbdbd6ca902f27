import type { LeaseholdError } from '../errors.js'
import { guarded } from './guarded.js'
import { Timed, type Timers } from './timers.js'

/** One call to the store, for metrics (`onCall`). */
export interface CallFacts {
  /** Which method of the store. `read`: holders, inspect or now. */
  call: CallName
  /** How many requests travelled in it. */
  items: number
  /** How many of them the store could not answer. */
  failed: number
  tookMs: number
  /** `timeout`: not answered within the store's time limit. */
  outcome: 'answered' | 'failed' | 'timeout'
  error?: LeaseholdError
}

export type CallName = 'acquire' | 'renew' | 'release' | 'take' | 'read' | 'revoke' | 'watch'

/** What a call needs from the batcher that sends it. */
export interface CallHost {
  readonly now: number
  /** Called after each call to the store. */
  readonly onCall: ((facts: CallFacts) => void) | undefined
  /** The timers for time limits. Those of calls in the background keep no process alive. */
  limits(inBackground: boolean): Timers
  /** The error to report for what a store threw. */
  explain(error: unknown): LeaseholdError
  /** The error to report if the store has not answered for so long. */
  silence(ms: number): LeaseholdError
}

/** A call to the store that is in flight. Settled once: by its answer, or as unknown when its time limit has passed. */
export abstract class TimedCall<T> extends Timed {
  readonly #host: CallHost
  readonly #timers: Timers
  #timedOut = false
  #limitMs = 0
  #sentAt = 0

  constructor(host: CallHost, inBackground: boolean) {
    super()
    this.#host = host
    this.#timers = host.limits(inBackground)
  }

  follow(answer: PromiseLike<T>, limitMs: number): void {
    this.#limitMs = limitMs
    this.#sentAt = this.#host.now
    this.#timers.set(this, this.#sentAt + limitMs, limitMs)
    answer.then(
      (value) => {
        this.#timers.clear(this)
        guarded(() => (this.#timedOut ? this.late(value) : this.answered(value)))
      },
      (error: unknown) => {
        this.#timers.clear(this)
        // Also if it is late: until then it may have been carried out, after what was sent to undo it.
        guarded(() => (this.#timedOut ? this.late(this.unknown(this.#host.explain(error))) : this.fail(error)))
      },
    )
  }

  override due(): void {
    this.#timedOut = true
    const error = this.#host.silence(this.#limitMs)
    this.#report('timeout', undefined, error)
    this.settle(this.unknown(error))
  }

  /** The store answered: at once, or later. */
  protected answered(answer: T): void {
    this.#report('answered', answer, undefined)
    this.settle(answer)
  }

  /** The store threw, or rejected. */
  fail(thrown: unknown): void {
    const error = this.#host.explain(thrown)
    this.#report('failed', undefined, error)
    this.settle(this.unknown(error))
  }

  #report(outcome: CallFacts['outcome'], answer: T | undefined, error: LeaseholdError | undefined): void {
    const { onCall, now } = this.#host
    if (!onCall) return
    const { call, items } = this.described
    const failed = answer === undefined ? items : countFailed(answer)
    const tookMs = this.#sentAt === 0 ? 0 : now - this.#sentAt
    guarded(() => onCall({ call, items, failed, tookMs, outcome, ...(error && { error }) }))
  }

  /** For `onCall`. */
  protected abstract get described(): { call: CallName; items: number }

  protected abstract settle(answer: T): void
  /** The answer to report for a call that the store did not answer. */
  protected abstract unknown(error: unknown): T
  /** An answer that came after the call was settled as unknown. */
  protected abstract late(answer: T): void
}

function countFailed(answer: unknown): number {
  if (!Array.isArray(answer)) return 0
  return answer.filter((each) => each?.granted === 'unknown' || each?.outcome === 'unknown').length
}

/** A call of its own, which travels with no others. */
export class SingleCall<T> extends TimedCall<T> {
  readonly #resolve: (answer: T) => void
  readonly #unknown: (error: unknown) => T
  readonly #late: ((answer: T) => void) | undefined
  protected override readonly described: { call: CallName; items: number }

  constructor(
    host: CallHost,
    described: { call: CallName; items: number },
    resolve: (answer: T) => void,
    unknown: (error: unknown) => T,
    late: ((answer: T) => void) | undefined,
  ) {
    super(host, false)
    this.described = described
    this.#resolve = resolve
    this.#unknown = unknown
    this.#late = late
  }

  protected override settle(answer: T): void {
    this.#resolve(answer)
  }

  protected override unknown(error: unknown): T {
    return this.#unknown(error)
  }

  protected override late(answer: T): void {
    this.#late?.(answer)
  }
}
