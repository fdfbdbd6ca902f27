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
import { checkOf, hasEnded, Heartbeats, isSame, type SentCheck } from './heartbeats.js'
import { EtcdLease } from './leases.js'
import type { Header, Operation } from './messages.js'
import { GONE, Moving, type Pending, unsure } from './move.js'
import type { Tracked } from './tracked.js'

/** Share of the wanted time that must be left for a lease not to be kept alive again: another lock has just done it. */
const FRESH = 0.85
/** Comparisons in one transaction: etcd takes 128, and this is a quarter of a full batch. */
const MOST_COMPARED = 125

export class Prolonging {
  readonly #context: EtcdContext
  readonly #moving: Moving
  readonly #heartbeats = new Heartbeats()

  constructor(context: EtcdContext) {
    this.#context = context
    this.#moving = new Moving(context)
  }

  /** `renewed`: whether an entry that another store object wrote will be renewed from here on; as in `Claim`. */
  async renew(renewals: readonly Renewal[], renewed = false): Promise<Renewed[]> {
    const { world, offset } = this.#context
    const startedAt = world.now()
    const loading = offset.ready()
    if (loading) await loading
    const before = this.#heartbeats.take(renewals)
    const checks = before?.checks ?? []
    if (before && isSame(before.items, renewals, startedAt)) {
      await this.#known(before.items, startedAt, checks)
      return this.#heartbeats.answers(before.items, checks)
    }
    const items: Pending[] = []
    // By position, and only for those that are not known: a heartbeat of thousands of locks has none.
    const others = new Map<number, Renewed>()
    const unknown: number[] = []
    for (let at = 0; at < renewals.length; at++) {
      const renewal = renewals[at] as Renewal
      const entry = this.#entryOf(renewal)
      if (!entry) unknown.push(at)
      else if (hasEnded(entry, startedAt)) others.set(at, GONE)
      else items.push({ renewal, entry, answer: undefined })
    }
    await Promise.all([
      this.#known(items, startedAt, checks),
      ...unknown.map(async (at) => others.set(at, await this.#find(renewals[at] as Renewal, renewed, startedAt))),
    ])
    if (others.size === 0) return this.#heartbeats.answers(items, checks)
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

  async #known(items: readonly Pending[], startedAt: number, checks: SentCheck[]): Promise<void> {
    let staying = items
    let moving: readonly Pending[] = []
    let isMoving = false
    for (let i = 0; i < items.length; i++) {
      const item = items[i] as Pending
      item.entry.busy++
      isMoving ||= mustMove(item)
    }
    if (isMoving) {
      staying = items.filter((item) => !mustMove(item))
      moving = items.filter(mustMove)
    }
    try {
      await Promise.all([this.#stay(staying, startedAt, checks), this.#moving.all(moving, startedAt)])
    } finally {
      for (let i = 0; i < items.length; i++) (items[i] as Pending).entry.busy--
    }
  }

  /** Those whose lease lasts long enough once it is kept alive. */
  async #stay(items: readonly Pending[], startedAt: number, sent: SentCheck[]): Promise<void> {
    if (items.length === 0) return
    const { leases, world, keys } = this.#context
    const stale = new Set<EtcdLease>()
    const now = world.now()
    for (let i = 0; i < items.length; i++) {
      const { entry, renewal } = items[i] as Pending
      const wanted = Math.min(renewal.ttlMs, entry.lease.ttlMs) * FRESH
      if (entry.lease.validUntil - now < wanted) stale.add(entry.lease)
    }
    try {
      // First the keep-alive: the checks behind it are the reads that confirm it.
      const confirm = stale.size > 0 ? await leases.keepAlive(stale) : undefined
      const checks: Promise<Header>[] = []
      for (let from = 0; from < items.length; from += MOST_COMPARED) {
        const part = items.slice(from, from + MOST_COMPARED)
        const check = checkOf(part, keys, sent[checks.length])
        sent[checks.length] = check
        checks.push(this.#check(part, startedAt, check))
      }
      sent.length = checks.length
      const reads = await Promise.all(checks)
      confirm?.(reads)
      const answeredAt = world.now()
      let last: Pending | undefined
      for (let i = 0; i < items.length; i++) {
        const item = items[i] as Pending
        if (item.answer) continue
        // One answer for all that share a lease and a ttl: a thousand objects per heartbeat would be there to be collected.
        item.answer = last && isAlike(item, last) ? last.answer : this.#stillOurs(item, startedAt)
        if (item.answer?.outcome === 'ours') this.#prolong(item, answeredAt)
        last = item
      }
    } catch (error) {
      for (const item of items) item.answer ??= unsure(error)
    }
  }

  #stillOurs({ renewal, entry }: Pending, startedAt: number): Renewed {
    const { offset } = this.#context
    const until = Math.min(startedAt + renewal.ttlMs, entry.lease.validUntil)
    if (renewal.queued && entry.record.state === 'held') {
      return { outcome: 'granted', token: offset.tokenOf(entry.grantRevision), ttlMs: entry.deadline - startedAt }
    }
    if (until <= startedAt) return { outcome: 'unknown', error: new Error('etcd: the lease could not be kept alive') }
    return { outcome: 'ours', ttlMs: until - startedAt }
  }

  #prolong({ renewal, entry }: Pending, now: number): void {
    this.#context.tracked.prolong(entry, Math.min(now + renewal.ttlMs, entry.lease.validUntil))
  }

  /** Whether all of them are as we wrote them, in one step; only if not they are read. The header of a read that a majority answered. */
  async #check(items: readonly Pending[], startedAt: number, { message }: SentCheck): Promise<Header> {
    const { succeeded, header } = await this.#context.client.check(message)
    if (!succeeded) await this.#readChanged(items, startedAt)
    // A call may carry hundreds of entries of one key: its queue is read once.
    const readings = new Map<string, Directory>()
    for (const item of items) {
      if (item.answer || !item.renewal.queued || item.entry.record.state !== 'waiting') continue
      item.answer = await this.#queued(item, header, readings)
    }
    return header
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

/** It has to be written anew: with another value or another lease. */
function mustMove({ renewal: { value, ttlMs, queued }, entry }: Pending): boolean {
  if (queued && entry.record.state === 'held') return false
  if (value !== undefined || entry.isElsewhere || entry.lease.retired) return true
  return ttlMs > entry.lease.ttlMs
}

/** The answer to the one is that to the other. */
function isAlike({ renewal, entry }: Pending, other: Pending): boolean {
  return (
    entry.lease === other.entry.lease &&
    renewal.ttlMs === other.renewal.ttlMs &&
    !renewal.queued &&
    !other.renewal.queued
  )
}
