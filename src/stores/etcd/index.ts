/**
 * Leases on an etcd cluster: decided by consensus, with the revision as fencing token, and no caveat about clocks or failovers.
 *
 * @module
 */
import type { Store } from '../../store.js'
import { createEtcd, type EtcdOptions } from './create.js'

export type { EtcdCredentials, EtcdOptions } from './create.js'
export type { EtcdTls } from './connection.js'
export { type EtcdGuard, guard, type GuardedLock } from './guard.js'

/**
 * A store on an etcd cluster. `hosts` are its endpoints, such as `['10.0.0.1:2379', '10.0.0.2:2379']`: any of them will do, and
 * the others are asked when one does not answer.
 *
 * @example
 * ```ts
 * const locks = createLocks(etcd(['10.0.0.1:2379', '10.0.0.2:2379', '10.0.0.3:2379']))
 * ```
 */
export function etcd(hosts: string | readonly string[], options: EtcdOptions = {}): Store {
  return createEtcd(hosts, options)
}
