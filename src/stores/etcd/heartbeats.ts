/**
 * What is kept from one heartbeat to the next. The core sends the same renewals each time, as long as the same locks are held: a
 * thousand lookups, objects and conditions for each of them would cost more than the requests. Loops over all of them are few and
 * count their steps: what runs every few seconds is not compiled for minutes, and an iterator then leaves an object per step to be
 * collected.
 *
 * @module
 */
import type { Renewal } from '../../store.js'
import type { KeyCheck } from './checks.js'
import type { EtcdLease } from './leases.js'
import type { Pending } from './move.js'
import type { Tracked } from './entry.js'

/** Share of the wanted time that must be left for a lease not to be kept alive again: another lock has just done it. */
const FRESH = 0.85

/** Whether a lease has to be kept alive to last for as long as it is asked for. */
export const isStale = (lease: EtcdLease, ttlMs: number, now: number): boolean =>
  lease.validUntil - now < Math.min(ttlMs, lease.ttlMs) * FRESH

/** Locks of a heartbeat in a row that share a lease and a ttl, and so an answer. */
export interface Run {
  readonly lease: EtcdLease
  readonly ttlMs: number
  readonly from: number
  to: number
}

/** A heartbeat in which nothing has to be written: all are as they were written, and stay on their leases. */
export class SteadyHeartbeat {
  readonly #renewals: readonly Renewal[]
  readonly #revisions: readonly number[]
  readonly entries: readonly Tracked[]
  readonly runs: readonly Run[]
  readonly checks: readonly KeyCheck[]

  constructor(items: readonly Pending[], checks: readonly KeyCheck[]) {
    this.#renewals = items.map(({ renewal }) => renewal)
    this.entries = items.map(({ entry }) => entry)
    this.#revisions = this.entries.map(({ modRevision }) => modRevision)
    this.runs = runsOf(items)
    this.checks = checks
  }

  /** Begins the heartbeat. False: these are other locks, or something about one of them is not as it was. */
  begin(renewals: readonly Renewal[], now: number): boolean {
    if (renewals.length !== this.#renewals.length) return false
    for (let i = 0; i < this.runs.length; i++) {
      const run = this.runs[i] as Run
      if (run.lease.retired || !this.#isSteady(run, renewals, now)) return false
    }
    this.#addBusy(1)
    return true
  }

  #isSteady({ lease, from, to }: Run, renewals: readonly Renewal[], now: number): boolean {
    const sent = this.#renewals
    const revisions = this.#revisions
    const { entries } = this
    for (let i = from; i < to; i++) {
      const entry = entries[i] as Tracked
      if (renewals[i] !== sent[i] || entry.lease !== lease || entry.modRevision !== revisions[i]) return false
      if (entry.isForgotten || entry.isAbandoned || entry.isElsewhere || entry.hasEnded(now)) return false
    }
    return true
  }

  /** Each `begin` is followed by an end: what is busy is not removed when its time has passed. */
  end(): void {
    this.#addBusy(-1)
  }

  /** To be answered one by one. */
  items(): Pending[] {
    return this.entries.map((entry, i) => ({ renewal: this.#renewals[i] as Renewal, entry, answer: undefined }))
  }

  #addBusy(one: 1 | -1): void {
    const { entries } = this
    for (let i = 0; i < entries.length; i++) (entries[i] as Tracked).busy += one
  }
}

export class Heartbeats {
  /** By their first renewal. */
  readonly #steady = new WeakMap<Renewal, SteadyHeartbeat>()

  /** The heartbeat of these very locks, if nothing about them has changed; begun. */
  begin(renewals: readonly Renewal[], now: number): SteadyHeartbeat | undefined {
    const [first] = renewals
    const before = first && this.#steady.get(first)
    return before?.begin(renewals, now) ? before : undefined
  }

  /** Kept for the next time, if these will be renewed in the same way again. */
  keep(items: readonly Pending[], checks: readonly KeyCheck[]): void {
    const [first] = items
    if (first && items.every(isSteady)) this.#steady.set(first.renewal, new SteadyHeartbeat(items, checks))
  }
}

/** A lock that was prolonged where it is. */
function isSteady({ renewal: { value, queued }, answer }: Pending): boolean {
  return answer?.outcome === 'ours' && value === undefined && !queued
}

function runsOf(items: readonly Pending[]): Run[] {
  const runs: Run[] = []
  for (const [i, { entry, renewal }] of items.entries()) {
    const last = runs.at(-1)
    if (last?.lease === entry.lease && last.ttlMs === renewal.ttlMs) last.to = i + 1
    else runs.push({ lease: entry.lease, ttlMs: renewal.ttlMs, from: i, to: i + 1 })
  }
  return runs
}
