import type { Engine } from '../../core/engine.js'
import type { Events } from '../../core/events.js'
import type { Defaults } from '../../core/options.js'
import { UnsupportedError } from '../../errors.js'
import { ALL, type Limit } from '../../store.js'
import { formatDuration } from '../../util/duration.js'
import type { Cancel } from '../../util/world.js'
import type { Limiter } from '../limiter/limiter.js'
import type { Schedule } from '../schedule/schedule.js'
import { ScheduleStats } from './schedule-stats.js'
import {
  type PublishedLimiter,
  type PublishedRisk,
  type PublishedStats,
  StatsCollector,
  publishedRisks,
} from './stats.js'

/** LIFETIME: a lease of kind `stats` lasts for this many periods: one slow call must not make a process look dead. */
const LIFETIME = 3
/** LEAST_TTL_MS: that lease lasts at least this long, however short the period: a process that pauses is not dead. */
const LEAST_TTL_MS = 10_000
/** SOON_MS: a loss or a risk is published after this long, so that a burst of them travels in one call. */
const SOON_MS = 150
/** APART_MS: publications are this far apart at least, however much is lost. */
const APART_MS = 500
/** MOST_LIMITERS: names published at most. A limiter made for each request must not grow the lease. */
const MOST_LIMITERS = 50

/**
 * Keeps one lease of kind `stats` with the figures of this process, for dashboards. The engine does not know of this
 * lease: it raises no events but `error`, `releaseAll` leaves it alone, and `close` releases it at once, without the
 * grace of locks.
 */
export class Publisher {
  readonly #engine: Engine
  readonly #key: string
  readonly #everyMs: number
  readonly #ttlMs: number
  readonly #stats: StatsCollector
  readonly #schedules = new Set<ScheduleStats>()
  readonly #limiters = new Map<string, PublishedLimiter>()
  readonly #startedAt: number
  #lease: { owner: string; token: bigint } | undefined
  /** One owner for all attempts: what an unanswered attempt left behind is then found again. */
  #owner: string
  #cancel: Cancel | undefined
  #due = Number.POSITIVE_INFINITY
  #publishing: Promise<void> | undefined
  #publishedAt = Number.NEGATIVE_INFINITY
  /** Locks at risk in the latest publication. */
  #toldRisks = 0
  #stopped: Promise<void> | undefined

  constructor(engine: Engine, defaults: Defaults, everyMs: number) {
    const { store, world, identity, events } = engine
    const { maxTtlMs = Number.POSITIVE_INFINITY } = store
    if (!store.features.values) {
      throw new UnsupportedError(`nothing can be published: the ${store.name} store keeps no values beside its locks`)
    }
    if (everyMs * 2 > maxTtlMs) {
      const most = formatDuration(Math.floor(maxTtlMs / 2))
      throw new UnsupportedError(`publish takes at most ${most} here: the ${store.name} store keeps nothing for longer`)
    }
    this.#engine = engine
    this.#everyMs = everyMs
    this.#ttlMs = Math.min(Math.max(LIFETIME * everyMs, LEAST_TTL_MS), maxTtlMs)
    this.#key = defaults.key('stats', identity.instance)
    this.#owner = identity.next()
    this.#startedAt = world.date()
    this.#stats = new StatsCollector(() => world.date())
    this.#listen(events)
    this.#publishIn(0)
  }

