import { Histogram } from '../primitives/publish/histogram.js'
import type { EndedHolder } from './holders.js'
import type { PublishingProcess } from './processes.js'
import type { ContentionName, HeldPoint, HolderRow, SlotView } from './protocol.js'

/** SLOT_MS, SLOTS: as processes publish them, five minutes in stretches of 15 seconds. */
export const SLOT_MS = 15_000
const SLOTS = 20
/** POINT_MS: one point of the curve of held and waiting. */
const POINT_MS = 1_000
/** NAMES_SHOWN: most waited-for names that the page gets. */
const NAMES_SHOWN = 20
/** NAMES_KEPT: names whose waiters are counted in one stretch. */
const NAMES_KEPT = 2_000

interface SampledSlot {
  at: number
  hold: Histogram
  /** Milliseconds that waiters were seen to wait, by kind and name. */
  waited: Map<string, { kind: string; name: string; ms: number }>
}

/** How much is waited, and how long locks are held: by what was seen in the store, and by what processes publish. */
export class Contention {
  #slots: SampledSlot[] = []
  #points: HeldPoint[] = []
  #sampledAt: number | undefined

  get points(): HeldPoint[] {
    return this.#points
  }

  /** Samples were not taken for a while: what was waited meanwhile is not known. */
  pause(): void {
    this.#sampledAt = undefined
  }

  update(rows: Iterable<HolderRow>, ended: readonly EndedHolder[], now: number): HeldPoint {
    const slot = this.#slot(now)
    for (const { row, seenAt } of ended) if (row.since !== undefined) slot.hold.add(seenAt - row.since)
    const elapsed = this.#sampledAt === undefined ? 0 : now - this.#sampledAt
    this.#sampledAt = now
    let held = 0
    const waiting = new Map<string, HolderRow>()
    for (const row of rows) {
      held++
      // All readers of a name have the same queue. Candidates of an election wait for as long as it has a leader.
      if (row.waiting > 0 && row.kind !== 'election') waiting.set(`${row.kind}:${row.name}`, row)
    }
    let all = 0
    for (const [key, row] of waiting) {
      all += row.waiting
      const known = slot.waited.get(key)
      if (known) known.ms += row.waiting * elapsed
      else if (slot.waited.size < NAMES_KEPT)
        slot.waited.set(key, { kind: row.kind, name: row.name, ms: row.waiting * elapsed })
    }
    const point: HeldPoint = [now, held, all]
    if (now - (this.#points.at(-1)?.[0] ?? 0) >= POINT_MS - 50) this.#points.push(point)
    while ((this.#points[0]?.[0] ?? now) < now - SLOTS * SLOT_MS) this.#points.shift()
    return point
  }

  /** Percentiles of each stretch by what was seen in the store. Waits are not known there. */
  sampled(): SlotView[] {
    return this.#slots.map(({ at, hold }) => ({ at, hold: percentiles(hold), timeouts: 0, lost: 0 }))
  }

  /** The same by what processes publish, added up. */
  published(processes: Iterable<PublishingProcess>, now: number): SlotView[] {
    const sums = new Map<number, { wait: Histogram; hold: Histogram; timeouts: number; lost: number }>()
    for (const { stats, skewMs } of processes) {
      for (const slot of stats.slots) {
        const at = Math.round((slot.at + skewMs) / SLOT_MS) * SLOT_MS
        if (at < now - (SLOTS + 1) * SLOT_MS || at > now + SLOT_MS) continue
        const sum = sums.get(at) ?? { wait: new Histogram(), hold: new Histogram(), timeouts: 0, lost: 0 }
        sum.wait.merge(slot.wait)
        sum.hold.merge(slot.hold)
        sum.timeouts += slot.timeouts
        sum.lost += slot.lost
        sums.set(at, sum)
      }
    }
    return [...sums]
      .sort(([a], [b]) => a - b)
      .map(([at, { wait, hold, timeouts, lost }]) => ({
        at,
        wait: percentiles(wait),
        hold: percentiles(hold),
        timeouts,
        lost,
      }))
  }

  /** The most waited-for names: exact sums of those who publish, else what was seen in the store. */
  names(rows: Iterable<HolderRow>, processes: Iterable<PublishingProcess>): ContentionName[] {
    const names = new Map<string, ContentionName>()
    for (const { waited } of this.#slots) {
      for (const [key, { kind, name, ms }] of waited) {
        const known = names.get(key)
        if (known) known.waitMs += ms
        else names.set(key, { kind, name, origin: 'store', waiting: 0, waitMs: ms })
      }
    }
    const exact = new Map<string, ContentionName>()
    for (const { stats } of processes) {
      for (const { kind, name, waitMs, acquired, timeouts } of stats.names) {
        const key = `${kind}:${name}`
        const sum = exact.get(key) ?? {
          kind,
          name,
          origin: 'processes',
          waiting: 0,
          waitMs: 0,
          acquired: 0,
          timeouts: 0,
        }
        sum.waitMs += waitMs
        sum.acquired = (sum.acquired ?? 0) + acquired
        sum.timeouts = (sum.timeouts ?? 0) + timeouts
        exact.set(key, sum)
      }
    }
    for (const [key, sum] of exact) {
      // Waits that are not over are in no published figure yet, and others may not publish at all: the larger sum is nearer.
      if (sum.waitMs >= (names.get(key)?.waitMs ?? 0)) names.set(key, sum)
      else Object.assign(names.get(key) as ContentionName, { acquired: sum.acquired, timeouts: sum.timeouts })
    }
    for (const { kind, name, waiting } of rows) {
      const known = waiting > 0 ? names.get(`${kind}:${name}`) : undefined
      if (known) known.waiting = waiting
    }
    return [...names.values()]
      .filter(({ waitMs, waiting, timeouts = 0 }) => waitMs >= 1 || waiting > 0 || timeouts > 0)
      .sort((a, b) => b.waitMs - a.waitMs)
      .slice(0, NAMES_SHOWN)
      .map((each) => ({ ...each, waitMs: Math.round(each.waitMs) }))
  }

  #slot(now: number): SampledSlot {
    const at = Math.floor(now / SLOT_MS) * SLOT_MS
    const last = this.#slots.at(-1)
    if (last && at <= last.at) return last
    const slot: SampledSlot = { at, hold: new Histogram(), waited: new Map() }
    this.#slots.push(slot)
    this.#slots = this.#slots.filter((each) => each.at > at - SLOTS * SLOT_MS)
    return slot
  }
}

function percentiles(histogram: Histogram): [number, number, number] | undefined {
  if (histogram.total === 0) return undefined
  return [0.5, 0.95, 0.99].map((share) => Math.round(histogram.percentile(share) ?? 0)) as [number, number, number]
}
