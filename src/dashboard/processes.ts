import type { HolderInfo } from '../primitives/inspect.js'
import type { PublishedStats } from '../primitives/publish/stats.js'
import type { HolderRow, LimiterView, ProcessView, ScheduleView } from './protocol.js'
import { readStats } from './published.js'

/** MOST_PROCESSES: views sent to the page. A fleet of thousands is summed up, not listed. */
const MOST_PROCESSES = 200

/** The instance in the holder of one of its locks: `host:pid:uuid/7` → `host:pid:uuid`. Undefined for foreign holders. */
export function instanceOf(holder: string): string | undefined {
  return /^(.+:\d+:[0-9a-f]{8}-[0-9a-f-]{27})(\/|$)/.exec(holder)?.[1]
}

/**
 * LATE_PERIODS, LATE_MS: a process that published nothing for so many of its periods, and so much longer, is late. Its lease of
 * kind `stats` lasts for longer than that, and proves nothing any more.
 */
const LATE_PERIODS = 2
const LATE_MS = 1_000

/** One process that publishes. */
export interface PublishingProcess {
  stats: PublishedStats
  /** When its latest publication was seen. */
  seenAt: number
  /** How much later the server's clock is than the process's, as far as publications show: the least of what was seen. */
  skewMs: number
}

/** The processes that publish, with what they said last. */
export class Processes {
  #publishing = new Map<string, PublishingProcess>()
  /** Kind, name and holder of locks whose renewals fail. */
  #risks = new Set<string>()
  /** Instances whose lease of kind `stats` ended, with the moment when that was noticed. */
  readonly #ended = new Map<string, number>()

  get publishing(): ReadonlyMap<string, PublishingProcess> {
    return this.#publishing
  }

  update(holders: readonly HolderInfo[], now: number): void {
    const found = new Map<string, PublishingProcess>()
    const risks = new Set<string>()
    for (const { metadata } of holders) {
      const stats = readStats(metadata)
      if (!stats) continue
      const before = this.#publishing.get(stats.instance)
      const isNew = before?.stats.at !== stats.at
      const skewMs = Math.min(
        before?.skewMs ?? Number.POSITIVE_INFINITY,
        isNew ? now - stats.at : (before?.skewMs ?? 0),
      )
      for (const { kind, name, holder } of stats.risks) risks.add(`${kind}\0${name}\0${holder}`)
      found.set(stats.instance, { stats, seenAt: isNew ? now : (before?.seenAt ?? now), skewMs })
      this.#ended.delete(stats.instance)
    }
    for (const instance of this.#publishing.keys()) if (!found.has(instance)) this.#ended.set(instance, now)
    if (this.#ended.size > MOST_PROCESSES) this.#ended.delete(this.#ended.keys().next().value as string)
    this.#publishing = found
    this.#risks = risks
  }

  /** When it last published. Undefined if it does not, or is late. */
  publishedAt(instance: string, now: number): number | undefined {
    const found = this.#publishing.get(instance)
    if (!found || now - found.seenAt > LATE_PERIODS * found.stats.everyMs + LATE_MS) return undefined
    return found.seenAt
  }

  /** Whether the process of this holder says that it cannot renew it, and says so now. */
  isAtRisk({ kind, name, holder }: Pick<HolderRow, 'kind' | 'name' | 'holder'>, now: number): boolean {
    if (!this.#risks.has(`${kind}\0${name}\0${holder}`)) return false
    return this.publishedAt(instanceOf(holder) ?? '', now) !== undefined
  }

  /** When this instance, which had published before, was noticed not to do so any more. */
  endedAt(instance: string): number | undefined {
    return this.#ended.get(instance)
  }

  /** Those that publish, and those that were only seen to hold something. */
  views(rows: Iterable<HolderRow>, now: number): ProcessView[] {
    const views = new Map<string, ProcessView>()
    for (const [instance, { stats, seenAt, skewMs }] of this.#publishing) {
      const { startedAt, everyMs, waiting, counters } = stats
      // Of a process that is late nobody knows what became of its locks since.
      const atRisk = this.publishedAt(instance, now) === undefined ? undefined : stats.atRisk
      const times = { startedAt: startedAt + skewMs, publishedAt: seenAt, everyMs }
      views.set(instance, { instance, publishes: true, ...times, held: 0, waiting, atRisk, counters })
    }
    for (const { holder, foreign } of rows) {
      const instance = foreign ? undefined : instanceOf(holder)
      if (instance === undefined) continue
      const view = views.get(instance)
      if (view) view.held++
      else views.set(instance, { instance, publishes: false, held: 1 })
    }
    return [...views.values()]
      .sort((a, b) => b.held - a.held || (a.instance < b.instance ? -1 : 1))
      .slice(0, MOST_PROCESSES)
  }

  limiters(): LimiterView[] {
    const views = new Map<string, LimiterView>()
    for (const { stats } of this.#publishing.values()) {
      for (const { name, limits, allowed, refused } of stats.limiters) {
        const view = views.get(name) ?? { name, limits: [...limits], allowed: 0, refused: 0, processes: 0 }
        view.allowed += allowed
        view.refused += refused
        view.processes++
        views.set(name, view)
      }
    }
    return [...views.values()].sort((a, b) => b.refused - a.refused || (a.name < b.name ? -1 : 1))
  }

  schedules(): Map<string, ScheduleView> {
    const views = new Map<string, ScheduleView>()
    for (const { stats } of this.#publishing.values()) {
      for (const { name, cron, timezone, next, last } of stats.schedules) {
        const view: ScheduleView = views.get(name) ?? { name, cron, timezone, origin: 'processes', processes: 0 }
        view.processes++
        if (next !== undefined) view.next = Math.min(view.next ?? Number.POSITIVE_INFINITY, next)
        view.last = laterRun(view.last, last)
        views.set(name, view)
      }
    }
    return views
  }
}

/** Of several instances, the one that ran the latest tick knows what came of it; the others only that it ran elsewhere. */
function laterRun(one: ScheduleView['last'], other: ScheduleView['last']): ScheduleView['last'] {
  if (!one || !other) return one ?? other
  if (one.tick !== other.tick) return one.tick > other.tick ? one : other
  return one.outcome === 'elsewhere' ? other : one
}
