import { InvalidOptionError } from '../../errors.js'
import type { Adapter } from '../../clients/redis/adapter.js'
import { ioredisAdapter, isIoRedis } from '../../clients/redis/ioredis.js'
import { isNodeRedis, nodeRedisAdapter } from '../../clients/redis/node-redis.js'

/** An ioredis `Redis` (5 or 6) or a node-redis client (5 or 6), each of one server. */
export type RedlockClient =
  | { status: string; evalsha(...args: never[]): unknown; on(...args: never[]): unknown }
  | { isOpen: boolean; sendCommand(...args: never[]): unknown; on(...args: never[]): unknown }

/** The way to one server. */
export interface Line {
  /** For messages: `10.0.0.3:6379`. */
  readonly name: string
  readonly adapter: Adapter
}

export function lineFor(client: unknown, place: number): Line {
  const adapter = adapterFor(client)
  if (adapter) return { name: nameOf(client as object, place), adapter }
  throw new InvalidOptionError(`clients[${place}]`, client, 'an ioredis Redis or a node-redis client of one server')
}

/** Not what speaks to several servers by itself: these are not independent, or not the same from one day to the next. */
function adapterFor(client: unknown): Adapter | undefined {
  if (typeof client !== 'object' || client === null) return undefined
  const { isCluster } = client as { isCluster?: unknown }
  if (isCluster === true || 'nodeClient' in client || 'getMasterNode' in client) return undefined
  if (isIoRedis(client)) return ioredisAdapter(client)
  return isNodeRedis(client) ? nodeRedisAdapter(client) : undefined
}

function nameOf(client: object, place: number): string {
  const { options } = client as { options?: { socket?: object } }
  const { host, port, path } = (options?.socket ?? options ?? {}) as Record<string, unknown>
  if (path) return String(path)
  return host || port ? `${host ?? 'localhost'}:${port ?? 6379}` : `node ${place + 1}`
}
