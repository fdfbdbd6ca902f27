import { InvalidOptionError } from '../../errors.js'
import type { Adapter } from './adapter.js'
import { type IoRedis, ioredisAdapter, isIoRedis } from './ioredis.js'
import { type NodeRedis, isNodeRedis, nodeRedisAdapter } from './node-redis.js'

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
