/**
 * What this store object has written and not removed yet. etcd knows no time below a second or two, and a shared lease lives on
 * while other locks renew it: the process itself removes what was not renewed when its time has passed.
 *
 * @module
 */
import type { Cancel, World } from '../../util/world.js'
import { decodeRecord } from './codec.js'
import type { EtcdClient } from './client.js'
import { type EntryFacts, Tracked } from './entry.js'
import type { EtcdLease, EtcdLeases } from './leases.js'
import type { KeyValue, Operation, OperationResult } from './messages.js'

/** Pause before a removal that was not answered is tried again, in milliseconds. Shorter would hot-loop during an outage. */
const RETRY_MS = 500
/** Removals in one transaction: etcd's own limit is 128 operations. */
const MOST_REMOVALS = 100

/** A write that was not answered, and may be carried out at any later time: removed if it is found. */
interface Orphan {
  key: string
  owner: string
  etcdKey: Buffer
  attempt: number
  /** Whatever it wrote ends by itself by then, because its lease was retired. */
  until: number
}

export class TrackedEntries {
  readonly #client: EtcdClient
  readonly #leases: EtcdLeases
  readonly #world: World
  readonly #session: string
  /** Its time has passed: nobody waits with it any more. */
  readonly #onEnded: (entry: Tracked) => void
  /** By key: those of one key are few. */
  readonly #entries = new Map<string, Tracked[]>()
  #orphans: Orphan[] = []
  #timer: Cancel | undefined
  #timerAt = Number.POSITIVE_INFINITY
  #sweeping = false
  #closed = false

  constructor(
    client: EtcdClient,
    leases: EtcdLeases,
    world: World,
    session: string,
    onEnded: (entry: Tracked) => void,
  ) {
    this.#client = client
    this.#leases = leases
    this.#world = world
    this.#session = session
    this.#onEnded = onEnded
  }

  get(key: string, owner: string): Tracked | undefined {
    const entries = this.#entries.get(key)
    if (entries) for (const entry of entries) if (entry.owner === owner) return entry
    return undefined
  }

  isBoundTo(key: string, lease: EtcdLease): boolean {
    return this.#entries.get(key)?.some((entry) => entry.lease === lease) === true
  }

