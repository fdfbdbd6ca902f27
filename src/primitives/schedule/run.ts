import type { AcquireRequest } from '../../core/request.js'
import { onAbort } from '../../core/abort-fanout.js'
import type { Engine } from '../../core/engine.js'
import { type Lock, leaseOf } from '../../core/lock.js'
import { LockLostError, LockTimeoutError, StoreUnavailableError } from '../../errors.js'
import type { StoreClock } from './clock.js'
import type { RunFacts, ScheduleEmitter } from './events.js'
import type { ScheduleTerms } from './options.js'
import { RETRY_EVERY_MS, type TickClaim, type TickTimes } from './tick.js'

/** What a scheduled job is given. */
export interface ScheduledRun {
  /** Of the schedule. */
  name: string
  /** When it was due. The same for all instances, unlike the clock of this machine. */
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

export type ScheduledJob = (run: ScheduledRun) => unknown

/** Share of the time between ticks for which a run waits for the one before it: a run that is just ending is not an overlap. */
const OVERLAP_GRACE = 0.1
/** Upper bound of that wait, in milliseconds: of a daily tick a tenth would be hours. */
const LONGEST_GRACE_MS = 1_000

/** Runs the job of claimed ticks, one at a time across all instances. */
export class ScheduledRuns {
  readonly #engine: Engine
  readonly #request: AcquireRequest
  readonly #job: ScheduledJob
  readonly #terms: ScheduleTerms
  readonly #clock: StoreClock
  readonly #emitter: ScheduleEmitter
  readonly #stopping: AbortSignal
  #waiting = false

  constructor(tools: {
    engine: Engine
    request: AcquireRequest
    job: ScheduledJob
    terms: ScheduleTerms
    clock: StoreClock
    emitter: ScheduleEmitter
    stopping: AbortSignal
  }) {
    this.#engine = tools.engine
    this.#request = tools.request
    this.#job = tools.job
    this.#terms = tools.terms
    this.#clock = tools.clock
    this.#emitter = tools.emitter
    this.#stopping = tools.stopping
  }

  async run(times: TickTimes, claim: TickClaim): Promise<void> {
    const facts = { name: this.#request.name, tick: new Date(times.at) }
    let lock: Lock | undefined
    try {
      lock = await this.#waitForOverlap(times, claim.retried)
    } catch (error) {
      if (this.#stopping.aborted) this.#emitter.notify('skipped', { ...facts, reason: 'stopped' })
      else this.#emitter.notify('error', { ...facts, error: error as Error })
      await claim.giveUp()
      return
    }
    if (!lock) {
      this.#emitter.notify('skipped', { ...facts, reason: 'overlap' })
      await claim.done()
      return
    }
    await this.#work(times, claim, lock)
  }

  /** Waits for the end of another run, for as long as the options allow. Undefined: it did not end in time. */
  async #waitForOverlap(times: TickTimes, retried: boolean): Promise<Lock | undefined> {
    if (this.#terms.waits) {
      // Only one tick waits: more would pile up behind a job that takes longer than the time between ticks.
      if (this.#waiting) return undefined
      this.#waiting = true
    }
    const grace = Math.min((times.next - times.at) * OVERLAP_GRACE, LONGEST_GRACE_MS)
    // An instance that died while running still has the lock, until its ttl has passed.
    const retryWaitMs = retried ? this.#request.ttlMs * 2 : grace
    const value = JSON.stringify({ tick: new Date(times.at).toISOString() })
    const waitMs = this.#terms.waits ? Number.POSITIVE_INFINITY : retryWaitMs
    // One owner for all attempts: a lease left behind by an unanswered request is then our own. Under another owner it
    // would look like an overlap, and the tick, which no other instance may start, would be lost.
    const owner = this.#engine.identity.next()
    try {
      for (;;) {
        try {
          // The first attempt has no wait, which a slow store would use up before its first answer. It is made even if the
          // schedule stops: this instance has claimed the tick, and no other one will run it.
          const request = { ...this.#request, owner, value, waitMs }
          const lock = await this.#engine.tryAcquire(request)
          return lock ?? (await this.#engine.acquire({ ...request, signal: this.#stopping }))
        } catch (error) {
          if (!(error instanceof StoreUnavailableError) || this.#clock.last > times.startBy) {
            // The queue entry, or a lease of which nobody heard, would be in the way of the next run.
            void this.#engine.cleanup.release({ key: this.#request.key, owner }, this.#request.ttlMs)
            if (error instanceof LockTimeoutError) return undefined
            throw error
          }
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
    const run = { name: this.#request.name, tick: new Date(times.at), lateMs, retried: claim.retried, fencingToken }
    const facts: RunFacts = { ...run, holder }
    signal.addEventListener('abort', () => this.#lost(facts, claim, signal.reason), { once: true })
    this.#emitter.notify('started', facts)
    try {
      await this.#job({ ...run, signal })
      this.#emitter.notify('finished', { ...facts, tookMs: world.now() - began })
    } catch (error) {
      this.#emitter.notify('failed', { ...facts, tookMs: world.now() - began, error })
    }
    await this.#done(facts, claim)
    await this.#release(lock, began)
  }

  async #done(facts: RunFacts, claim: TickClaim): Promise<void> {
    try {
      await claim.done()
    } catch (error) {
      this.#emitter.notify('error', { name: facts.name, tick: facts.tick, error: error as Error })
    }
  }

  #lost(facts: RunFacts, claim: TickClaim, reason: unknown): void {
    if (!(reason instanceof LockLostError) || reason.why === 'released') return
    this.#emitter.notify('lost', { ...facts, error: reason })
    // The job used up its time, so the tick counts as run. After any other loss it is not known how far the job came.
    if (reason.why === 'max-hold') void this.#done(facts, claim)
  }

  /** Not before `holdAtLeast` has passed. `stop()` does not wait for that: the lease then expires by itself. */
  async #release(lock: Lock, began: number): Promise<void> {
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
      unsubscribe()
      void lock.release()
    })
    const unsubscribe = onAbort(this.#stopping, leave)
    if (this.#stopping.aborted) leave()
  }
}
