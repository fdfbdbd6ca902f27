/**
 * Leases in Redis: one server, Sentinel or Cluster.
 *
 * @module
 */
import type { Store } from '../../store.js'
import { adapterOf } from '../../clients/redis/open.js'
import { createRedisStore, type RedisStoreOptions } from './create.js'

export type { RedisStoreOptions } from './create.js'

/** An ioredis `Redis` or `Cluster` (5 or 6), or what node-redis (5 or 6) makes: client, cluster or sentinel. */
export type RedisClient =
  | { status: string; evalsha(...args: never[]): unknown; on(...args: never[]): unknown }
  | { isOpen: boolean; sendCommand(...args: never[]): unknown; on(...args: never[]): unknown }

/**
 * A store on Redis, with your own client, which is borrowed: `close()` leaves it open. While a lock is held or waited
 * for, one more connection (on a cluster one per master) receives its events, made by duplicating the client.
 *
 * @example
 * ```ts
 * const locks = createLocks(redis(new Redis('redis://localhost')))
 * ```
 */
export function redis(client: RedisClient, options: RedisStoreOptions = {}): Store {
  return createRedisStore(adapterOf(client), options)
}
