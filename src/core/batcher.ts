import { LeaseholdError, StoreUnavailableError } from '../errors.js'
import type { World } from '../util/world.js'
import type {
  Answer,
  Awaitable,
  Claim,
  Failure,
  LeaseId,
  Released,
  Renewal,
  Renewed,
  Store,
  TakeAnswer,
  TakeRequest,
} from '../store.js'
import { formatDuration } from '../util/duration.js'
import { reasonOf } from '../util/reason.js'
import { callChannel } from './channels.js'
import { type CallFacts, type CallName, SingleCall } from './timed-call.js'
import { InFlight, type RequestHost, RequestQueue } from './request-queue.js'
import { guarded } from './guarded.js'
import { ignoreRejection, isThenable } from './thenable.js'
import { Timers } from './timers.js'
import { isAnswer, isReleased, isRenewed, isTaken } from './well-formed.js'

/**
 * Sends requests to the store: those of one event-loop turn in one call, each answered by itself, a lone request without
 * added delay, and every request answered in the end, if only as `unknown`.
 */
export class Batcher implements RequestHost {
  readonly store: Store
  readonly #onCall: ((facts: CallFacts) => void) | undefined
  readonly #publishCall: (facts: CallFacts) => void
  readonly #world: World
  /** Every answer is there when a call returns. */
  readonly answersAtOnce: boolean
  readonly #awaitedLimits: Timers
  readonly #backgroundLimits: Timers
  readonly #acquiring: RequestQueue<Claim, Answer>
  readonly #renewing: RequestQueue<Renewal, Renewed>
  readonly #releasing: RequestQueue<LeaseId, Released>
  readonly #taking: RequestQueue<TakeRequest, TakeAnswer | Failure>

