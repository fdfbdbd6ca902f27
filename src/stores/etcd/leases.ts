/**
 * etcd's leases. A lease shared by all locks of one ttl in this process makes their heartbeat one request; a lock that is not
 * renewed, and a record that outlives the process, has a lease of its own (docs/adr/etcd-lease-classes.md).
 *
 * @module
 */
import { randomBytes } from 'node:crypto'
import type { World } from '../../util/world.js'
import type { LeaseCanaries } from './canaries.js'
import type { EtcdClient } from './client.js'
import { isLeaseTaken } from './errors.js'
import type { EtcdKeys } from './keys.js'
import type { Header } from './messages.js'

/** Share of its ttl that a shared lease must have left to be used for another grant. Less, and it is prolonged before. */
const ENOUGH_LEFT = 2 / 3
/** The same for a queue entry that is written while the lease is prolonged. An entry that is lost nevertheless costs its place. */
const ENOUGH_FOR_QUEUE = 1 / 3

/** How long closing waits for unused leases to be revoked, in milliseconds: they end by themselves, and the caller waits. */
const CLOSE_MS = 1_000

export class EtcdLease {
  readonly id: bigint
  /** What the server granted, which may be more than was asked for. */
  readonly ttlMs: number
  readonly shared: boolean
  /** Until when it exists for certain, by our clock: the moment of asking plus what was granted. */
  validUntil: number
  /** No new key is bound to it; those that are move to another one with their next renewal. */
  retired = false
  /** Asked for once: a call that chose the lease before it was given up binds and unbinds it after that. */
  revoked = false
  /** How many keys of this process are bound to it, as far as is known. */
  keys = 0

  constructor(id: bigint, ttlMs: number, shared: boolean, validUntil: number) {
    this.id = id
    this.ttlMs = ttlMs
    this.shared = shared
    this.validUntil = validUntil
  }
}

/** Takes the headers of reads that began after a keep-alive was answered. */
export type Confirm = (reads: readonly Header[]) => void

export class EtcdLeases {
  readonly #client: EtcdClient
  readonly #keys: EtcdKeys
  readonly #world: World
  readonly #canaries: LeaseCanaries | undefined
  readonly #shared = new Map<number, EtcdLease>()
  readonly #granting = new Map<number, Promise<EtcdLease>>()
  readonly #keepingAlive = new Map<EtcdLease, Promise<Confirm>>()

  constructor(client: EtcdClient, keys: EtcdKeys, world: World, canaries?: LeaseCanaries) {
    this.#client = client
    this.#keys = keys
    this.#world = world
    this.#canaries = canaries
  }

