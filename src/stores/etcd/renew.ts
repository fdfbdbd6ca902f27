/**
 * Renewing: the leases of all entries of a call are kept alive in one stream, and one transaction checks that the entries are still
 * as we wrote them. An entry that needs another lease, or another value, is written anew, if it is still there.
 *
 * @module
 */
import type { Renewal, Renewed } from '../../store.js'
import { type EtcdRecord, grantRevisionOf } from './codec.js'
import type { EtcdContext } from './context.js'
import { type Directory, type Entry, entriesAhead, ownEntry, readDirectory } from './directory.js'
import { EtcdLease } from './leases.js'
import { encodeCheck, type Header, type Operation } from './messages.js'
import { GONE, Moving, type Pending, unsure } from './move.js'
import type { SentCheck, Tracked } from './tracked.js'

/** Share of the wanted time that must be left for a lease not to be kept alive again: another lock has just done it. */
const FRESH = 0.85
/** Comparisons in one transaction: etcd takes 128, and this is a quarter of a full batch. */
const MOST_COMPARED = 125

export class Prolonging {
  readonly #context: EtcdContext
  readonly #moving: Moving

  constructor(context: EtcdContext) {
    this.#context = context
    this.#moving = new Moving(context)
  }

  /** `renewed`: whether an entry that another store object wrote will be renewed from here on; as in `Claim`. */
  async renew(renewals: readonly Renewal[], renewed = false): Promise<Renewed[]> {
    const { world, tracked, offset } = this.#context
    const startedAt = world.now()
    await offset.ready()
    const items: Pending[] = []
    // By position, and only for those that are not known: a heartbeat of thousands of locks has none.
    const others = new Map<number, Renewed>()
    const unknown: number[] = []
    for (let at = 0; at < renewals.length; at++) {
      const renewal = renewals[at] as Renewal
      const entry = tracked.get(renewal.key, renewal.owner)
      if (!entry || !this.#isMeant(renewal, entry)) unknown.push(at)
      else if (entry.deadline <= startedAt && entry.busy === 0) others.set(at, GONE)
      else items.push({ renewal, entry, answer: undefined })
    }
    await Promise.all([
      this.#known(items, startedAt),
      ...unknown.map(async (at) => others.set(at, await this.#find(renewals[at] as Renewal, renewed, startedAt))),
    ])
    let next = 0
    return renewals.map((_, at) => others.get(at) ?? (items[next++]?.answer as Renewed))
  }

  /** Another grant of the same owner, or its queue entry, is not what is to be renewed: what is there decides. */
  #isMeant({ token, queued }: Renewal, entry: Tracked): boolean {
    if (entry.record.state === 'waiting') return queued === true
    return token === undefined || token === (entry.token ??= this.#context.offset.tokenOf(entry.grantRevision))
  }

  async #known(items: readonly Pending[], startedAt: number): Promise<void> {
    const staying: Pending[] = []
    const moving: Pending[] = []
    for (const item of items) {
      item.entry.busy++
      if (this.#mustMove(item)) moving.push(item)
      else staying.push(item)
    }
    try {
      await Promise.all([this.#stay(staying, startedAt), this.#moving.all(moving, startedAt)])
    } finally {
      for (const { entry } of items) entry.busy--
    }
  }

  #mustMove({ renewal: { value, ttlMs, last, queued }, entry }: Pending): boolean {
    if (queued && entry.record.state === 'held') return false
    if (value !== undefined || entry.isElsewhere || entry.lease.retired) return true
    return ttlMs > entry.lease.ttlMs || (last === true && entry.lease.shared)
  }

  /** Those whose lease lasts long enough once it is kept alive. */
  async #stay(items: readonly Pending[], startedAt: number): Promise<void> {
    if (items.length === 0) return
    const { leases, world } = this.#context
    const stale = new Set<EtcdLease>()
    const now = world.now()
    for (const { entry, renewal } of items) {
      const wanted = Math.min(renewal.ttlMs, entry.lease.ttlMs) * FRESH
      if (entry.lease.validUntil - now < wanted) stale.add(entry.lease)
    }
    const failed = (error: unknown): void => {
      for (const item of items) item.answer ??= { outcome: 'unknown', error }
    }
    const parts: Promise<void>[] = []
    for (let from = 0; from < items.length; from += MOST_COMPARED) {
      parts.push(this.#check(items.slice(from, from + MOST_COMPARED), startedAt))
    }
    const refreshing = stale.size > 0 ? leases.refresh(stale) : undefined
    try {
      await Promise.all([refreshing, ...parts])
      const answeredAt = world.now()
      for (const item of items) item.answer ??= this.#stillOurs(item, startedAt, answeredAt)
    } catch (error) {
      failed(error)
    }
  }

  #stillOurs({ renewal, entry }: Pending, startedAt: number, now: number): Renewed {
    const { tracked, offset } = this.#context
    const until = Math.min(startedAt + renewal.ttlMs, entry.lease.validUntil)
    if (renewal.queued && entry.record.state === 'held') {
      return { outcome: 'granted', token: offset.tokenOf(entry.grantRevision), ttlMs: entry.deadline - startedAt }
    }
    if (until <= startedAt) return { outcome: 'unknown', error: new Error('etcd: the lease could not be kept alive') }
    tracked.prolong(entry, Math.min(now + renewal.ttlMs, entry.lease.validUntil))
    return { outcome: 'ours', ttlMs: until - startedAt }
  }

  /** Whether all of them are as we wrote them, in one step; only if not they are read. */
  async #check(items: readonly Pending[], startedAt: number): Promise<void> {
    const { client, keys } = this.#context
    const first = (items[0] as Pending).entry
    if (!first.check || !isCheckOf(first.check, items)) {
      const entries = items.map(({ entry }) => entry)
      const revisions = entries.map(({ modRevision }) => modRevision)
      first.check = { entries, revisions, message: encodeCheck(entries, keys.offset) }
    }
    const { succeeded, header } = await client.check(first.check.message)
    if (!succeeded) await this.#readChanged(items, startedAt)
    // A call may carry hundreds of entries of one key: its queue is read once.
    const readings = new Map<string, Directory>()
    for (const item of items) {
      if (item.answer || !item.renewal.queued || item.entry.record.state !== 'waiting') continue
      item.answer = await this.#queued(item, header, readings)
    }
  }

  async #readChanged(items: readonly Pending[], startedAt: number): Promise<void> {
    const reads = items.map(({ entry }): Operation => ({ range: { key: entry.etcdKey } }))
    const { answer } = await this.#context.client.txn({ compare: [], success: reads, failure: [] })
    const moving: Pending[] = []
    for (const [i, item] of items.entries()) {
      const kv = answer.results[i]?.range?.kvs[0]
      if (kv?.modRevision === item.entry.modRevision) continue
      if (this.#moving.isSame(item, kv)) moving.push(item)
      else item.answer = GONE
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

  /** Written by another client: the owner counts, not the connection. It is ours to renew from now on. */
  async #find(renewal: Renewal, renewed: boolean, startedAt: number): Promise<Renewed> {
    const { client, keys, offset } = this.#context
    const { key, owner, token, queued } = renewal
    try {
      const { kvs, header } = await client.range(keys.directory(key))
      const directory = readDirectory(keys, kvs, header.revision)
      const own = ownEntry(directory, owner)
      if (!own?.record) return GONE
      const held = own.record.state === 'held'
      if (!held && !queued) return GONE
      if (held && token !== undefined && token !== offset.tokenOf(grantRevisionOf(own.record, own.kv))) return GONE
      const ahead = entriesAhead(directory, owner).length
      const answer = await this.#adopt(own, renewal, held ? renewed : true, startedAt)
      if (answer.outcome !== 'ours' || !queued) return answer
      if (!held) return { outcome: 'waiting', ahead, newest: offset.tokenOf(header.revision) }
      return { outcome: 'granted', token: offset.tokenOf(grantRevisionOf(own.record, own.kv)), ttlMs: answer.ttlMs }
    } catch (error) {
      return unsure(error)
    }
  }

  async #adopt({ kv, record }: Entry, renewal: Renewal, renewed: boolean, startedAt: number): Promise<Renewed> {
    const { tracked } = this.#context
    const { key, owner, ttlMs } = renewal
    // Of the client that wrote it: not ours to revoke. It moves to one of ours right away.
    const lease = new EtcdLease(kv.lease, 0, true, 0)
    const entry: Tracked = {
      key,
      owner,
      etcdKey: Buffer.from(kv.key),
      createRevision: kv.createRevision,
      modRevision: kv.modRevision,
      record: record as EtcdRecord,
      grantRevision: grantRevisionOf(record as EtcdRecord, kv),
      lease,
      renewed,
      deadline: startedAt + ttlMs,
      busy: 1,
    }
    tracked.add(entry)
    const moved: Pending = { renewal: { ...renewal, queued: false }, entry, answer: undefined }
    const answer = await this.#moving.one(moved, startedAt)
    entry.busy--
    if (answer.outcome !== 'ours') tracked.forget(entry)
    return answer
  }

  /** False: the queue entry is gone. */
  async prolongQueued(key: string, owner: string, queueMs: number, own: Entry): Promise<boolean> {
    const { tracked, world } = this.#context
    const startedAt = world.now()
    const renewal: Renewal = { key, owner, ttlMs: queueMs, queued: true }
    const known = tracked.get(key, owner)
    if (!known) {
      const adopted = await this.#adopt(own, renewal, true, startedAt)
      if (adopted.outcome === 'unknown') throw adopted.error
      return adopted.outcome === 'ours'
    }
    // It was read a moment ago: only its time is missing.
    if (known.lease.validUntil - startedAt >= queueMs && !known.lease.retired) {
      tracked.prolong(known, startedAt + queueMs)
      return true
    }
    const [renewed] = await this.renew([renewal])
    if (renewed?.outcome === 'unknown') throw renewed.error
    return renewed?.outcome === 'waiting'
  }
}

/** Whether it is about these entries as they are now. */
function isCheckOf({ entries, revisions }: SentCheck, items: readonly Pending[]): boolean {
  if (entries.length !== items.length) return false
  for (let i = 0; i < items.length; i++) {
    const { entry } = items[i] as Pending
    if (entries[i] !== entry || revisions[i] !== entry.modRevision) return false
  }
  return true
}
