/**
 * Renewing: the leases of all entries of a call are kept alive in one stream, and one transaction checks that the entries are still
 * as we wrote them. An entry that needs another lease, or another value, is written anew, if it is still there.
 *
 * @module
 */
import type { Renewal, Renewed } from '../../store.js'
import { Adopting } from './adopt.js'
import { type Checked, encodeCheck, type KeyCheck, MOST_CHECKED } from './checks.js'
import type { EtcdContext } from './context.js'
import { type Directory, type Entry, entriesAhead, ownEntry, readDirectory } from './directory.js'
import type { Tracked } from './entry.js'
import { Heartbeats, isStale, type SteadyHeartbeat } from './heartbeats.js'
import type { EtcdLease } from './leases.js'
import type { Header, Operation } from './messages.js'
import { GONE, Moving, type Pending, unsure } from './move.js'

/** Entries that are read in one transaction: etcd takes 128 operations. */
const MOST_READ = 125

export class Prolonging {
  readonly #context: EtcdContext
  readonly #moving: Moving
  readonly #adopting: Adopting
  readonly #heartbeats = new Heartbeats()

  constructor(context: EtcdContext) {
    this.#context = context
    this.#moving = new Moving(context)
    this.#adopting = new Adopting(context, this.#moving)
  }

  /** `renewed`: whether an entry that another store object wrote will be renewed from here on; as in `Claim`. */
  async renew(renewals: readonly Renewal[], renewed = false): Promise<Renewed[]> {
    const { world, offset } = this.#context
    const startedAt = world.now()
    const loading = offset.ready()
    if (loading) await loading
    const steady = this.#heartbeats.begin(renewals, startedAt)
    return steady ? this.#steadily(steady, startedAt) : this.#singly(renewals, renewed, startedAt)
  }

  /** All of them were as they are known, and on the same leases, when the heartbeat began. */
  async #steadily(heartbeat: SteadyHeartbeat, startedAt: number): Promise<Renewed[]> {
    const { leases, client } = this.#context
    try {
      const stale = new Set<EtcdLease>()
      for (const { lease, ttlMs } of heartbeat.runs) if (isStale(lease, ttlMs, startedAt)) stale.add(lease)
      // First the keep-alive: the checks behind it are the reads that confirm it.
      const confirm = stale.size > 0 ? await leases.keepAlive(stale) : undefined
      const checked = await Promise.all(heartbeat.checks.map((check) => client.check(check)))
      confirm?.(checked.map(({ header }) => header))
      if (checked.every(({ unchanged }) => unchanged)) return this.#unchanged(heartbeat, startedAt)
      const items = heartbeat.items()
      const changed = checked.map(({ unchanged }, i) => (unchanged ? [] : partOf(items, i)))
      await Promise.all(changed.map((part) => this.#readChanged(part, startedAt)))
      this.#answer(items, startedAt)
      return items.map(({ answer }) => answer as Renewed)
    } catch (error) {
      return heartbeat.entries.map(() => unsure(error))
    } finally {
      heartbeat.end()
    }
  }

  /** One answer for all that share a lease and a ttl: a thousand objects per heartbeat would be there to be collected. */
  #unchanged({ entries, runs }: SteadyHeartbeat, startedAt: number): Renewed[] {
    const { world, tracked } = this.#context
    const now = world.now()
    // Of its full length: one that grows is copied again and again.
    const answers = new Array<Renewed>(entries.length)
    for (const run of runs) {
      const { lease, ttlMs } = run
      const answer = ours(lease, ttlMs, startedAt)
      for (let i = run.from; i < run.to; i++) {
        const entry = entries[i] as Tracked
        // Another call has written it anew meanwhile.
        answers[i] = entry.lease === lease ? answer : ours(entry.lease, ttlMs, startedAt)
      }
      if (answer.outcome === 'ours') tracked.prolongAll(entries, run, Math.min(now + ttlMs, lease.validUntil))
    }
    return answers
  }

