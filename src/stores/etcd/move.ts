/**
 * Writing entries anew, with another lease or another value. All of one lease travel together: after a lease was given up, such as by
 * a new leader that does not know it, each of a thousand locks would otherwise need a transaction of its own.
 *
 * @module
 */
import type { Renewal, Renewed } from '../../store.js'
import { encodeRecord, type EtcdRecord, grantRevisionOf } from './codec.js'
import type { EtcdContext } from './context.js'
import { readDirectory } from './directory.js'
import { EtcdError, isFinal, isLeaseGone } from './errors.js'
import type { EtcdLease } from './leases.js'
import type { EtcdTransaction, KeyValue, Operation, TxnResult } from './messages.js'
import { inPartsOf, tooLarge } from './sizes.js'
import type { Tracked } from './entry.js'

/** Entries written in one transaction: etcd takes 128 operations, and smaller ones let client and server work at the same time. */
const AT_ONCE = 40

export const GONE: Renewed = { outcome: 'gone' }

export const unsure = (error: unknown): Renewed => ({ outcome: 'unknown', error })

/** A renewal on its way to an answer. */
export interface Pending {
  renewal: Renewal
  entry: Tracked
  answer: Renewed | undefined
}

/** What is to be written for an entry. */
interface Write {
  item: Pending
  record: EtcdRecord
  value: Buffer
}

/** What could not be written, and may be tried again. */
interface Failed {
  item: Pending
  error: unknown
}

export class Moving {
  readonly #context: EtcdContext

  constructor(context: EtcdContext) {
    this.#context = context
  }

  /** Answers all of them. Renewal never creates: only what is as we know it is replaced. */
  async all(items: readonly Pending[], startedAt: number): Promise<void> {
    if (items.length === 0) return
    const again = await this.#once(items, startedAt)
    const failed = again.length > 0 ? await this.#once(again, startedAt) : []
    for (const { item, error } of failed) item.answer = unsure(error)
  }

  async one(item: Pending, startedAt: number): Promise<Renewed> {
    await this.all([item], startedAt)
    return item.answer as Renewed
  }

  async #once(items: readonly (Pending | Failed)[], startedAt: number): Promise<Failed[]> {
    const groups = new Map<EtcdLease, Write[]>()
    await Promise.all(
      items.map(async (each) => {
        const item = 'item' in each ? each.item : each
        const write = this.#writeOf(item)
        const error = tooLarge(item.renewal.value === undefined ? 'metadata' : 'value', write.value)
        if (error) return void (item.answer = unsure(error))
        try {
          const lease = await this.#bound(item)
          const group = groups.get(lease)
          if (group) group.push(write)
          else groups.set(lease, [write])
        } catch (failure) {
          item.answer = unsure(failure)
        }
      }),
    )
    const parts: Promise<Failed[]>[] = []
    for (const [lease, group] of groups) {
      const sizeOf = ({ value, item }: Write): number => value.length + 3 * item.entry.etcdKey.length
      for (const part of inPartsOf(group, AT_ONCE, sizeOf)) parts.push(this.#write(part, lease, startedAt))
    }
    return (await Promise.all(parts)).flat()
  }

