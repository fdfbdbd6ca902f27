import type { AcquireRequest } from '../../core/request.js'
import type { Engine } from '../../core/engine.js'
import { type Lock, leaseOf } from '../../core/lock.js'
import { ClosedError, StoreUnavailableError } from '../../errors.js'
import { keepRecord, lockOrRecord, recordOf, RUNNING } from '../run-once.js'
import type { StoreClock } from './clock.js'
import type { ScheduleEmitter } from './events.js'

/** What one tick allows, in milliseconds and in the store's time. */
export interface TickTimes {
  at: number
  /** When the next one is due. */
  next: number
  /** It is not started later than this: from then on it is missed. */
  startBy: number
}

/**
 * Milliseconds for which the record of a tick outlives the last moment at which an instance would start it: more than clocks
 * differ, and more than a process pauses unnoticed.
 */
const MARGIN_MS = 300_000

/** Pause in milliseconds between attempts while the store does not answer. Shorter would load a store that is starting. */
export const RETRY_EVERY_MS = 250

/** How long the record of a tick is kept: until no instance would start it any more. */
export function keepRecordMs({ at, next, startBy }: TickTimes): number {
  return Math.ceil(Math.max(next, startBy) - at + MARGIN_MS)
}

/**
 * Claims single ticks. A tick has a key of its own, kept for longer than any instance would start it: a lock alone would be
 * free again when a short job is over and a slower clock arrives at the same tick.
 */
export class TickClaims {
  readonly #engine: Engine
  readonly #request: AcquireRequest
  readonly #clock: StoreClock
  readonly #emitter: ScheduleEmitter
  readonly #retries: boolean
  readonly #stopping: AbortSignal

  constructor(tools: {
    engine: Engine
    request: AcquireRequest
    clock: StoreClock
    emitter: ScheduleEmitter
    retries: boolean
    stopping: AbortSignal
  }) {
    this.#engine = tools.engine
    this.#request = tools.request
    this.#clock = tools.clock
    this.#emitter = tools.emitter
    this.#retries = tools.retries
    this.#stopping = tools.stopping
  }

  /** The claim of this instance; undefined if another instance has the tick, if it is too late, or if the schedule stops. */
  async claim(times: TickTimes): Promise<TickClaim | undefined> {
    const facts = { name: this.#request.name, tick: new Date(times.at) }
    // One owner for all attempts: a claim left behind by an unanswered request is then our own, and does not refuse the next.
    const owner = this.#engine.identity.next()
    const claim = await this.#retryOutages(times, () =>
      this.#retries ? this.#claimUntilDone(times, owner) : this.#claimOnce(times, owner),
    )
    if (claim === 'elsewhere') this.#emitter.notify('elsewhere', facts)
    else if (claim === 'late') this.#emitter.notify('missed', { ...facts, first: facts.tick })
    else return claim
    return undefined
  }

  /** An outage is no reason to give up a tick before its time. */
  async #retryOutages<T>({ at, startBy }: TickTimes, attempt: () => Promise<T>): Promise<T | 'late' | undefined> {
    for (;;) {
      try {
        return await attempt()
      } catch (error) {
        if (this.#stopping.aborted || error instanceof ClosedError) return undefined
        if (!(error instanceof Error)) throw error
        this.#emitter.notify('error', { name: this.#request.name, tick: new Date(at), error })
        if (!(error instanceof StoreUnavailableError)) return undefined
        if (this.#clock.last > startBy) return 'late'
      }
      await new Promise<void>((resolve) => this.#engine.world.after(RETRY_EVERY_MS, resolve))
    }
  }

  /** The instance that gets the claim has started the tick, whatever becomes of it. */
  async #claimOnce(times: TickTimes, owner: string): Promise<TickClaim | 'elsewhere' | 'late'> {
    const ttlMs = keepRecordMs(times)
    const record = await this.#engine.tryAcquire({ ...this.#requestFor(times.at), owner, ttlMs, autoRenew: false })
    if (!record) return 'elsewhere'
    leaseOf(record).leave()
    // An instance that slept so long that an earlier record may have expired cannot know whether the tick has run.
    if (this.#clock.last > times.at + ttlMs - MARGIN_MS / 2) return 'late'
    return new TickClaim(undefined, ttlMs, false)
  }

  /** Held while the job runs: if its instance dies, the next one gets it, until one records that the tick is done. */
  async #claimUntilDone(times: TickTimes, owner: string): Promise<TickClaim | 'elsewhere' | 'late'> {
    const { world } = this.#engine
    const keepMs = keepRecordMs(times)
    let seenAt = world.now(true)
    let running = false
    const request = { ...this.#requestFor(times.at), owner, waitMs: Number.POSITIVE_INFINITY, signal: this.#stopping }
    const outcome = await lockOrRecord(this.#engine, request, () => {
      seenAt = world.now(true)
      running = true
    })
    if ('done' in outcome) return 'elsewhere'
    const claim = new TickClaim(outcome, keepMs, running)
    const slept = world.now(true) - seenAt > keepMs - MARGIN_MS / 2
    if (!slept && (running || this.#clock.last <= times.at + keepMs - MARGIN_MS / 2)) return claim
    await claim.done()
    return 'late'
  }

  #requestFor(at: number): AcquireRequest {
    const tick = new Date(at).toISOString()
    return { ...this.#request, key: `${this.#request.key}@${tick}`, value: RUNNING, maxHoldMs: undefined }
  }
}

/** A tick that this instance has to run. */
export class TickClaim {
  readonly #lock: Lock | undefined
  readonly #keepMs: number
  /** Another instance had begun it. */
  readonly retried: boolean

  constructor(lock: Lock | undefined, keepMs: number, retried: boolean) {
    this.#lock = lock
    this.#keepMs = keepMs
    this.retried = retried
  }

  /** It need not be run again. */
  async done(): Promise<void> {
    if (this.#lock) await keepRecord(this.#lock, recordOf(undefined), this.#keepMs)
  }

  /** It was not run: an instance that waits for it may run it. */
  async giveUp(): Promise<void> {
    await this.#lock?.release()
  }
}
