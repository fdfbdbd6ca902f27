import { AsyncLocalStorage } from 'node:async_hooks'
import type { Ask } from '../core/ask.js'
import type { Engine } from '../core/engine.js'
import { leaseOf } from '../core/lock.js'
import type { Defaults } from '../core/options.js'
import { ClosedError, InvalidOptionError, UnsupportedError } from '../errors.js'
import { StoreClock } from './schedule-clock.js'
import { Ticks } from './schedule-cron.js'
import { ScheduleBell, type ScheduleEvents } from './schedule-events.js'
import { type ScheduleOptions, type ScheduleTerms, termsFrom } from './schedule-options.js'
import { type Job, Runs } from './schedule-run.js'
import { TickClaims, type TickTimes } from './schedule-tick.js'

/** The schedule whose job we are in. */
const runningIn = new AsyncLocalStorage<Schedule>()

/** The store is asked for its time again when the last answer is older than this. */
const CLOCK_AGE_MS = 10_000
/** Before a long sleep ends, look again: clocks drift. */
const LONG_SLEEP_MS = 20_000
/** A tick that starts later than half the time to the next is missed, but these are the bounds of that. */
const LEAST_LATE_MS = 5_000
const MOST_LATE_MS = 300_000
/** While the store does not answer. */
const RETRY_EVERY_MS = 1_000
/** How long it is remembered that a schedule exists, to tell a tick that was missed from one before its time. */
const REMEMBER_MS = 400 * 86_400_000

/**
 * A job that runs at the times of a cron expression: at most one start per tick, whatever the number of instances and
 * however wrong their clocks.
 *
 * @example
 * ```ts
 * const nightly = locks.schedule('report', '0 3 * * *', async ({ tick, signal }) => report(tick, { signal }), {
 *   timezone: 'Europe/Berlin',
 * })
 * nightly.on('failed', ({ tick, error }) => alert(tick, error))
 * await nightly.stop()
 * ```
 */
export class Schedule {
  readonly name: string
  readonly #engine: Engine
  readonly #ask: Ask
  readonly #terms: ScheduleTerms
  readonly #ticks: Ticks
  readonly #clock: StoreClock
  readonly #bell = new ScheduleBell()
  readonly #claims: TickClaims
  readonly #runs: Runs
  readonly #stopping = new AbortController()
  /** Ticks that are being claimed, or run. */
  readonly #active = new Set<Promise<void>>()

