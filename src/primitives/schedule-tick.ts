import type { Ask } from '../core/ask.js'
import type { Engine } from '../core/engine.js'
import { type Lock, leaseOf } from '../core/lock.js'
import { ClosedError, StoreUnavailableError } from '../errors.js'
import { keepRecord, lockOrRecord, recordOf, RUNNING } from './once.js'
import type { StoreClock } from './schedule-clock.js'
import type { ScheduleBell } from './schedule-events.js'

/** What one tick allows, in milliseconds and in the store's time. */
export interface TickTimes {
  at: number
  /** When the next one is due. */
  next: number
  /** It is not started later than this: from then on it is missed. */
  startBy: number
}

/** A mark outlives every reason to look for it by this much: more than any clock is wrong, or any process pauses unnoticed. */
const MARGIN_MS = 300_000

/** While the store does not answer. */
const RETRY_EVERY_MS = 250

/** How long the mark of a tick is kept: until nobody would start it any more. */
export function keepMarkMs({ at, next, startBy }: TickTimes): number {
  return Math.ceil(Math.max(next, startBy) - at + MARGIN_MS)
}

/**
 * Claims single ticks. A tick has a key of its own, kept for longer than anyone would start it: a lock alone would be
 * free again when a short job is over and a slower clock arrives at the same tick.
 */
export class TickClaims {
  readonly #engine: Engine
  readonly #ask: Ask
  readonly #clock: StoreClock
  readonly #bell: ScheduleBell
  readonly #retries: boolean
  readonly #stopping: AbortSignal

  constructor(tools: {
    engine: Engine
    ask: Ask
    clock: StoreClock
    bell: ScheduleBell
    retries: boolean
    stopping: AbortSignal
  }) {
    this.#engine = tools.engine
    this.#ask = tools.ask
    this.#clock = tools.clock
    this.#bell = tools.bell
    this.#retries = tools.retries
    this.#stopping = tools.stopping
  }

  /** Ours to start, or undefined: somebody else's, too late, or the schedule stops. */
  async claim(times: TickTimes): Promise<TickClaim | undefined> {
    const facts = { name: this.#ask.name, tick: new Date(times.at) }
    // One owner for all tries: what an unanswered request has left behind is our own, and must not be in our way.
    const owner = this.#engine.identity.next()
    const claim = await this.#persist(times, () =>
      this.#retries ? this.#untilDone(times, owner) : this.#forGood(times, owner),
    )
    if (claim === 'elsewhere') this.#bell.ring('elsewhere', facts)
    else if (claim === 'late') this.#bell.ring('missed', { ...facts, first: facts.tick })
    else return claim
    return undefined
  }

  /** An outage is no reason to give up a tick before its time. */
  async #persist<T>({ at, startBy }: TickTimes, attempt: () => Promise<T>): Promise<T | 'late' | undefined> {
    for (;;) {
      try {
        return await attempt()
      } catch (error) {
        if (this.#stopping.aborted || error instanceof ClosedError) return undefined
        if (!(error instanceof Error)) throw error
        this.#bell.ring('error', { name: this.#ask.name, tick: new Date(at), error })
        if (!(error instanceof StoreUnavailableError)) return undefined
        if (this.#clock.last > startBy) return 'late'
      }
      await new Promise<void>((resolve) => this.#engine.world.after(RETRY_EVERY_MS, resolve))
    }
  }

  /** Whoever gets it has started it, whatever becomes of him. */
  async #forGood(times: TickTimes, owner: string): Promise<TickClaim | 'elsewhere' | 'late'> {
    const ttlMs = keepMarkMs(times)
    const mark = await this.#engine.tryAcquire({ ...this.#askFor(times.at), owner, ttlMs, autoRenew: false })
    if (!mark) return 'elsewhere'
    leaseOf(mark).leave()
    // Whoever slept so long that an earlier mark may have run out since does not know what happened meanwhile.
    if (this.#clock.last > times.at + ttlMs - MARGIN_MS / 2) return 'late'
    return new TickClaim(undefined, ttlMs, false)
  }

  /** Held while it runs: if he who has it dies, the next one gets it, until somebody records that it is done. */
  async #untilDone(times: TickTimes, owner: string): Promise<TickClaim | 'elsewhere' | 'late'> {
    const { world } = this.#engine
    const keepMs = keepMarkMs(times)
    let seenAt = world.now(true)
    let running = false
    const ask = { ...this.#askFor(times.at), owner, waitMs: Number.POSITIVE_INFINITY, signal: this.#stopping }
    const outcome = await lockOrRecord(this.#engine, ask, () => {
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

  #askFor(at: number): Ask {
    const tick = new Date(at).toISOString()
    return { ...this.#ask, key: `${this.#ask.key}@${tick}`, value: RUNNING, maxHoldMs: undefined }
  }
}

/** A tick that is ours to run. */
export class TickClaim {
  readonly #mark: Lock | undefined
  readonly #keepMs: number
  /** Somebody else had begun it. */
  readonly retried: boolean

  constructor(mark: Lock | undefined, keepMs: number, retried: boolean) {
    this.#mark = mark
    this.#keepMs = keepMs
    this.retried = retried
  }

  /** It need not be run again. */
  async done(): Promise<void> {
    if (this.#mark) await keepRecord(this.#mark, recordOf(undefined), this.#keepMs)
  }

  /** It was not run: whoever waits for it may. */
  async giveUp(): Promise<void> {
    await this.#mark?.release()
  }
}
