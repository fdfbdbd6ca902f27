import type { HolderInfo } from '../primitives/inspect.js'
import type { HolderChanges, HolderRow } from './protocol.js'
import { type HealthFacts, healthOf } from './health.js'

/** A holder as long as it is seen. */
export interface TrackedHolder extends HealthFacts {
  row: HolderRow
  /** What the page was last told: without the times that a renewal changes. */
  told: string
  toldEnds: number | undefined
  toldRenewedAt: number | undefined
}

/** A holder that is no longer there. */
export interface EndedHolder {
  row: HolderRow
  /** When it was last seen. */
  seenAt: number
  /** It should have renewed before it ended, and its time had passed. */
  ranOut: boolean
}

/**
 * RENEWED_SHARE: an end that moved by more than this share of the time left is a renewal (one moves it by a third); less is a slow
 * answer of the store. LEAST_MOVE_MS and MOST_MOVE_MS bound that in milliseconds: answers take at most two seconds.
 */
const RENEWED_SHARE = 0.1
const LEAST_MOVE_MS = 60
const MOST_MOVE_MS = 2_000
/** GAP_MS: after a longer time without a sample, nobody knows how what was seen before has ended. */
export const GAP_MS = 5_000
/** LONGEST_METADATA: characters of JSON that are sent to the page. Other programs may have written more than we allow. */
const LONGEST_METADATA = 4_096

/** What is needed to judge a holder, besides what the store says of it. */
export interface HealthSources {
  publishedAt: (holder: string) => number | undefined
  publishingEndedAt: (holder: string) => number | undefined
  process: (holder: string) => 'running' | 'missing' | undefined
  atRisk: (row: HolderRow) => boolean
  sessions: boolean
}

/** All holders that are seen in the store, and what changes among them from sample to sample. */
export class TrackedHolders {
  readonly #tracked = new Map<string, TrackedHolder>()
  readonly #sources: HealthSources
  #nextId = 1
  #sampledAt = 0

  constructor(sources: HealthSources) {
    this.#sources = sources
  }

  get size(): number {
    return this.#tracked.size
  }

  *rows(): Generator<HolderRow> {
    for (const { row } of this.#tracked.values()) yield row
  }

  clear(): void {
    this.#tracked.clear()
  }

  /** Takes over a sample. */
  update(
    holders: readonly HolderInfo[],
    now: number,
  ): { changes: HolderChanges; ended: EndedHolder[]; begun: HolderRow[] } {
    const changes: HolderChanges = { now, rows: [], gone: [], renewed: [] }
    const begun: HolderRow[] = []
    const seen = new Set<string>()
    for (const info of holders) {
      const key = `${info.kind}\0${info.name}\0${info.holder}\0${info.fencingToken ?? ''}`
      seen.add(key)
      let tracked = this.#tracked.get(key)
      if (tracked) follow(tracked, info, now)
      else {
        this.#tracked.set(key, (tracked = this.#begin(info, now)))
        begun.push(tracked.row)
      }
      this.#judge(tracked, now)
      tell(tracked, changes)
    }
    const ended: EndedHolder[] = []
    const isGap = now - this.#sampledAt > GAP_MS
    for (const [key, tracked] of this.#tracked) {
      if (seen.has(key)) continue
      this.#tracked.delete(key)
      changes.gone.push(tracked.row.id)
      if (!isGap) ended.push({ row: tracked.row, seenAt: this.#sampledAt, ranOut: ranOut(tracked, now) })
    }
    this.#sampledAt = now
    return { changes, ended, begun }
  }

  #begin(info: HolderInfo, now: number): TrackedHolder {
    const { kind, name, holder, mode, weight, capacity, fencingToken, acquiredAt, expiresAt, waiting, detail } = info
    const ends = expiresAt?.getTime()
    const row: HolderRow = {
      id: this.#nextId++,
      kind,
      name,
      holder,
      mode,
      weight: kind === 'semaphore' ? weight : undefined,
      capacity,
      token: fencingToken === undefined ? undefined : String(fencingToken),
      since: acquiredAt?.getTime(),
      ends,
      ttlMs: ends === undefined ? undefined : Math.max(ends - now, 1),
      metadata: metadataOf(info.metadata),
      foreign: info.foreign || undefined,
      waiting,
      detail,
      health: { state: 'unknown' },
    }
    return { row, firstSeenAt: now, renewedAt: undefined, told: '', toldEnds: undefined, toldRenewedAt: undefined }
  }

  #judge(tracked: TrackedHolder, now: number): void {
    const { row } = tracked
    const { publishedAt, publishingEndedAt, process, atRisk, sessions } = this.#sources
    row.health = healthOf(row, tracked, now, {
      publishedAt: publishedAt(row.holder),
      publishingEndedAt: publishingEndedAt(row.holder),
      process: row.foreign ? undefined : process(row.holder),
      session: sessions,
      atRisk: atRisk(row),
    })
  }
}

function follow(tracked: TrackedHolder, info: HolderInfo, now: number): void {
  const { row } = tracked
  row.waiting = info.waiting
  const metadata = metadataOf(info.metadata)
  if (metadata !== row.metadata) row.metadata = metadata
  row.detail = info.detail
  const ends = info.expiresAt?.getTime()
  if (ends !== undefined && row.ends !== undefined) {
    const left = ends - now
    const moved = Math.max(LEAST_MOVE_MS, Math.min(left * RENEWED_SHARE, MOST_MOVE_MS))
    if (ends - row.ends > moved) {
      tracked.renewedAt = now
      row.ttlMs = Math.max(left, 1)
    }
  }
  row.ends = ends
}

/** A change that only a renewal makes travels as three numbers: thousands of locks are renewed all the time. */
function tell(tracked: TrackedHolder, changes: HolderChanges): void {
  const { row } = tracked
  const { health, waiting, metadata, detail } = row
  const { renewedAt } = health
  const told = `${waiting} ${health.state} ${health.process} ${health.publishedAt === undefined} ${metadata} ${detail && JSON.stringify(detail)}`
  if (told !== tracked.told) changes.rows.push(row)
  else if (renewedAt !== tracked.toldRenewedAt && row.ends !== undefined && renewedAt !== undefined) {
    changes.renewed.push([row.id, row.ends, renewedAt])
  } else if (row.ends !== tracked.toldEnds && Math.abs((row.ends ?? 0) - (tracked.toldEnds ?? 0)) > 250) {
    changes.rows.push(row)
  } else return
  tracked.told = told
  tracked.toldEnds = row.ends
  tracked.toldRenewedAt = renewedAt
}

/** Unknown unless it was seen to miss its renewals: a lock that is released in its last moments looks the same otherwise. */
function ranOut({ row }: TrackedHolder, now: number): boolean {
  return row.ends !== undefined && row.ends <= now && ['at-risk', 'silent', 'gone'].includes(row.health.state)
}

/** As JSON, for the page. */
export function metadataOf(metadata: unknown): string | undefined {
  if (metadata === undefined || metadata === null) return undefined
  return JSON.stringify(metadata)?.slice(0, LONGEST_METADATA)
}