  /** Follows a schedule until it stops. */
  schedule(schedule: Schedule, cron: string, timezone: string | undefined): void {
    const changed = (): void => this.#publishIn(SOON_MS)
    const stats = new ScheduleStats(schedule, { cron, timezone, changed, ended: () => this.#schedules.delete(stats) })
    this.#schedules.add(stats)
    changed()
  }

  /** Counts what all limiters of one name do in this process. */
  limiter(limiter: Limiter): void {
    const { name, limits } = limiter
    const counted = this.#limiters.get(name) ?? this.#newLimiter(name, limits)
    if (!counted) return
    counted.limits = limits
    limiter.counts = counted
  }

  #newLimiter(name: string, limits: readonly Limit[]): PublishedLimiter | undefined {
    if (this.#limiters.size >= MOST_LIMITERS) return undefined
    const counted = { name, limits, allowed: 0, refused: 0 }
    this.#limiters.set(name, counted)
    return counted
  }

  /** Ends the lease, so that dashboards do not take this process for a dead one. */
  stop(): Promise<void> {
    this.#stopped ??= this.#stop()
    return this.#stopped
  }

  async #stop(): Promise<void> {
    this.#cancel?.()
    await this.#publishing
    const { owner, token } = this.#lease ?? { owner: this.#owner, token: undefined }
    await this.#engine.batcher.release({ key: this.#key, owner, token })
  }

  #listen(events: Events): void {
    const { counters } = this.#stats
    events.on('acquired', (facts) => this.#stats.acquired(facts))
    // The end of a risk is as urgent as its beginning: somebody may be about to release the lock by force.
    const relieved = (): void => {
      if (this.#toldRisks > 0) this.#publishIn(SOON_MS)
    }
    events.on('released', (facts) => {
      this.#stats.released(facts)
      relieved()
    })
    events.on('timeout', (facts) => this.#stats.timedOut(facts))
    events.on('renewed', () => {
      counters.renewed++
      relieved()
    })
    events.on('atRisk', () => this.#publishIn(SOON_MS))
    events.on('error', () => counters.errors++)
    events.on('abandoned', () => counters.abandoned++)
    events.on('lost', (facts) => {
      this.#stats.lost(facts)
      this.#publishIn(SOON_MS)
    })
  }

  /** Publishes then, unless it is due sooner anyway. */
  #publishIn(ms: number): void {
    const { world } = this.#engine
    const at = Math.max(world.now() + ms, this.#publishedAt + Math.min(APART_MS, this.#everyMs))
    if (this.#stopped || at >= this.#due) return
    this.#cancel?.()
    this.#due = at
    this.#cancel = world.after(at - world.now(), () => {
      this.#due = Number.POSITIVE_INFINITY
      this.#publishing ??= this.#publish().finally(() => {
        this.#publishing = undefined
        this.#publishIn(this.#everyMs)
      })
    })
  }

  async #publish(): Promise<void> {
    const { batcher, events, identity, world } = this.#engine
    const key = this.#key
    const ttlMs = this.#ttlMs
    const value = JSON.stringify(this.#snapshot())
    this.#publishedAt = world.now()
    let error: unknown
    if (this.#lease) {
      const renewed = await batcher.renew({ key, ...this.#lease, ttlMs, value })
      if (renewed.outcome === 'gone') {
        this.#lease = undefined
        this.#owner = identity.next()
      } else if (renewed.outcome === 'unknown') error = renewed.error
    }
    if (!this.#lease && error === undefined) {
      const claim = { key, owner: this.#owner, weight: ALL, capacity: ALL, ttlMs, value }
      const answer = await batcher.acquire(claim)
      if (answer.granted === true) this.#lease = { owner: answer.owner, token: answer.token }
      else if (answer.granted === 'unknown') error = answer.error
    }
    if (error === undefined) return
    const facts = { name: identity.instance, kind: 'stats', metadata: undefined, doing: 'renew', error } as const
    events.emit('error', () => facts as typeof facts & { error: Error })
  }

  #snapshot(): PublishedStats {
    const { identity, world } = this.#engine
    const risks = this.#risks()
    this.#toldRisks = risks.length
    return {
      version: 1,
      instance: identity.instance,
      startedAt: this.#startedAt,
      at: world.date(),
      everyMs: this.#everyMs,
      held: this.#engine.held.size,
      waiting: count(this.#engine.waiting()),
      atRisk: risks.length,
      risks: publishedRisks(risks),
      ...this.#stats.snapshot(),
      schedules: [...this.#schedules].map((schedule) => schedule.snapshot()),
      limiters: [...this.#limiters.values()],
    }
  }

  #risks(): PublishedRisk[] {
    const date = this.#engine.world.date()
    const risks: PublishedRisk[] = []
    for (const lease of this.#engine.held.all()) {
      if (!lease.atRisk) continue
      const { request, owner: holder, token, remainingMs } = lease
      const { kind, name } = request
      risks.push({ kind, name, holder, token: String(token), ends: Math.round(date + remainingMs) })
    }
    return risks
  }
}

function count(items: Iterable<unknown>): number {
  let n = 0
  for (const _ of items) n++
  return n
}