  /** The lease of all locks of this ttl. */
  async shared(ttlMs: number): Promise<EtcdLease> {
    const seconds = secondsOf(ttlMs)
    const lease = this.#shared.get(seconds)
    if (lease && this.#isFresh(lease)) return lease
    if (lease && !lease.retired && lease.validUntil > this.#world.now()) {
      await this.refresh([lease])
      if (this.#isFresh(lease)) return lease
    }
    return this.#grantShared(seconds)
  }

  /**
   * The same for a queue entry, if it can be used without waiting; it is prolonged meanwhile. Prolonged first, a short wait would
   * end before it is known that the key is busy.
   */
  sharedAtOnce(ttlMs: number): EtcdLease | undefined {
    const lease = this.#shared.get(secondsOf(ttlMs))
    if (!lease || this.#isFresh(lease)) return lease
    if (lease.validUntil - this.#world.now() < lease.ttlMs * ENOUGH_FOR_QUEUE) return undefined
    this.refresh([lease]).catch(() => {})
    return lease.retired ? undefined : lease
  }

  #isFresh(lease: EtcdLease): boolean {
    return !lease.retired && lease.validUntil - this.#world.now() >= lease.ttlMs * ENOUGH_LEFT
  }

  #grantShared(seconds: number): Promise<EtcdLease> {
    let granting = this.#granting.get(seconds)
    if (!granting) {
      granting = this.#grant(seconds, true)
        .then((lease) => {
          const before = this.#shared.get(seconds)
          if (before) this.retire(before)
          this.#shared.set(seconds, lease)
          return lease
        })
        .finally(() => this.#granting.delete(seconds))
      this.#granting.set(seconds, granting)
    }
    return granting
  }

  own(ttlMs: number): Promise<EtcdLease> {
    return this.#grant(secondsOf(ttlMs), false)
  }

  async #grant(seconds: number, shared: boolean): Promise<EtcdLease> {
    // Chosen here, so that a grant whose answer was lost is not made twice.
    const id = randomBytes(8).readBigUInt64BE() >> 2n
    const sentAt = this.#world.now()
    let grantedMs = seconds * 1_000
    try {
      grantedMs = (await this.#client.grantLease(id, seconds)).ttlS * 1_000
    } catch (error) {
      // An earlier attempt of this very call, which was not answered: granted for at least what was asked for.
      if (!isLeaseTaken(error)) throw error
    }
    return new EtcdLease(id, grantedMs, shared, sentAt + grantedMs)
  }

  /** Prolongs leases by their ttl, with a read of its own that confirms it. */
  async refresh(leases: Iterable<EtcdLease>): Promise<void> {
    const confirm = await this.keepAlive(leases)
    const { header } = await this.#client.range({ key: this.#keys.offset, countOnly: true })
    confirm([header])
  }

  /**
   * Asks for more time. A server that was frozen while another became the leader may answer a keep-alive that counts for nothing. So
   * it counts once the caller has confirmed it with the headers of reads that began after this was settled and that a majority
   * answered: only if one of them saw the same term was the keep-alive the leader's.
   */
  async keepAlive(leases: Iterable<EtcdLease>): Promise<Confirm> {
    const due: EtcdLease[] = []
    const underWay = new Set<Promise<Confirm>>()
    for (const lease of leases) {
      const asking = this.#keepingAlive.get(lease)
      if (asking) underWay.add(asking)
      else due.push(lease)
    }
    if (due.length > 0) {
      const asking = this.#keepAlive(due).finally(() => {
        for (const lease of due) this.#keepingAlive.delete(lease)
      })
      for (const lease of due) this.#keepingAlive.set(lease, asking)
      underWay.add(asking)
    }
    const confirms = await Promise.all(underWay)
    return (reads) => {
      for (const confirm of confirms) confirm(reads)
    }
  }

  async #keepAlive(leases: readonly EtcdLease[]): Promise<Confirm> {
    const sentAt = this.#world.now()
    const states = await this.#client.keepAlive(leases.map(({ id }) => id))
    return (reads) => {
      for (const lease of leases) {
        const state = states.get(lease.id)
        // A new leader may not have read its log yet: the keys that are bound to the lease tell whether it is gone.
        if (!state || state.ttlS <= 0) this.retire(lease)
        else if (reads.some(({ raftTerm }) => raftTerm === state.header.raftTerm)) {
          lease.validUntil = Math.max(lease.validUntil, sentAt + state.ttlS * 1_000)
        }
      }
      // From the first keep-alive on a former leader may believe in an earlier end.
      this.#canaries?.add(leases.filter(({ retired }) => !retired))
    }
  }

  /** The outcome of a write with this lease is not known, or it is gone. Once its last key has moved, it is revoked: what arrives late then fails. */
  retire(lease: EtcdLease): void {
    lease.retired = true
    for (const [seconds, each] of this.#shared) if (each === lease) this.#shared.delete(seconds)
    if (lease.keys === 0) this.revoke(lease)
  }

  /** It ended without our doing. */
  ended(lease: EtcdLease): void {
    lease.revoked = true
    this.retire(lease)
  }

  bind(lease: EtcdLease): void {
    lease.keys++
  }

  unbind(lease: EtcdLease): void {
    lease.keys--
    if (lease.keys === 0 && (lease.retired || !lease.shared)) this.revoke(lease)
  }

  /** In the background: one that is not revoked ends by itself. */
  revoke(lease: EtcdLease): void {
    lease.retired = true
    if (lease.revoked || lease.validUntil <= this.#world.now()) return
    lease.revoked = true
    this.#canaries?.forget(lease)
    this.#client.revokeLease(lease.id).catch(() => {})
  }

  /** Leases without keys. What still has keys ends by itself. */
  async close(): Promise<void> {
    const unused = [...this.#shared.values()].filter(({ keys }) => keys === 0)
    this.#shared.clear()
    const revoked = Promise.all(unused.map(({ id }) => this.#client.revokeLease(id).catch(() => {})))
    let cancel = (): void => {}
    const limit = new Promise<void>((resolve) => {
      cancel = this.#world.after(CLOSE_MS, resolve, true)
    })
    await Promise.race([revoked, limit])
    cancel()
  }
}

/** The ttl class: etcd counts whole seconds. */
const secondsOf = (ttlMs: number): number => Math.max(Math.ceil(ttlMs / 1_000), 1)
