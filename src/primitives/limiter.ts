import type { Engine } from '../core/engine.js'
import { nameFrom } from '../core/name.js'
import { type Defaults, signalFrom } from '../core/options.js'
import { ClosedError, InvalidOptionError, type LeaseholdError, UnsupportedError } from '../errors.js'
import type { Failure, Limit, LimitState, TakeAnswer, TakeRequest } from '../store.js'
import { knownOptions } from '../util/options.js'
import { Blocks } from './limiter-blocks.js'
import { WaitingLine } from './limiter-line.js'
import { costFrom, type LimiterOptions, limitsFrom, policyFrom } from './limiter-options.js'
import { Outage } from './limiter-outage.js'
import { Turn } from './limiter-turn.js'

/** What a limiter says to one take. Of several limits, the one that binds most. */
export interface RateLimitResult {
  allowed: boolean
  /** How much could still be taken now. */
  remaining: number
  /** When to come again: 0 when allowed, `Infinity` when the cost can never pass. */
  retryAfterMs: number
  /** When everything is available again. */
  resetMs: number
  /** Each limit by itself, in order. May be absent where there is only one. */
  limits?: readonly LimitState[] | undefined
  /** The store did not answer, and this was decided by `onStoreError`. */
  storeError?: LeaseholdError
}

let takeRaw!: (limiter: Limiter, key: string, terms: Omit<TakeRequest, 'key'>) => Promise<TakeAnswer>

/**
 * At most so much per time, for each key, across all processes.
 *
 * @example
 * ```ts
 * const api = locks.limiter('api', { limit: 100, per: '1m' })
 * const { allowed, retryAfterMs } = await api.take(user)
 * if (!allowed) return tooManyRequests(retryAfterMs)
 * ```
 */
export class Limiter {
  readonly name: string
  /** What is enforced, with defaults filled in. */
  readonly limits: readonly Limit[]
  readonly #engine: Engine
  readonly #prefix: string
  /** The largest cost that can ever pass. */
  readonly #most: number
  readonly #turn: Turn
  readonly #blocks = new Blocks()
  readonly #outage: Outage
  readonly #lines = new Map<string, WaitingLine<RateLimitResult>>()
  readonly #closing: AbortSignal

  static {
    takeRaw = async (limiter, key, terms) => {
      const full = limiter.#check(key)
      if (limiter.#engine.closingReason)
        throw new ClosedError(`"${limiter.name}" takes nothing: locks.close() was called`)
      const answer = await limiter.#engine.courier.take({ key: full, ...terms })
      if ('granted' in answer) throw answer.error
      return answer
    }
  }

  /** @internal */
  constructor(engine: Engine, defaults: Defaults, name: string, options: LimiterOptions, closing: AbortSignal) {
    if (!engine.store.take) {
      throw new UnsupportedError(
        `the ${engine.store.name} store cannot limit rates: use memory, sqlite, redis or postgres`,
      )
    }
    this.limits = limitsFrom(options)
    const policy = policyFrom(options.onStoreError)
    // A colon in the name must not make `a:b` with key `c` out of `a` with key `b:c`.
    this.#prefix = `${defaults.key('limiter', nameFrom('name', name).replace(/[%:]/g, encodeURIComponent))}:`
    this.name = name
    this.#engine = engine
    this.#closing = closing
    this.#most = Math.min(...this.limits.map((limit) => limit.burst))
    this.#outage = new Outage(engine, this.limits, policy)
    const { limits } = this
    this.#turn = new Turn((key, cost) => engine.courier.take({ key, cost, limits }), this.#most)
  }

  /**
   * Takes `cost` from what `key` has left, at once or not at all; a cost of 0 only looks. Being refused is a value;
   * rejects only when the store fails (and `onStoreError` says so).
   */
  take(key: string, cost = 1): Promise<RateLimitResult> {
    // First, without a promise more than needed: this is what somebody who ignores refusals calls all the time.
    if (typeof cost === 'number' && cost <= this.#most) {
      const now = this.#engine.world.now()
      const block = this.#blocks.find(key, cost, now)
      if (block) {
        const { remaining, until, whole, limits } = block
        const answer = { allowed: false, remaining, retryAfterMs: until - now, resetMs: whole - now }
        return Promise.resolve(limits ? { ...answer, limits: later(limits, now - block.sentAt) } : answer)
      }
    }
    return this.#take(key, cost)
  }

  /**
   * Resolves when it could take `cost`. First come, first served within this process; `signal` cancels. Rejects with
   * `InvalidOptionError` if the cost could never pass.
   */
  async wait(
    key: string,
    options: { signal?: AbortSignal | undefined; cost?: number | undefined } = {},
  ): Promise<RateLimitResult> {
    knownOptions(options, ['signal', 'cost'])
    const cost = options.cost === undefined ? 1 : costFrom(options.cost)
    const signals = options.signal === undefined ? [this.#closing] : [signalFrom(options.signal), this.#closing]
    if (cost > this.#most || this.#most === 0) {
      throw new InvalidOptionError('cost', cost, `at most ${this.#most} here, or it would wait for ever`)
    }
    this.#check(key)
    for (const signal of signals) signal.throwIfAborted()
    let line = this.#lines.get(key)
    if (!line) {
      const take = (sum: number): Promise<RateLimitResult> => this.take(key, sum)
      line = new WaitingLine(this.#engine.world, take, () => this.#lines.delete(key))
      this.#lines.set(key, line)
    }
    return line.wait(cost, signals)
  }

  async #take(key: string, asked: unknown): Promise<RateLimitResult> {
    const cost = costFrom(asked)
    const full = this.#check(key)
    if (this.#engine.closingReason) throw new ClosedError(`"${this.name}" takes nothing: locks.close() was called`)
    // Nothing passes, and no store need be asked.
    if (this.#most === 0) return { allowed: false, remaining: 0, retryAfterMs: Number.POSITIVE_INFINITY, resetMs: 0 }
    const out = this.#outage.pending
    if (out) return this.#outage.decide(full, cost, out)
    const sentAt = this.#engine.world.now()
    const answer = await this.#turn.take(full, cost)
    if ('granted' in answer) return this.#failed(full, cost, answer)
    this.#outage.over()
    if (!answer.allowed && answer.retryAfterMs < Number.POSITIVE_INFINITY) this.#block(key, cost, answer, sentAt)
    return answer
  }

  #block(key: string, cost: number, answer: TakeAnswer, sentAt: number): void {
    const { remaining, retryAfterMs, resetMs, limits } = answer
    const block = { cost, remaining, sentAt, until: sentAt + retryAfterMs, whole: sentAt + resetMs, limits }
    this.#blocks.add(key, block, this.#engine.world.now())
  }

  #failed(key: string, cost: number, { error }: Failure): RateLimitResult {
    this.#outage.began(error)
    this.#engine.events.emit('error', () => ({ name: this.name, kind: 'limiter', doing: 'acquire', error }))
    return this.#outage.decide(key, cost, error)
  }

  #check(key: string): string {
    const full = this.#prefix + nameFrom('key', key)
    this.#engine.store.partition?.(full)
    return full
  }
}

/** One question to the store under a limiter's name, with limits of its own. Every call asks: nothing is kept here. */
export function takeUnder(limiter: Limiter, key: string, terms: Omit<TakeRequest, 'key'>): Promise<TakeAnswer> {
  return takeRaw(limiter, key, terms)
}

/** What was told of each limit, some time ago. */
function later(limits: readonly LimitState[], ms: number): LimitState[] {
  return limits.map(({ remaining, nextMs }) => ({ remaining, nextMs: Math.max(nextMs - ms, 0) }))
}
