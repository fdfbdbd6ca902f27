import { LeaseholdError, StoreUnavailableError } from '../errors.js'
import type { World } from '../kit/world.js'
import type {
  Answer,
  Awaitable,
  Claim,
  Failure,
  Grant,
  Lease,
  Released,
  Renewal,
  Renewed,
  Store,
  TakeAnswer,
  TakeRequest,
} from '../store.js'
import { formatDuration } from '../kit/duration.js'
import { Errand } from './call.js'
import { Channel, Traffic } from './channel.js'
import { isThenable } from './thenable.js'
import { Timers } from './timers.js'

/** With more of them in one batch, the client would wait for the server and the server for the client, by turns. */
const TAKES_AT_MOST = 32

/**
 * Carries questions to the store: everything of one event-loop turn together, each item answered on its own, a lone
 * question without added delay, and every question answered in the end, if only with `unknown`.
 */
export class Courier {
  readonly store: Store
  readonly #world: World
  readonly #onStray: (claim: Claim, grant: Grant) => void
  readonly #immediate: boolean
  readonly #urgency: Timers
  readonly #patience: Timers
  readonly #acquiring: Channel<Claim, Answer>
  readonly #renewing: Channel<Renewal, Renewed>
  readonly #releasing: Channel<Lease, Released>
  readonly #taking: Channel<TakeRequest, TakeAnswer | Failure>

  /** `onStray` is told of grants whose asker was already told «unknown». */
  constructor(store: Store, world: World, onStray: (claim: Claim, grant: Grant) => void) {
    this.store = store
    this.#world = world
    this.#onStray = onStray
    this.#urgency = new Timers(world, true)
    this.#patience = new Timers(world)
    this.#immediate = store.immediate === true
    const traffic = new Traffic()
    const failed = (error: unknown): Failure => ({ granted: 'unknown', error })
    const unsure = (error: unknown): { outcome: 'unknown'; error: unknown } => ({ outcome: 'unknown', error })
    this.#releasing = new Channel(this, traffic, { call: (leases) => store.release(leases), unknown: unsure })
    this.#renewing = new Channel(this, traffic, {
      call: (renewals) => store.renew(renewals),
      unknown: unsure,
      inBackground: true,
    })
    this.#acquiring = new Channel(this, traffic, {
      call: (claims) => store.acquire(claims),
      unknown: failed,
      late: (claim, answer) => {
        if (answer.granted === true) this.#onStray(claim, answer)
      },
    })
    this.#taking = new Channel(this, traffic, {
      call: (requests) => (store.take as NonNullable<Store['take']>)(requests),
      unknown: failed,
      atMost: TAKES_AT_MOST,
    })
  }

  #sole<T>(answers: Awaitable<T[]>): T {
    const [answer] = answers as T[]
    if (answer === undefined) throw new Error('one request was not answered')
    return answer
  }

  acquire(claim: Claim): Awaitable<Answer> {
    if (this.#immediate) {
      try {
        return this.#sole(this.store.acquire([claim]))
      } catch (error) {
        return { granted: 'unknown', error: this.explain(error) }
      }
    }
    return claim.blockMs ? this.#acquiring.sendAlone(claim, claim.blockMs) : this.#acquiring.send(claim)
  }

  /** As `acquire`, on a store that answers later and keeps no question open. By callback: a promise shows in the price of a lock. */
  ask(claim: Claim, answered: (answer: Answer) => void): void {
    this.#acquiring.post(claim, answered)
  }

  /** All or none, in one call of their own. */
  acquireTogether(claims: Claim[]): Awaitable<Answer[]> {
    return this.#acquireMany(claims, { atomic: true })
  }

  /** Each answered singly, in one call of their own, so that nothing overtakes them. */
  acquireInOrder(claims: Claim[]): Awaitable<Answer[]> {
    return this.#acquireMany(claims)
  }

  #acquireMany(claims: Claim[], options?: { atomic: true }): Awaitable<Answer[]> {
    const failed = (error: unknown): Answer[] => claims.map(() => ({ granted: 'unknown', error }))
    const complete = (answers: Answer[]): Answer[] => {
      if (answers?.length === claims.length) return answers
      return failed(
        this.explain(
          new Error(`${this.store.name} answered ${answers?.length ?? 'none'} of ${claims.length} requests`),
        ),
      )
    }
    const late = (answers: Answer[]): void => {
      for (const [i, answer] of complete(answers).entries()) {
        if (answer.granted === true) this.#onStray(claims[i] as Claim, answer)
      }
    }
    const answers = this.within(() => this.store.acquire(claims, options), failed, late)
    return isThenable(answers) ? answers.then(complete) : complete(answers)
  }

  renew(renewal: Renewal): Promise<Renewed> {
    return this.#renewing.send(renewal)
  }

  release(lease: Lease): Awaitable<Released> {
    if (this.#immediate) {
      try {
        return this.#sole(this.store.release([lease]))
      } catch (error) {
        return { outcome: 'unknown', error: this.explain(error) }
      }
    }
    return this.#releasing.send(lease)
  }

  /** As `release`, on a store that answers later. */
  giveBack(lease: Lease, answered: (answer: Released) => void): void {
    this.#releasing.post(lease, answered)
  }

  take(request: TakeRequest): Promise<TakeAnswer | Failure> {
    return this.#taking.send(request)
  }

  /** Every call ends: with an answer, or as unknown when the store's time limit has passed. Never rejects. */
  within<T>(call: () => Awaitable<T>, unknown: (error: unknown) => T, late?: (answer: T) => void): Awaitable<T> {
    let answer: Awaitable<T>
    try {
      answer = call()
    } catch (error) {
      return unknown(this.explain(error))
    }
    if (!isThenable(answer)) return answer
    const pending = answer
    return new Promise<T>((resolve) => new Errand(this, resolve, unknown, late).follow(pending, this.store.timeoutMs))
  }

  /** The time limits of calls that somebody waits for, and of the others: only the first keep a process alive. */
  limits(inBackground: boolean): Timers {
    return inBackground ? this.#patience : this.#urgency
  }

  get now(): number {
    return this.#world.now()
  }

  /** What to say when the store has not answered for so long: with the reason, if the store knows one. */
  silence(ms: number): StoreUnavailableError {
    const silence = `${this.store.name} did not answer within ${formatDuration(Math.round(ms))}`
    let cause: unknown
    try {
      cause = this.store.outage?.()
    } catch (error) {
      cause = error
    }
    if (cause === undefined) return new StoreUnavailableError(silence)
    return new StoreUnavailableError(`${silence}: ${cause instanceof Error ? cause.message : String(cause)}`, { cause })
  }

  explain(error: unknown): LeaseholdError {
    if (error instanceof LeaseholdError) return error
    const reason = error instanceof Error ? error.message || error.name : String(error)
    return new StoreUnavailableError(`${this.store.name} is unavailable: ${reason}`, { cause: error })
  }
}
