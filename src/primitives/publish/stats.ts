import type { LockEvents } from '../../core/events.js'
import type { RenewalAttempt } from '../../errors.js'
import type { Limit } from '../../store.js'
import { Histogram } from './histogram.js'

/** What one process publishes about itself, as JSON in its lease of kind `stats`. Times are epoch milliseconds by its own clock. */
export interface PublishedStats {
  version: 1
  instance: string
  startedAt: number
  at: number
  everyMs: number
  /** Now. */
  held: number
  waiting: number
  /** Of those held: renewals fail, and it is lost unless one works again. */
  atRisk: number
  /** Those that end first. */
  risks: PublishedRisk[]
  /** Since the start. */
  counters: StatsCounters
  lostBy: Record<string, number>
  wait: number[]
  hold: number[]
  /** Sums of those, in milliseconds: exact, unlike the buckets. */
  waitMs: number
  holdMs: number
  /** The last minutes in stretches of `slotMs`, the oldest first. */
  slotMs: number
  slots: { at: number; wait: number[]; hold: number[]; timeouts: number; lost: number }[]
  /** The names that were waited for longest in the last minutes. */
  names: NameStats[]
  /** The latest losses, the oldest first. */
  losses: PublishedLoss[]
  schedules: PublishedSchedule[]
  limiters: PublishedLimiter[]
}

export type StatsCounters = Record<
  'acquired' | 'released' | 'renewed' | 'lost' | 'timeouts' | 'abandoned' | 'errors',
  number
>

export interface NameStats {
  kind: string
  name: string
  acquired: number
  timeouts: number
  lost: number
  /** The sum of all waits. */
  waitMs: number
}

/** A lock whose renewals fail. */
export interface PublishedRisk {
  kind: string
  name: string
  holder: string
  token: string
  /** When it is lost unless a renewal works again. */
  ends: number
}

/** One attempt to renew a lock that was lost in the end. */
export interface PublishedAttempt {
  at: number
  outcome: string
  tookMs: number
  error?: string | undefined
}

export interface PublishedLoss {
  at: number
  kind: string
  name: string
  holder: string
  token: string
  heldMs: number
  why?: string | undefined
  message?: string | undefined
  /** The longest time since the last good renewal for which the event loop did not turn. */
  stalledMs?: number | undefined
  lastRenewedMsAgo?: number | undefined
  /** The last attempts to renew it, the oldest first. Of the latest losses only. */
  attempts?: PublishedAttempt[] | undefined
}

export interface PublishedSchedule {
  name: string
  cron: string
  timezone?: string | undefined
  /** When it is due next; absent: never again. */
  next?: number | undefined
  /** The latest tick that this process knows the outcome of. */
  last?: { tick: number; outcome: string; tookMs?: number | undefined; error?: string | undefined } | undefined
}

export interface PublishedLimiter {
  name: string
  limits: readonly Limit[]
  allowed: number
  refused: number
}

/** SLOT_MS: length of one stretch of a chart. Shorter ones are mostly empty, longer ones hide a burst. */
const SLOT_MS = 15_000
/** SLOTS: five minutes of stretches. */
const SLOTS = 20
/** NAMES_KEPT: names counted one by one in half of the last minutes. A program with a name per order has no end of them. */
const NAMES_KEPT = 1_000
/** NAMES_SHOWN, RISKS_SHOWN, LOSSES_SHOWN: published at most, so that the lease stays below some 20 KB. */
const NAMES_SHOWN = 25
const RISKS_SHOWN = 25
const LOSSES_SHOWN = 25
/** LOSSES_EXPLAINED: so many of the latest losses carry their attempts, for the same reason: a dashboard keeps what it has read. */
const LOSSES_EXPLAINED = 5
/** LONGEST_TEXT: names and messages are cut here in what is published, for the same reason. */
const LONGEST_TEXT = 255
const LONGEST_MESSAGE = 200
const LONGEST_REASON = 100

/** Candidates wait for hours, and runs of schedules are told by themselves: both would drown what callers wait for. */
const NOT_MEASURED = new Set(['election', 'schedule'])

interface Slot {
  at: number
  wait: Histogram
  hold: Histogram
  timeouts: number
  lost: number
}

/** Counts what happens in one process. */
export class StatsCollector {
  readonly counters: StatsCounters = {
    acquired: 0,
    released: 0,
    renewed: 0,
    lost: 0,
    timeouts: 0,
    abandoned: 0,
    errors: 0,
  }
  readonly #now: () => number
  readonly #lostBy = new Map<string, number>()
  readonly #wait = new Histogram()
  readonly #hold = new Histogram()
  readonly #losses: PublishedLoss[] = []
  #slots: Slot[] = []
  /** Two halves of the last minutes: the older one is dropped as a whole. */
  #names = { since: 0, now: new Map<string, NameStats>(), before: new Map<string, NameStats>() }

  constructor(now: () => number) {
    this.#now = now
  }

  acquired({ kind, name, waitedMs }: LockEvents['acquired']): void {
    this.counters.acquired++
    if (!NOT_MEASURED.has(kind)) this.#waited(kind, name, waitedMs, 'acquired')
  }

  /** A wait in vain is a wait: without it, percentiles would look best when nobody gets the lock. */
  timedOut({ kind, name, waitedMs }: LockEvents['timeout']): void {
    this.counters.timeouts++
    this.#slot().timeouts++
    this.#waited(kind, name, waitedMs, 'timeouts')
  }