  /** @internal */
  constructor(engine: Engine, defaults: Defaults, plan: SchedulePlan, closing: AbortSignal) {
    const { name, cron, job, options } = plan
    if (!engine.store.features.values || !engine.store.now) {
      throw new UnsupportedError(
        `a schedule needs a store that has a clock and remembers ticks, and the ${engine.store.name} store has not: use memory, sqlite, redis or postgres`,
      )
    }
    if (closing.aborted) throw new ClosedError(`"${name}" cannot be scheduled: locks.close() was called`)
    if (typeof job !== 'function') throw new InvalidOptionError('fn', job, 'a function to run at each tick')
    this.#terms = termsFrom(options)
    this.#ticks = new Ticks(cron, this.#terms.timezone)
    this.name = name
    this.#engine = engine
    this.#clock = new StoreClock(engine)
    this.#ask = askFrom(defaults, name, options, this.#terms)
    const stopping = this.#stopping.signal
    const tools = { engine, ask: this.#ask, clock: this.#clock, bell: this.#bell, stopping }
    this.#claims = new TickClaims({ ...tools, retries: this.#terms.retries })
    this.#runs = new Runs({ ...tools, job, terms: this.#terms })
    const close = (): void => this.#stopping.abort(closing.reason)
    closing.addEventListener('abort', close, { once: true, signal: stopping })
    void this.#follow()
  }

  /** The next times it is due. */
  next(count = 1): Date[] {
    if (!Number.isInteger(count) || count < 1 || count > 10_000) {
      throw new InvalidOptionError('count', count, 'a whole number from 1 to 10000')
    }
    const dates: Date[] = []
    let at: number | undefined = this.#clock.last
    while (dates.length < count) {
      at = this.#ticks.after(at)
      if (at === undefined) break
      dates.push(new Date(at))
    }
    return dates
  }

  on<E extends keyof ScheduleEvents>(event: E, listener: (facts: ScheduleEvents[E]) => void): this {
    this.#bell.on(event, listener)
    return this
  }

  off<E extends keyof ScheduleEvents>(event: E, listener: (facts: ScheduleEvents[E]) => void): this {
    this.#bell.off(event, listener)
    return this
  }

  /**
   * Starts nothing more, and resolves when the job that runs has ended; called by that job itself, at once. The other
   * instances go on.
   */
  async stop(): Promise<void> {
    this.#stopping.abort(new ClosedError(`"${this.name}" stops`))
    // A job that stops its own schedule would wait for itself.
    if (runningIn.getStore() === this) return
    while (this.#active.size > 0) await Promise.all(this.#active)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop()
  }

  /** From tick to tick, until stopped. */
  async #follow(): Promise<void> {
    let seen = await this.#begin()
    while (seen !== undefined) {
      const next = this.#ticks.after(seen)
      seen = next === undefined ? undefined : await this.#untilDue(next)
      if (next !== undefined && seen !== undefined) this.#handle(next, seen)
    }
  }

  /** The store's time now. Undefined: stopped before it could be had. */
  async #begin(): Promise<number | undefined> {
    while (!this.#stopping.signal.aborted) {
      const now = await this.#storeTime(CLOCK_AGE_MS)
      if (now !== undefined && (!this.#terms.catchesUp || (await this.#catchUp(now)))) return now
      await this.#sleep(RETRY_EVERY_MS)
    }
    return undefined
  }

  /**
   * Sleeps until the store's clock has reached this tick, and says what it shows then. How long to sleep is reckoned; that
   * the time has come only the store can say, whose clock may have been set back meanwhile.
   */
  async #untilDue(tick: number): Promise<number | undefined> {
    let reckoned = true
    while (!this.#stopping.signal.aborted) {
      const now = await this.#storeTime(reckoned ? CLOCK_AGE_MS : 0)
      if (this.#stopping.signal.aborted) break
      if (now === undefined) await this.#sleep(RETRY_EVERY_MS)
      else if (now < tick) await this.#sleep(tick - now > LONG_SLEEP_MS ? (tick - now) * 0.9 : tick - now)
      else if (!reckoned) return now
      reckoned = now === undefined || now < tick
    }
    return undefined
  }

  /** Everything due from `first` until now: usually that one. More if this process, or the store, was away for a while. */
  #handle(first: number, now: number): void {
    const latest = this.#ticks.upTo(now) ?? first
    const lateBy = this.#lateBy(latest)
    const due: number[] = []
    let tick = this.#ticks.after(Math.max(first, now - lateBy) - 1)
    for (; tick !== undefined && tick <= now; tick = this.#ticks.after(tick)) due.push(tick)
    if (due[0] !== first) {
      const last = due[0] === undefined ? latest : (this.#ticks.upTo(due[0] - 1) ?? first)
      this.#bell.ring('missed', { name: this.name, tick: new Date(last), first: new Date(first) })
      // Those that are due now run anyway, and one run is enough.
      if (this.#terms.catchesUp && due.length === 0) this.#start(last, this.#nextOf(last))
    }
    for (const at of due) this.#start(at, at + lateBy)
  }

  #start(at: number, startBy: number): void {
    const times: TickTimes = { at, next: this.#nextOf(at), startBy }
    const active = runningIn
      .run(this, () => this.#claims.claim(times).then((claim) => claim && this.#runs.run(times, claim)))
      .catch((error: unknown) =>
        this.#bell.ring('error', { name: this.name, tick: new Date(at), error: error as Error }),
      )
      .finally(() => this.#active.delete(active))
    this.#active.add(active)
  }

  /** The last tick, if it came while the schedule existed and nobody was there. False: the store did not answer. */
  async #catchUp(now: number): Promise<boolean> {
    const last = this.#ticks.upTo(now)
    if (last === undefined) return true
    try {
      if ((await this.#knownSince(now)) <= last) this.#start(last, this.#nextOf(last))
      return true
    } catch (error) {
      this.#bell.ring('error', { name: this.name, tick: new Date(last), error: error as Error })
      return false
    }
  }

  /** Since when the schedule exists, which whoever comes first writes down: what was due before that was not missed. */
  async #knownSince(now: number): Promise<number> {
    const { store, courier } = this.#engine
    const key = `${this.#ask.key}@since`
    const ttlMs = Math.min(REMEMBER_MS, store.maxTtlMs ?? REMEMBER_MS)
    const view = await this.#engine.look('a schedule that catches up', (asked) => asked.inspect?.(key))
    const [holder] = view.holders
    if (holder?.value !== undefined) {
      await courier.renew({ key, owner: holder.owner, ttlMs })
      return Date.parse((JSON.parse(holder.value) as { since: string }).since)
    }
    const value = JSON.stringify({ since: new Date(now).toISOString() })
    const note = await this.#engine.tryAcquire({
      ...this.#ask,
      key,
      ttlMs,
      value,
      autoRenew: false,
      maxHoldMs: undefined,
    })
    if (note) leaseOf(note).leave()
    return now
  }

  async #storeTime(oldest: number): Promise<number | undefined> {
    try {
      return await this.#clock.now(oldest)
    } catch (error) {
      this.#bell.ring('error', { name: this.name, tick: undefined, error: error as Error })
      return undefined
    }
  }

  #nextOf(tick: number): number {
    return this.#ticks.after(tick) ?? tick + 86_400_000
  }

  #lateBy(tick: number): number {
    return Math.min(Math.max((this.#nextOf(tick) - tick) / 2, LEAST_LATE_MS), MOST_LATE_MS)
  }

  #sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const { signal } = this.#stopping
      const wake = (): void => {
        cancel()
        signal.removeEventListener('abort', wake)
        resolve()
      }
      const cancel = this.#engine.world.after(ms, wake)
      signal.addEventListener('abort', wake)
    })
  }
}

/** What `locks.schedule` was given. */
interface SchedulePlan {
  name: string
  cron: string
  job: Job
  options: ScheduleOptions
}

/** For the lock of the one who runs the job. An instance that dies keeps it for a ttl, and so for at least `holdAtLeast`. */
function askFrom(defaults: Defaults, name: string, { ttl, maxHold }: ScheduleOptions, terms: ScheduleTerms): Ask {
  const ask = defaults.ask('schedule', name, {
    ...(ttl === undefined ? {} : { ttl }),
    ...(maxHold === undefined ? {} : { maxHold }),
  })
  return { ...ask, ttlMs: Math.max(ask.ttlMs, Math.ceil(terms.holdAtLeastMs)) }
}