  /** Without iterators: for thousands of locks that are held they would be most of what has to be collected. */
  #each(visit: (entry: Tracked) => void): void {
    this.#entries.forEach((entries) => {
      for (let i = 0; i < entries.length; i++) visit(entries[i] as Tracked)
    })
  }

  #set(entry: Tracked): void {
    entry.isForgotten = false
    const entries = this.#entries.get(entry.key)
    if (entries) entries.push(entry)
    else this.#entries.set(entry.key, [entry])
  }

  #delete(entry: Tracked): void {
    entry.isForgotten = true
    const entries = this.#entries.get(entry.key) as Tracked[]
    if (entries.length === 1) this.#entries.delete(entry.key)
    else entries.splice(entries.indexOf(entry), 1)
  }

  /** What is held by this owner with this grant. */
  heldBy(owner: string, isGrant: (grantRevision: number) => boolean): Tracked | undefined {
    let found: Tracked | undefined
    this.#each((entry) => {
      if (entry.owner === owner && entry.record.state === 'held' && isGrant(entry.grantRevision)) found ??= entry
    })
    return found
  }

  /** The lease counts one more key already: it was bound before the write. */
  add(facts: EntryFacts): Tracked {
    const entry = new Tracked(facts)
    this.remove(entry.key, entry.owner)
    this.#set(entry)
    this.#plan(entry.deadline)
    return entry
  }

  /** It moved to another lease, which was bound before. */
  moved(entry: Tracked, lease: EtcdLease): void {
    const before = entry.lease
    entry.lease = lease
    this.#leases.unbind(before)
  }

  prolong(entry: Tracked, deadline: number): void {
    if (entry.isAbandoned) return
    entry.deadline = Math.max(entry.deadline, deadline)
    this.#plan(entry.deadline)
  }

  /** Those of them that are still on this lease, with one look at the timer for all. */
  prolongAll(
    entries: readonly Tracked[],
    { from, to, lease }: { from: number; to: number; lease: EtcdLease },
    deadline: number,
  ): void {
    for (let i = from; i < to; i++) {
      const entry = entries[i] as Tracked
      if (entry.lease === lease && entry.deadline < deadline && !entry.isAbandoned) entry.deadline = deadline
    }
    this.#plan(deadline)
  }

  remove(key: string, owner: string): void {
    const entry = this.get(key, owner)
    if (!entry) return
    this.#delete(entry)
    this.#leases.unbind(entry.lease)
  }

  /** Only if it is still this very entry. */
  forget(entry: Tracked): void {
    if (this.get(entry.key, entry.owner) === entry) this.remove(entry.key, entry.owner)
  }

  /** Its removal was not answered: it is tried again until it is certain. */
  abandon(entry: Tracked): void {
    entry.isAbandoned = true
    entry.deadline = this.#world.now() + RETRY_MS
    this.#plan(entry.deadline)
  }

  /** A write with this lease was not answered. The lease is given up, so that what arrives much later fails. */
  orphan({ key, owner }: { key: string; owner: string }, etcdKey: Buffer, attempt: number, lease: EtcdLease): void {
    this.#orphans.push({ key, owner, etcdKey, attempt, until: this.#world.now() + 2 * lease.ttlMs })
    this.#leases.retire(lease)
    this.#plan(this.#world.now() + RETRY_MS)
  }

  #plan(at: number): void {
    if (this.#closed || at >= this.#timerAt) return
    this.#timer?.()
    this.#timerAt = at
    this.#timer = this.#world.after(Math.max(at - this.#world.now(), 0) + 1, () => {
      this.#timerAt = Number.POSITIVE_INFINITY
      void this.#sweep()
    })
  }

  async #sweep(): Promise<void> {
    if (this.#sweeping) return this.#plan(this.#world.now() + RETRY_MS)
    const now = this.#world.now()
    const due: Tracked[] = []
    const next = this.#nextAfter(now, due)
    if (due.length > 0 || this.#orphans.length > 0) {
      this.#sweeping = true
      // Removed here first: a renewal that comes now finds that its time has passed.
      for (const entry of due) {
        this.#delete(entry)
        this.#onEnded(entry)
      }
      for (let from = 0; from < due.length; from += MOST_REMOVALS)
        await this.#removeEnded(due.slice(from, from + MOST_REMOVALS))
      await this.#removeOrphans()
      this.#sweeping = false
      if (this.#orphans.length > 0) this.#plan(now + RETRY_MS)
      this.#plan(this.#nextAfter(now))
    } else this.#plan(next)
  }

  /** When the next one ends, with those that have ended collected in `ended`. */
  #nextAfter(now: number, ended?: Tracked[]): number {
    let next = Number.POSITIVE_INFINITY
    this.#each((entry) => {
      if (ended && entry.hasEnded(now)) return void ended.push(entry)
      const at = entry.busy > 0 ? Math.max(entry.deadline, now + RETRY_MS) : entry.deadline
      if (at < next) next = at
    })
    return next
  }

  async #removeEnded(due: readonly Tracked[]): Promise<void> {
    try {
      const { answer } = await this.#client.txn({ compare: [], success: due.map(removalOf), failure: [] })
      for (const [i, entry] of due.entries()) this.#removedOrChanged(entry, answer.results[i]?.txn?.results[0])
    } catch {
      for (const entry of due) {
        // The same owner may have been granted the key anew. A lease that has ended took the key with it.
        if (this.get(entry.key, entry.owner) || entry.lease.validUntil + entry.lease.ttlMs <= this.#world.now()) {
          this.#leases.unbind(entry.lease)
        } else {
          entry.deadline = this.#world.now() + RETRY_MS
          this.#set(entry)
        }
      }
    }
  }

  /** A write of ours that was not answered is removed as well; what another store object of the same owner wrote is its own. */
  #removedOrChanged(entry: Tracked, result: OperationResult | undefined): void {
    const kv = result?.range?.kvs[0]
    const isOurs = kv?.createRevision === entry.createRevision && decodeRecord(kv.value)?.session === this.#session
    if (!isOurs || this.get(entry.key, entry.owner)) return this.#leases.unbind(entry.lease)
    entry.modRevision = kv.modRevision
    entry.deadline = this.#world.now()
    this.#set(entry)
  }

  async #removeOrphans(): Promise<void> {
    const now = this.#world.now()
    this.#orphans = this.#orphans.filter(({ until }) => until > now)
    for (let from = 0; from < this.#orphans.length; from += MOST_REMOVALS)
      await this.#removeFound(this.#orphans.slice(from, from + MOST_REMOVALS))
  }

  async #removeFound(orphans: readonly Orphan[]): Promise<void> {
    try {
      const reads = orphans.map(({ etcdKey }): Operation => ({ range: { key: etcdKey } }))
      const { answer } = await this.#client.txn({ compare: [], success: reads, failure: [] })
      const found = new Map<string, Operation>()
      for (const [i, orphan] of orphans.entries()) {
        const kv = answer.results[i]?.range?.kvs[0]
        if (!kv || !this.#isOrphan(orphan, kv)) continue
        found.set(kv.key.toString(), removalOf({ etcdKey: kv.key, modRevision: kv.modRevision }))
      }
      if (found.size > 0) await this.#client.txn({ compare: [], success: [...found.values()], failure: [] })
    } catch {
      // Tried again.
    }
  }

  #isOrphan({ key, owner, attempt }: Orphan, kv: KeyValue): boolean {
    // The attempt may have been found and used since.
    if (this.get(key, owner)?.modRevision === kv.modRevision) return false
    const record = decodeRecord(kv.value)
    return record?.session === this.#session && record.attempt === attempt
  }

  /** Removes nothing: what is held ends with its lease. */
  close(): void {
    this.#closed = true
    this.#timer?.()
  }
}

/** Only what is as we wrote it: another client may have prolonged it since. */
function removalOf({ etcdKey, modRevision }: Pick<Tracked, 'etcdKey' | 'modRevision'>): Operation {
  const remove = { remove: { key: etcdKey } }
  return {
    txn: {
      compare: [{ key: etcdKey, is: '=', mod: modRevision }],
      success: [remove],
      failure: [{ range: { key: etcdKey } }],
    },
  }
}
