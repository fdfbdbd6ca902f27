/**
 * Redlock: leases on a majority of independent Redis servers, with fencing tokens that grow over every grant.
 *
 * @module
 */
import type { Store } from '../../store.js'
import type { RedlockClient } from './connection.js'
import { createRedlock, type RedlockOptions } from './store.js'

export type { RedlockClient } from './connection.js'
export type { RedlockOptions } from './store.js'

/**
 * A store on 3 or more independent Redis servers, with your own clients: ioredis, node-redis, or some of each. It works
 * while a majority of them does. The clients are borrowed: `close()` leaves them open.
 *
 * @example
 * ```ts
 * const servers = ['redis://a', 'redis://b', 'redis://c'].map((url) => new Redis(url))
 * const locks = createLocks(redlock(servers))
 * ```
 */
export function redlock(clients: readonly RedlockClient[], options: RedlockOptions = {}): Store {
  return createRedlock(clients, options, async () => {})
}
