/**
 * Renewing what another client of the same owner has written.
 *
 * @module
 */
import type { Renewal, Renewed } from '../../store.js'
import { type EtcdRecord, grantRevisionOf } from './codec.js'
import type { EtcdContext } from './context.js'
import { type Entry, entriesAhead, ownEntry, readDirectory } from './directory.js'
import { EtcdLease } from './leases.js'
import { GONE, type Moving, type Pending, unsure } from './move.js'

export class Adopting {
  readonly #context: EtcdContext
  readonly #moving: Moving

  constructor(context: EtcdContext, moving: Moving) {
    this.#context = context
    this.#moving = moving
  }

  /** Written by another client: the owner counts, not the connection. It is ours to renew from now on. */
  async find(renewal: Renewal, renewed: boolean, startedAt: number): Promise<Renewed> {
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
      const answer = await this.adopt(own, renewal, held ? renewed : true, startedAt)
      if (answer.outcome !== 'ours' || !queued) return answer
      if (!held) return { outcome: 'waiting', ahead, newest: offset.tokenOf(header.revision) }
      return { outcome: 'granted', token: offset.tokenOf(grantRevisionOf(own.record, own.kv)), ttlMs: answer.ttlMs }
    } catch (error) {
      return unsure(error)
    }
  }

  /** An entry that was read is tracked from here on, on a lease of ours. */
  async adopt({ kv, record }: Entry, renewal: Renewal, renewed: boolean, startedAt: number): Promise<Renewed> {
    const { tracked } = this.#context
    const { key, owner, ttlMs } = renewal
    // Of the client that wrote it: not ours to revoke. It moves to one of ours right away.
    const lease = new EtcdLease(kv.lease, 0, true, 0)
    const entry = tracked.add({
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
    })
    entry.busy++
    const moved: Pending = { renewal: { ...renewal, queued: false }, entry, answer: undefined }
    const answer = await this.#moving.one(moved, startedAt)
    entry.busy--
    if (answer.outcome !== 'ours') tracked.forget(entry)
    return answer
  }
}