  async #singly(renewals: readonly Renewal[], renewed: boolean, startedAt: number): Promise<Renewed[]> {
    const items: Pending[] = []
    const others = new Map<number, Renewed>()
    const unknown: number[] = []
    for (const [at, renewal] of renewals.entries()) {
      const entry = this.#entryOf(renewal)
      if (!entry) unknown.push(at)
      else if (entry.hasEnded(startedAt)) others.set(at, GONE)
      else {
        entry.isAbandoned = false
        items.push({ renewal, entry, answer: undefined })
      }
    }
    const [checks] = await Promise.all([
      this.#known(items, startedAt),
      ...unknown.map(async (at) =>
        others.set(at, await this.#adopting.find(renewals[at] as Renewal, renewed, startedAt)),
      ),
    ])
    if (checks && others.size === 0) this.#heartbeats.keep(items, checks)
    let next = 0
    return renewals.map((_, at) => others.get(at) ?? (items[next++]?.answer as Renewed))
  }

  #entryOf(renewal: Renewal): Tracked | undefined {
    const entry = this.#context.tracked.get(renewal.key, renewal.owner)
    return entry && this.#isMeant(renewal, entry) ? entry : undefined
  }

  /** Another grant of the same owner, or its queue entry, is not what is to be renewed: what is there decides. */
  #isMeant({ token, queued }: Renewal, entry: Tracked): boolean {
    if (entry.record.state === 'waiting') return queued === true
    return token === undefined || token === (entry.token ??= this.#context.offset.tokenOf(entry.grantRevision))
  }

  /** The checks that found them as they were written. Undefined: some of them were not, or had to be written anew. */
  async #known(items: readonly Pending[], startedAt: number): Promise<KeyCheck[] | undefined> {
    const moving = items.filter(mustMove)
    const staying = moving.length > 0 ? items.filter((item) => !mustMove(item)) : items
    for (const { entry } of items) entry.busy++
    try {
      const [checks] = await Promise.all([this.#stay(staying, startedAt), this.#moving.all(moving, startedAt)])
      return moving.length > 0 ? undefined : checks
    } finally {
      for (const { entry } of items) entry.busy--
    }
  }

  /** Those whose lease lasts long enough once it is kept alive. */
  async #stay(items: readonly Pending[], startedAt: number): Promise<KeyCheck[] | undefined> {
    if (items.length === 0) return undefined
    const { leases, world, keys } = this.#context
    const stale = new Set<EtcdLease>()
    const now = world.now()
    for (const { entry, renewal } of items) if (isStale(entry.lease, renewal.ttlMs, now)) stale.add(entry.lease)
    try {
      // First the keep-alive: the checks behind it are the reads that confirm it.
      const confirm = stale.size > 0 ? await leases.keepAlive(stale) : undefined
      const checks: KeyCheck[] = []
      const checking: Promise<Checked>[] = []
      for (let i = 0; i * MOST_CHECKED < items.length; i++) {
        const part = partOf(items, i)
        const check = encodeCheck(
          part.map(({ entry }) => entry),
          keys.offset,
        )
        checks.push(check)
        checking.push(this.#check(part, startedAt, check))
      }
      const checked = await Promise.all(checking)
      confirm?.(checked.map(({ header }) => header))
      this.#answer(items, startedAt)
      return checked.every(({ unchanged }) => unchanged) ? checks : undefined
    } catch (error) {
      for (const item of items) item.answer ??= unsure(error)
      return undefined
    }
  }

  /** Those that have no answer yet were found as they are known. */
  #answer(items: readonly Pending[], startedAt: number): void {
    const { world, tracked } = this.#context
    const now = world.now()
    for (const item of items) {
      const { entry, renewal } = item
      item.answer ??= this.#stillOurs(item, startedAt)
      if (item.answer.outcome === 'ours') tracked.prolong(entry, Math.min(now + renewal.ttlMs, entry.lease.validUntil))
    }
  }

  #stillOurs({ renewal, entry }: Pending, startedAt: number): Renewed {
    const { offset } = this.#context
    if (renewal.queued && entry.record.state === 'held') {
      return { outcome: 'granted', token: offset.tokenOf(entry.grantRevision), ttlMs: entry.deadline - startedAt }
    }
    return ours(entry.lease, renewal.ttlMs, startedAt)
  }

  /** Whether all of them are as we wrote them, in one step; only if not they are read. */
  async #check(items: readonly Pending[], startedAt: number, check: KeyCheck): Promise<Checked> {
    const checked = await this.#context.client.check(check)
    if (!checked.unchanged) await this.#readChanged(items, startedAt)
    // A call may carry hundreds of entries of one key: its queue is read once.
    const readings = new Map<string, Directory>()
    for (const item of items) {
      if (item.answer || !item.renewal.queued || item.entry.record.state !== 'waiting') continue
      item.answer = await this.#queued(item, checked.header, readings)
    }
    return checked
  }

  async #readChanged(items: readonly Pending[], startedAt: number): Promise<void> {
    const moving: Pending[] = []
    for (let from = 0; from < items.length; from += MOST_READ) {
      const part = items.slice(from, from + MOST_READ)
      const reads = part.map(({ entry }): Operation => ({ range: { key: entry.etcdKey } }))
      const { answer } = await this.#context.client.txn({ compare: [], success: reads, failure: [] })
      for (const [i, item] of part.entries()) {
        const kv = answer.results[i]?.range?.kvs[0]
        if (kv?.modRevision === item.entry.modRevision) continue
        if (this.#moving.isSame(item, kv)) moving.push(item)
        else item.answer = GONE
      }
    }
    await this.#moving.all(moving, startedAt)
  }

  async #queued({ renewal, entry }: Pending, { revision }: Header, readings: Map<string, Directory>): Promise<Renewed> {
    const { queue, tracked, client, keys, offset, world } = this.#context
    const { key, owner } = entry
    tracked.prolong(entry, world.now() + renewal.ttlMs)
    let isFirst = queue.isFirst(key, owner)
    if (isFirst === undefined) {
      let directory = readings.get(key)
      if (!directory) {
        const { kvs, header } = await client.range(keys.directory(key))
        readings.set(key, (directory = readDirectory(keys, kvs, header.revision)))
      }
      if (ownEntry(directory, owner)) queue.wait(key, owner, entry.createRevision, directory)
      isFirst = entriesAhead(directory, owner).length === 0
    }
    return { outcome: 'waiting', ahead: isFirst ? 0 : 1, newest: offset.tokenOf(revision) }
  }

  /** False: the queue entry is gone. */
  async prolongQueued(key: string, owner: string, queueMs: number, own: Entry): Promise<boolean> {
    const { tracked, world } = this.#context
    const startedAt = world.now()
    const renewal: Renewal = { key, owner, ttlMs: queueMs, queued: true }
    const known = tracked.get(key, owner)
    if (!known) {
      const adopted = await this.#adopting.adopt(own, renewal, true, startedAt)
      if (adopted.outcome === 'unknown') throw adopted.error
      return adopted.outcome === 'ours'
    }
    // It was read a moment ago: only its time is missing.
    if (known.lease.validUntil - startedAt >= queueMs && !known.lease.retired) {
      known.isAbandoned = false
      tracked.prolong(known, startedAt + queueMs)
      return true
    }
    const [renewed] = await this.renew([renewal])
    if (renewed?.outcome === 'unknown') throw renewed.error
    return renewed?.outcome === 'waiting'
  }
}

/** It has to be written anew: with another value or another lease. */
function mustMove({ renewal: { value, ttlMs, queued }, entry }: Pending): boolean {
  if (queued && entry.record.state === 'held') return false
  if (value !== undefined || entry.isElsewhere || entry.lease.retired) return true
  return ttlMs > entry.lease.ttlMs
}

/** The entries of one check. */
const partOf = (items: readonly Pending[], check: number): readonly Pending[] =>
  items.slice(check * MOST_CHECKED, (check + 1) * MOST_CHECKED)

/** Still held, for as long as its lease is certain to exist. */
function ours(lease: EtcdLease, ttlMs: number, startedAt: number): Renewed {
  const leftMs = Math.min(ttlMs, lease.validUntil - startedAt)
  if (leftMs <= 0) return { outcome: 'unknown', error: new Error('etcd: the lease could not be kept alive') }
  return { outcome: 'ours', ttlMs: leftMs }
}