  released({ kind, heldMs }: LockEvents['released']): void {
    this.counters.released++
    if (!NOT_MEASURED.has(kind)) this.#held(heldMs)
  }

  lost(facts: LockEvents['lost'] & { why?: string }): void {
    const { kind, name, holder, fencingToken, heldMs, error } = facts
    const why = facts.why ?? error.why
    this.counters.lost++
    this.#lostBy.set(why, (this.#lostBy.get(why) ?? 0) + 1)
    this.#slot().lost++
    if (!NOT_MEASURED.has(kind)) {
      this.#held(heldMs)
      this.#count(kind, name, 'lost')
    }
    this.#losses.push({
      at: this.#now(),
      kind,
      name: cut(name, LONGEST_TEXT),
      holder,
      token: String(fencingToken),
      heldMs,
      why,
      message: cut(error.message, LONGEST_MESSAGE),
      stalledMs: Math.round(facts.stalledMs),
      lastRenewedMsAgo: facts.lastRenewedMsAgo === undefined ? undefined : Math.round(facts.lastRenewedMsAgo),
      attempts: facts.attempts.map(publishedAttempt),
    })
    if (this.#losses.length > LOSSES_SHOWN) this.#losses.shift()
    const explained = this.#losses.at(-LOSSES_EXPLAINED - 1)
    if (explained) explained.attempts = undefined
  }

  snapshot(): Pick<
    PublishedStats,
    'counters' | 'lostBy' | 'wait' | 'hold' | 'waitMs' | 'holdMs' | 'slotMs' | 'slots' | 'names' | 'losses'
  > {
    this.#slot()
    this.#turnNames()
    return {
      counters: this.counters,
      lostBy: Object.fromEntries(this.#lostBy),
      wait: this.#wait.toJSON(),
      hold: this.#hold.toJSON(),
      waitMs: Math.round(this.#wait.sumMs),
      holdMs: Math.round(this.#hold.sumMs),
      slotMs: SLOT_MS,
      slots: this.#slots.map((slot) => ({ ...slot, wait: slot.wait.toJSON(), hold: slot.hold.toJSON() })),
      names: this.#mostWaited(),
      losses: this.#losses,
    }
  }

  #waited(kind: string, name: string, waitedMs: number, what: 'acquired' | 'timeouts'): void {
    this.#wait.add(waitedMs)
    this.#slot().wait.add(waitedMs)
    const stats = this.#count(kind, name, what)
    if (stats) stats.waitMs += waitedMs
  }

  #held(heldMs: number): void {
    this.#hold.add(heldMs)
    this.#slot().hold.add(heldMs)
  }

  #count(kind: string, name: string, what: 'acquired' | 'timeouts' | 'lost'): NameStats | undefined {
    this.#turnNames()
    const { now } = this.#names
    const key = `${kind}:${name}`
    let stats = now.get(key)
    if (!stats) {
      if (now.size >= NAMES_KEPT) return undefined
      now.set(key, (stats = { kind, name: cut(name, LONGEST_TEXT), acquired: 0, timeouts: 0, lost: 0, waitMs: 0 }))
    }
    stats[what]++
    return stats
  }

  #slot(): Slot {
    const at = Math.floor(this.#now() / SLOT_MS) * SLOT_MS
    const last = this.#slots.at(-1)
    // A clock that was set back goes on in the slot that is there.
    if (last && at <= last.at) return last
    const slot = { at, wait: new Histogram(), hold: new Histogram(), timeouts: 0, lost: 0 }
    this.#slots.push(slot)
    this.#slots = this.#slots.filter((each) => each.at > at - SLOTS * SLOT_MS)
    return slot
  }

  #turnNames(): void {
    const now = this.#now()
    const half = (SLOTS * SLOT_MS) / 2
    if (now - this.#names.since < half) return
    const isRecent = now - this.#names.since < 2 * half
    this.#names = { since: now, now: new Map(), before: isRecent ? this.#names.now : new Map() }
  }

  #mostWaited(): NameStats[] {
    const sums = new Map<string, NameStats>()
    for (const [key, stats] of [...this.#names.before, ...this.#names.now]) {
      const sum = sums.get(key)
      if (!sum) sums.set(key, { ...stats })
      else for (const what of ['acquired', 'timeouts', 'lost', 'waitMs'] as const) sum[what] += stats[what]
    }
    const waited = [...sums.values()].sort((a, b) => b.waitMs - a.waitMs).slice(0, NAMES_SHOWN)
    return waited.map((stats) => ({ ...stats, waitMs: Math.round(stats.waitMs) }))
  }
}

/** Those that end first. */
export function publishedRisks(risks: PublishedRisk[]): PublishedRisk[] {
  const first = risks.sort((a, b) => a.ends - b.ends).slice(0, RISKS_SHOWN)
  return first.map((risk) => ({ ...risk, name: cut(risk.name, LONGEST_TEXT) }))
}

function publishedAttempt({ at, outcome, tookMs, error }: RenewalAttempt): PublishedAttempt {
  return {
    at: at.getTime(),
    outcome,
    tookMs: Math.round(tookMs),
    error: error === undefined ? undefined : cut(error, LONGEST_REASON),
  }
}

function cut(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text
}