  /**
   * A lease that is bound already, so that nobody revokes it. Between its choice and that it may have been given up. A value may be the
   * last that this process writes: on the shared lease it would end with the process, or live for as long as any other lock.
   */
  async #bound({ entry, renewal: { ttlMs, value } }: Pending): Promise<EtcdLease> {
    const { leases, world, limitMs } = this.#context
    const startedAt = world.now()
    do {
      const lease = await (entry.renewed && value === undefined ? leases.shared(ttlMs) : leases.own(ttlMs))
      leases.bind(lease)
      if (!lease.retired) return lease
      leases.unbind(lease)
    } while (world.now() - startedAt < limitMs)
    throw new Error('etcd: leases were given up faster than they could be used')
  }

  #writeOf(item: Pending): Write {
    const { session, nextAttempt } = this.#context
    const { entry, renewal } = item
    const record: EtcdRecord = {
      ...entry.record,
      ttlMs: renewal.ttlMs,
      value: renewal.value ?? entry.record.value,
      grantRevision: entry.record.state === 'held' ? entry.grantRevision : undefined,
      // A number of its own: under that of the grant it would be removed, if that one was answered late.
      session,
      attempt: nextAttempt(),
    }
    return { item, record, value: encodeRecord(record) }
  }

  async #write(writes: readonly Write[], lease: EtcdLease, startedAt: number): Promise<Failed[]> {
    const { client, leases } = this.#context
    const parts = writes.map(({ item: { entry }, value }): EtcdTransaction => {
      const { etcdKey: key, modRevision } = entry
      return {
        compare: [{ key, is: '=', mod: modRevision }],
        success: [{ put: { key, value, lease: lease.id } }],
        failure: [{ range: { key } }],
      }
    })
    const [sole] = parts
    const single = parts.length === 1 && sole
    try {
      const nested = parts.map((txn): Operation => ({ txn }))
      const { answer } = await client.txn(single || { compare: [], success: nested, failure: [] })
      const { revision } = answer.header
      return writes.flatMap((write, i) => {
        const result = single ? answer : (answer.results[i]?.txn as TxnResult)
        return this.#answered(write, lease, result, revision, startedAt) ?? []
      })
    } catch (error) {
      // Not if it may have been written: the keys would go with the lease.
      const nothingDone = error instanceof EtcdError && isFinal(error) && !error.retried
      if (nothingDone) for (const _ of writes) leases.unbind(lease)
      if (isLeaseGone(error)) {
        leases.retire(lease)
        return writes.map(({ item }) => ({ item, error }))
      }
      for (const { item } of writes) item.answer = unsure(error)
      return []
    }
  }

  /** Written by this call, or by an attempt of it that was not answered; otherwise something else is there. */
  #answered(
    { item, record, value }: Write,
    lease: EtcdLease,
    { succeeded, results }: TxnResult,
    revision: number,
    startedAt: number,
  ): Failed | undefined {
    const { leases, tracked, world, offset, queue } = this.#context
    const { entry, renewal } = item
    const kv = results[0]?.range?.kvs[0]
    if (!succeeded && !(kv?.lease === lease.id && kv.value.equals(value))) {
      leases.unbind(lease)
      if (this.isSame(item, kv)) return { item, error: new Error('etcd: another client changed the entry meanwhile') }
      item.answer = GONE
      return undefined
    }
    entry.modRevision = succeeded ? revision : (kv as KeyValue).modRevision
    entry.isElsewhere = false
    entry.record = record
    tracked.moved(entry, lease)
    const until = Math.min(startedAt + renewal.ttlMs, lease.validUntil)
    tracked.prolong(entry, Math.min(world.now() + renewal.ttlMs, lease.validUntil))
    if (renewal.queued && record.state !== 'held') {
      const ahead = queue.isFirst(entry.key, entry.owner) === false ? 1 : 0
      item.answer = { outcome: 'waiting', ahead, newest: offset.tokenOf(revision) }
    } else item.answer = { outcome: 'ours', ttlMs: until - startedAt }
    return undefined
  }

  /** Somebody else wrote it. True: it is still this very grant or queue entry, which another client of the same owner prolonged. */
  isSame({ entry }: Pending, kv: KeyValue | undefined): boolean {
    const { tracked, queue, keys } = this.#context
    const current = kv && readDirectory(keys, [kv], 0).entries[0]
    const same =
      current?.record &&
      current.kv.createRevision === entry.createRevision &&
      current.record.state === entry.record.state &&
      (entry.record.state === 'waiting' || grantRevisionOf(current.record, current.kv) === entry.grantRevision)
    if (same) {
      entry.modRevision = current.kv.modRevision
      entry.isElsewhere = current.kv.lease !== entry.lease.id
      entry.record = current.record as EtcdRecord
      return true
    }
    tracked.forget(entry)
    queue.end(entry.key, entry.owner)
    return false
  }
}
