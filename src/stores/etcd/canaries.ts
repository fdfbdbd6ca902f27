/**
 * A key for each lease that is kept alive, which ends with it: its deletion tells the holders at once that the lease was revoked, by
 * hand or by a former leader (docs/stores/etcd.md). Without it they would learn it from their next renewal.
 *
 * @module
 */
import type { EtcdClient } from './client.js'
import type { EtcdKeys } from './keys.js'
import type { EtcdLease } from './leases.js'
import type { Operation } from './messages.js'

/** Keys written in one transaction: etcd takes 128 operations. */
const AT_ONCE = 100

export class LeaseCanaries {
  readonly #client: EtcdClient
  readonly #keys: EtcdKeys
  readonly #session: string
  /** Whether somebody would be told. */
  readonly #isHeard: () => boolean
  readonly #leases = new Map<string, EtcdLease>()

  constructor(client: EtcdClient, keys: EtcdKeys, session: string, isHeard: () => boolean) {
    this.#client = client
    this.#keys = keys
    this.#session = session
    this.#isHeard = isHeard
  }

  /** In the background, and a second time for the same lease only if the first was not answered. */
  add(leases: readonly EtcdLease[]): void {
    if (!this.#isHeard()) return
    const added = leases.filter((lease) => !lease.revoked && !this.#leases.has(this.#keyOf(lease).toString()))
    for (let from = 0; from < added.length; from += AT_ONCE) void this.#write(added.slice(from, from + AT_ONCE))
  }

  async #write(leases: readonly EtcdLease[]): Promise<void> {
    const puts = leases.map((lease): Operation => {
      const key = this.#keyOf(lease)
      this.#leases.set(key.toString(), lease)
      return { put: { key, value: Buffer.of(), lease: lease.id } }
    })
    try {
      await this.#client.txn({ compare: [], success: puts, failure: [] })
    } catch {
      // Written anew with the next keep-alive.
      for (const lease of leases) this.forget(lease)
    }
  }

  #keyOf({ id }: EtcdLease): Buffer {
    return this.#keys.canary(this.#session, id.toString(16))
  }

  /** The lease that ended with this key. Undefined: we revoked it ourselves, or the key is something else. */
  ended(key: Buffer): EtcdLease | undefined {
    const id = key.toString()
    const lease = this.#leases.get(id)
    this.#leases.delete(id)
    return lease
  }

  forget(lease: EtcdLease): void {
    this.#leases.delete(this.#keyOf(lease).toString())
  }
}
