/**
 * Leases in Redis: one server, Sentinel or Cluster.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'
import type { Store } from '../../store.js'
import type { Adapter } from '../../clients/redis/adapter.js'
import { type IoRedis, ioredisAdapter, isIoRedis } from '../../clients/redis/ioredis.js'
import { type NodeRedis, isNodeRedis, nodeRedisAdapter } from '../../clients/redis/node-redis.js'
import { type RedisStoreOptions, createRedisStore } from './store.js'

export type { RedisStoreOptions } from './store.js'

/** An ioredis `Redis` or `Cluster` (5 or 6), or what node-redis (5 or 6) makes: client, cluster or sentinel. */
export type RedisClient =
  | { status: string; evalsha(...args: never[]): unknown; on(...args: never[]): unknown }
  | { isOpen: boolean; sendCommand(...args: never[]): unknown; on(...args: never[]): unknown }

/**
 * A store on Redis, with your own client. It is borrowed: `close()` leaves it open. While somebody waits, one more
 * connection listens, made by duplicating it.
 *
 * @example
 * ```ts
 * const locks = createLocks(redis(new Redis('redis://localhost')))
 * ```
 */
export function redis(client: RedisClient, options: RedisStoreOptions = {}): Store {
  return createRedisStore(adapterOf(client), options)
}

/** Recognised by shape, so that no client has to be imported. */
export function adapterOf(client: unknown): Adapter {
  if (typeof client === 'object' && client !== null) {
    if (isIoRedis(client)) return ioredisAdapter(client as IoRedis)
    if (isNodeRedis(client)) return nodeRedisAdapter(client as NodeRedis)
  }
  throw new InvalidOptionError(
    'client',
    client,
    'an ioredis Redis or Cluster, or a node-redis client, cluster or sentinel (not a pool, a multi or a URL)',
  )
}
