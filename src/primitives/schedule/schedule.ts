import { AsyncLocalStorage } from 'node:async_hooks'
import type { AcquireRequest } from '../../core/request.js'
import { onAbort } from '../../core/abort-fanout.js'
import type { Engine } from '../../core/engine.js'
import { leaseOf } from '../../core/lock.js'
import type { Defaults } from '../../core/options.js'
import { ClosedError, InvalidOptionError, UnsupportedError } from '../../errors.js'
import { formatDuration } from '../../util/duration.js'
import { keepAlive } from '../../util/keep-alive.js'
import { StoreClock } from './clock.js'
import { Ticks } from './cron.js'
import { ScheduleEmitter, type ScheduleEvents } from './events.js'
import { type ScheduleOptions, type ScheduleTerms, termsFrom } from './options.js'
import { type ScheduledJob, ScheduledRuns } from './run.js'
import { TickClaims, type TickTimes } from './tick.js'
import { SUPPORTED_BY } from '../supported-by.js'

/** The schedule whose job the current call runs in. */
const runningIn = new AsyncLocalStorage<Schedule>()

/** Age in milliseconds from which the store is asked for its time again: clocks drift apart meanwhile. */
const CLOCK_AGE_MS = 10_000
/** Sleeps longer than this, in milliseconds, end after 90 %, to read the store's clock once more: clocks drift. */
const LONG_SLEEP_MS = 20_000
/** A tick is missed when half the time to the next has passed. These bound that, in milliseconds. */
const LEAST_LATE_MS = 5_000
const MOST_LATE_MS = 300_000
/** Pause in milliseconds between attempts while the store does not answer. */
const RETRY_EVERY_MS = 1_000
/**
 * Milliseconds for which the store remembers since when a schedule exists, to tell a missed tick from one that was due before.
 * More than a year: a yearly schedule would otherwise forget it between two ticks.
 */
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
  readonly #request: AcquireRequest
  readonly #terms: ScheduleTerms
  readonly #ticks: Ticks
  readonly #clock: StoreClock
  readonly #emitter = new ScheduleEmitter()
  readonly #claims: TickClaims
  readonly #runs: ScheduledRuns
  readonly #stopping = new AbortController()
  /** Ticks that are being claimed, or run. */
  readonly #active = new Set<Promise<void>>()

  /** @internal */
  constructor(engine: Engine, defaults: Defaults, plan: SchedulePlan, closing: AbortSignal) {
    const { name, cron, job, options } = plan
    if (!engine.store.features.values) {
      throw new UnsupportedError(
        `a schedule needs a store that has a clock and remembers ticks, and the ${engine.store.name} store has not: use ${SUPPORTED_BY.schedule}`,
      )
    }
    const terms = termsFrom(options)
    if (!engine.store.now && !terms.localClock) {
      throw new UnsupportedError(
        `a schedule needs a clock, and the ${engine.store.name} store has none: use ${SUPPORTED_BY.schedule}, or { clock: 'local' } for the clock of each instance`,
      )
    }
    if (engine.store.maxTtlMs !== undefined) {
      throw new UnsupportedError(
        `a schedule needs a store with one clock that remembers a tick until nobody would start it any more, and the ${engine.store.name} store keeps nothing for longer than ${formatDuration(engine.store.maxTtlMs)}: use ${SUPPORTED_BY.schedule}`,
      )
    }
    if (closing.aborted) throw new ClosedError(`"${name}" cannot be scheduled: locks.close() was called`)
    if (typeof job !== 'function') throw new InvalidOptionError('fn', job, 'a function to run at each tick')
    this.#terms = terms
    this.#ticks = new Ticks(cron, this.#terms.timezone)
    this.name = name
    this.#engine = engine
    this.#clock = new StoreClock(engine, terms.localClock)
    this.#request = requestFrom(defaults, name, options, this.#terms)
    const stopping = this.#stopping.signal
    const tools = { engine, request: this.#request, clock: this.#clock, emitter: this.#emitter, stopping }
    this.#claims = new TickClaims({ ...tools, retries: this.#terms.retries })
    this.#runs = new ScheduledRuns({ ...tools, job, terms: this.#terms })
    const unsubscribe = onAbort(closing, () => this.#stopping.abort(closing.reason))
    onAbort(stopping, unsubscribe)
    // Without this, a program whose only work is a schedule would end before its first tick. `unref: true` turns it off.
    const letProcessEnd = this.#terms.unref ? undefined : keepAlive()
    void this.#follow().finally(() => letProcessEnd?.())
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
    this.#emitter.on(event, listener)
    return this
  }

  off<E extends keyof ScheduleEvents>(event: E, listener: (facts: ScheduleEvents[E]) => void): this {
    this.#emitter.off(event, listener)
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

  /** @internal */
  observe(observer: ScheduleEmitter['observer']): void {
    this.#emitter.observer = observer
  }

  /** @internal */
  get stopping(): AbortSignal {
    return this.#stopping.signal
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
   * Sleeps until the store's clock has reached this tick, and returns its reading. The length of the sleep is computed, but
   * that the tick is due is asked of the store: its clock may have been set back meanwhile.
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
      this.#emitter.notify('missed', { name: this.name, tick: new Date(last), first: new Date(first) })
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
        this.#emitter.notify('error', { name: this.name, tick: new Date(at), error: error as Error }),
      )
      .finally(() => this.#active.delete(active))
    this.#active.add(active)
  }

  /** Starts the last tick if the schedule existed then and no instance ran. False: the store did not answer. */
  async #catchUp(now: number): Promise<boolean> {
    const last = this.#ticks.upTo(now)
    if (last === undefined) return true
    try {
      if ((await this.#knownSince(now)) <= last) this.#start(last, this.#nextOf(last))
      return true
    } catch (error) {
      this.#emitter.notify('error', { name: this.name, tick: new Date(last), error: error as Error })
      return false
    }
  }

  /** Since when the schedule exists. The first instance records it: ticks that were due before that were not missed. */
  async #knownSince(now: number): Promise<number> {
    const { batcher } = this.#engine
    const key = `${this.#request.key}@since`
    const ttlMs = REMEMBER_MS
    const view = await this.#engine.read('a schedule that catches up', (asked) => asked.inspect?.(key))
    const [holder] = view.holders
    if (holder?.value !== undefined) {
      await batcher.renew({ key, owner: holder.owner, ttlMs })
      return Date.parse((JSON.parse(holder.value) as { since: string }).since)
    }
    const value = JSON.stringify({ since: new Date(now).toISOString() })
    const note = await this.#engine.tryAcquire({
      ...this.#request,
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
      this.#emitter.notify('error', { name: this.name, tick: undefined, error: error as Error })
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
      const wake = (): void => {
        cancel()
        unsubscribe()
        resolve()
      }
      const cancel = this.#engine.world.after(ms, wake)
      const unsubscribe = onAbort(this.#stopping.signal, wake)
    })
  }
}

/** What `locks.schedule` was given. */
interface SchedulePlan {
  name: string
  cron: string
  job: ScheduledJob
  options: ScheduleOptions
}

/** For the lock that is held while the job runs. An instance that dies keeps it for a ttl, and so for at least `holdAtLeast`. */
function requestFrom(
  defaults: Defaults,
  name: string,
  { ttl, maxHold }: ScheduleOptions,
  terms: ScheduleTerms,
): AcquireRequest {
  const request = defaults.buildRequest('schedule', name, {
    ...(ttl === undefined ? {} : { ttl }),
    ...(maxHold === undefined ? {} : { maxHold }),
  })
  return { ...request, ttlMs: Math.max(request.ttlMs, Math.ceil(terms.holdAtLeastMs)) }
}