  constructor(store: Store, world: World, onCall?: (facts: CallFacts) => void) {
    this.store = store
    this.#onCall = onCall
    this.#publishCall = (facts) => {
      callChannel.publish({ store: store.name, ...facts })
      // An async function returns a promise, which is guarded where this is called.
      return onCall?.(facts)
    }
    this.#world = world
    this.#awaitedLimits = new Timers(world, true)
    this.#backgroundLimits = new Timers(world)
    this.answersAtOnce = store.timeoutMs === 0
    const inFlight = new InFlight()
    const failed = (error: unknown): Failure => ({ granted: 'unknown', error })
    const unsure = (error: unknown): { outcome: 'unknown'; error: unknown } => ({ outcome: 'unknown', error })
    this.#releasing = new RequestQueue(this, inFlight, {
      name: 'release',
      call: (leases) => store.release(leases),
      unknown: unsure,
      isAnswer: isReleased,
    })
    this.#renewing = new RequestQueue(this, inFlight, {
      name: 'renew',
      call: (renewals) => store.renew(renewals),
      unknown: unsure,
      isAnswer: isRenewed,
      inBackground: true,
    })
    this.#acquiring = new RequestQueue(this, inFlight, {
      name: 'acquire',
      call: (claims) => store.acquire(claims),
      unknown: failed,
      isAnswer,
    })
    this.#taking = new RequestQueue(this, inFlight, {
      name: 'take',
      call: (requests) => (store.take as NonNullable<Store['take']>)(requests),
      unknown: failed,
      isAnswer: isTaken,
    })
  }

  /** Undefined unless somebody wants to know: nothing is measured then. */
  get onCall(): ((facts: CallFacts) => void) | undefined {
    return callChannel.hasSubscribers ? this.#publishCall : this.#onCall
  }

  #sole<T>(answers: Awaitable<T[]>, isValid: (answer: unknown) => boolean): T {
    // By index: to take an array apart costs an iterator, once per lock in memory.
    const answer = (answers as T[])[0]
    if (isValid(answer)) return answer as T
    throw this.#notAtOnce(answers)
  }

  #notAtOnce<T>(answers: Awaitable<T[]>): LeaseholdError {
    if (!isThenable(answers)) return this.misunderstood(answers[0])
    ignoreRejection(answers)
    return this.explain(new Error('it answered with a promise, although its timeoutMs is 0'))
  }

  /** `late` receives an answer that comes after the request was answered as `unknown`. */
  acquire(claim: Claim, late?: (answer: Answer) => void): Awaitable<Answer> {
    if (this.answersAtOnce) {
      try {
        const answer = this.#sole(this.store.acquire([claim]), isAnswer)
        if (this.onCall) this.#reportSync({ call: 'acquire', items: 1 })
        return answer
      } catch (error) {
        return { granted: 'unknown', error: this.#failedAtOnce('acquire', error) }
      }
    }
    return claim.blockMs ? this.#acquiring.sendAlone(claim, claim.blockMs, late) : this.#acquiring.send(claim, late)
  }

  /** As `acquire`, on a store that answers later and keeps no request open. By callback: a promise costs measurable time per lock. */
  acquireThen(claim: Claim, answered: (answer: Answer) => void, late: (answer: Answer) => void): void {
    this.#acquiring.post(claim, answered, late)
  }

  /** All or none, in one call of their own. */
  acquireTogether(claims: Claim[], late: (answers: Answer[]) => void): Awaitable<Answer[]> {
    return this.#acquireMany(claims, late, { atomic: true })
  }

  /** Each answered by itself, in one call of their own, so that nothing overtakes them. */
  acquireInOrder(claims: Claim[], late: (answers: Answer[]) => void): Awaitable<Answer[]> {
    return this.#acquireMany(claims, late)
  }

  #acquireMany(claims: Claim[], late: (answers: Answer[]) => void, options?: { atomic: true }): Awaitable<Answer[]> {
    const failed = (error: unknown): Answer[] => claims.map(() => ({ granted: 'unknown', error }))
    const complete = (answers: Answer[]): Answer[] => {
      if (Array.isArray(answers) && answers.length === claims.length) {
        return answers.map((answer) =>
          isAnswer(answer) ? answer : { granted: 'unknown', error: this.misunderstood(answer) },
        )
      }
      return failed(
        this.explain(
          new Error(`${this.store.name} answered ${answers?.length ?? 'none'} of ${claims.length} requests`),
        ),
      )
    }
    const answers = this.within(
      { call: 'acquire', items: claims.length },
      () => this.store.acquire(claims, options),
      failed,
      (answered) => late(complete(answered)),
    )
    return isThenable(answers) ? answers.then(complete) : complete(answers)
  }

  renew(renewal: Renewal): Promise<Renewed> {
    return this.#renewing.send(renewal)
  }

  release(lease: LeaseId): Awaitable<Released> {
    if (this.answersAtOnce) {
      try {
        const answer = this.#sole(this.store.release([lease]), isReleased)
        if (this.onCall) this.#reportSync({ call: 'release', items: 1 })
        return answer
      } catch (error) {
        return { outcome: 'unknown', error: this.#failedAtOnce('release', error) }
      }
    }
    return this.#releasing.send(lease)
  }

  /** As `release`, on a store that answers later. */
  releaseThen(lease: LeaseId, answered: (answer: Released) => void): void {
    this.#releasing.post(lease, answered)
  }

  /** Settles when every release has been answered, if only as unknown. */
  released(): Promise<void> {
    return this.#releasing.answered()
  }

  take(request: TakeRequest): Awaitable<TakeAnswer | Failure> {
    if (!this.answersAtOnce) return this.#taking.send(request)
    try {
      const answer = this.#sole((this.store.take as NonNullable<Store['take']>)([request]), isTaken)
      if (this.onCall) this.#reportSync({ call: 'take', items: 1 })
      return answer
    } catch (error) {
      return { granted: 'unknown', error: this.#failedAtOnce('take', error) }
    }
  }

  /** Every call ends: with an answer, or as unknown when the store's time limit has passed. Never rejects. */
  within<T>(
    described: { call: CallName; items: number },
    call: () => Awaitable<T>,
    unknown: (error: unknown) => T,
    late?: (answer: T) => void,
  ): Awaitable<T> {
    let answer: Awaitable<T>
    try {
      answer = call()
    } catch (error) {
      const explained = this.explain(error)
      this.#reportSync(described, explained)
      return unknown(explained)
    }
    if (!isThenable(answer)) {
      this.#reportSync(described)
      return answer
    }
    const pending = answer
    return new Promise<T>((resolve) =>
      new SingleCall(this, described, resolve, unknown, late).follow(pending, this.store.timeoutMs),
    )
  }

  #failedAtOnce(call: CallName, error: unknown): LeaseholdError {
    const explained = this.explain(error)
    this.#reportSync({ call, items: 1 }, explained)
    return explained
  }

  /** For a store that answered at once. */
  #reportSync({ call, items }: { call: CallName; items: number }, error?: LeaseholdError): void {
    const { onCall } = this
    if (!onCall) return
    const outcome = error ? 'failed' : 'answered'
    guarded(() => onCall({ call, items, failed: error ? items : 0, tookMs: 0, outcome, ...(error && { error }) }))
  }

  /** The timers of time limits. Only those of calls that somebody awaits keep a process alive. */
  limits(inBackground: boolean): Timers {
    return inBackground ? this.#backgroundLimits : this.#awaitedLimits
  }

  get now(): number {
    return this.#world.now()
  }

  /** The error to report if the store has not answered for so long, with the reason if the store knows one. */
  silence(ms: number): StoreUnavailableError {
    const silence = `${this.store.name} did not answer within ${formatDuration(Math.round(ms))}`
    let cause: unknown
    try {
      cause = this.store.outage?.()
    } catch (error) {
      cause = error
    }
    if (cause === undefined) return new StoreUnavailableError(silence)
    return new StoreUnavailableError(`${silence}: ${reasonOf(cause)}`, { cause })
  }

  /** One request has no answer, or one that means nothing. */
  misunderstood(answer: unknown): LeaseholdError {
    const what = answer === undefined || answer === null ? 'was not answered' : 'was answered in an unknown form'
    return this.explain(new Error(`one request ${what}`))
  }

  explain(error: unknown): LeaseholdError {
    if (error instanceof LeaseholdError) return error
    return new StoreUnavailableError(`${this.store.name} is unavailable: ${reasonOf(error)}`, { cause: error })
  }
}
