import type { Ask } from '../core/ask.js'
import type { Engine } from '../core/engine.js'
import { type Lock, leaseOf } from '../core/lock.js'
import { LockLostError, LockTimeoutError, StoreUnavailableError } from '../errors.js'
import type { StoreClock } from './schedule-clock.js'
import type { RunFacts, ScheduleBell } from './schedule-events.js'
import type { ScheduleTerms } from './schedule-options.js'
import type { TickClaim, TickTimes } from './schedule-tick.js'

/** What a scheduled job is given. */
export interface ScheduledRun {
  /** Of the schedule. */
  name: string
  /** When it was due. The same for everybody, unlike the clock of this machine. */
  tick: Date
  /** How long after the tick it starts. */
  lateMs: number
  /** Another instance began it and died (`onCrash: 'retry'`). */
  retried: boolean
  /** Larger than that of every earlier run of this schedule. */
  fencingToken: bigint
  /** Aborts when another run may start, and when the instance closes. */
  signal: AbortSignal
}

export type Job = (run: ScheduledRun) => unknown

/** A run that is just ending is not an overlap: this share of the time between ticks is waited for it, up to a second. */
const OVERLAP_GRACE = 0.1
const LONGEST_GRACE_MS = 1_000

/** While the store does not answer. */
const RETRY_EVERY_MS = 250

/** Runs the job of claimed ticks, one at a time across all instances. */
export class Runs {
  readonly #engine: Engine
  readonly #ask: Ask
  readonly #job: Job
  readonly #terms: ScheduleTerms
  readonly #clock: StoreClock
  readonly #bell: ScheduleBell
  readonly #stopping: AbortSignal
  #waiting = false

  constructor(tools: {
    engine: Engine
    ask: Ask
    job: Job
    terms: ScheduleTerms
    clock: StoreClock
    bell: ScheduleBell
    stopping: AbortSignal
  }) {
    this.#engine = tools.engine
    this.#ask = tools.ask
    this.#job = tools.job
    this.#terms = tools.terms
    this.#clock = tools.clock
    this.#bell = tools.bell
    this.#stopping = tools.stopping
  }

  async run(times: TickTimes, claim: TickClaim): Promise<void> {
    const facts = { name: this.#ask.name, tick: new Date(times.at) }
    let lock: Lock | undefined
    try {
      lock = await this.#turn(times, claim.retried)
    } catch (error) {
      if (this.#stopping.aborted) this.#bell.ring('skipped', { ...facts, reason: 'stopped' })
      else this.#bell.ring('error', { ...facts, error: error as Error })
      await claim.giveUp()
      return
    }
    if (!lock) {
      this.#bell.ring('skipped', { ...facts, reason: 'overlap' })
      await claim.done()
      return
    }
    await this.#work(times, claim, lock)
  }

  /** Waits until no other run goes on, for as long as that is allowed. Undefined: it went on. */
  async #turn(times: TickTimes, retried: boolean): Promise<Lock | undefined> {
    if (this.#terms.waits) {
      // Or ticks would pile up behind a job that takes longer than the time between them.
      if (this.#waiting) return undefined
      this.#waiting = true
    }
    const grace = Math.min((times.next - times.at) * OVERLAP_GRACE, LONGEST_GRACE_MS)
    // Whoever died while running still has the lock, for a while.
    const patience = retried ? this.#ask.ttlMs * 2 : grace
    const value = JSON.stringify({ tick: new Date(times.at).toISOString() })
    const waitMs = this.#terms.waits ? Number.POSITIVE_INFINITY : patience
    try {
      for (;;) {
        try {
          // First without a wait, which a slow store would use up before it has answered at all; and even if we stop:
          // the tick is ours, and nobody else will run it.
          const ask = { ...this.#ask, value, waitMs }
          const lock = await this.#engine.tryAcquire(ask)
          return lock ?? (await this.#engine.acquire({ ...ask, signal: this.#stopping }))
        } catch (error) {
          if (error instanceof LockTimeoutError) return undefined
          if (!(error instanceof StoreUnavailableError) || this.#clock.last > times.startBy) throw error
        }
        await new Promise<void>((resolve) => this.#engine.world.after(RETRY_EVERY_MS, resolve))
      }
    } finally {
      this.#waiting = false
    }
  }

  async #work(times: TickTimes, claim: TickClaim, lock: Lock): Promise<void> {
    const { world } = this.#engine
    const began = world.now()
    const lateMs = Math.max(this.#clock.last - times.at, 0)
    const { holder, fencingToken, signal } = lock
    const run = { name: this.#ask.name, tick: new Date(times.at), lateMs, retried: claim.retried, fencingToken }
    const facts: RunFacts = { ...run, holder }
    signal.addEventListener('abort', () => this.#lost(facts, claim, signal.reason), { once: true })
    this.#bell.ring('started', facts)
    try {
      await this.#job({ ...run, signal })
      this.#bell.ring('finished', { ...facts, tookMs: world.now() - began })
    } catch (error) {
      this.#bell.ring('failed', { ...facts, tookMs: world.now() - began, error })
    }
    await this.#done(facts, claim)
    await this.#letGo(lock, began)
  }

  async #done(facts: RunFacts, claim: TickClaim): Promise<void> {
    try {
      await claim.done()
    } catch (error) {
      this.#bell.ring('error', { name: facts.name, tick: facts.tick, error: error as Error })
    }
  }

  #lost(facts: RunFacts, claim: TickClaim, reason: unknown): void {
    if (!(reason instanceof LockLostError) || reason.why === 'released') return
    this.#bell.ring('lost', { ...facts, error: reason })
    // It had its chance. For any other reason nobody knows how far it came.
    if (reason.why === 'max-hold') void this.#done(facts, claim)
  }

  /** Not before `holdAtLeast` has passed. Nobody waits for that: if we stop meanwhile, it runs out by itself. */
  async #letGo(lock: Lock, began: number): Promise<void> {
    const { world } = this.#engine
    const left = began + this.#terms.holdAtLeastMs - world.now()
    if (left <= 0) {
      await lock.release()
      return
    }
    const leave = (): void => {
      cancel()
      leaseOf(lock).leave()
    }
    const cancel = world.after(left, () => {
      this.#stopping.removeEventListener('abort', leave)
      void lock.release()
    })
    if (this.#stopping.aborted) leave()
    else this.#stopping.addEventListener('abort', leave, { once: true })
  }
}
