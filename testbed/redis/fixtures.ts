/** Real servers and real clients for the tests of the Redis store: each combination once, by name. */
import { Cluster as Cluster6, Redis as Redis6 } from 'ioredis'
import { Cluster as Cluster5, Redis as Redis5 } from 'ioredis5'
import {
  createClient,
  createCluster,
  createSentinel,
  type RedisClientType,
  type RedisClusterType,
  type RedisSentinelType,
} from 'redis'
import type { RedisCluster, SentinelSetup } from '../servers/index.js'
import type { Store } from '../../src/store.js'
import { type RedisClient, type RedisStoreOptions, redis } from '../../src/stores/redis/index.js'
import type { Setup } from '../../src/testing/index.js'

export interface Connection {
  client: RedisClient
  end: () => unknown
}

const ignore = (): void => {}
const hosts = (ports: number[]) => ports.map((port) => ({ host: '127.0.0.1', port }))

export const ioredis = {
  6: (url: string, options: object = {}): Connection & { client: Redis6 } => {
    const client = new Redis6(url, options)
    client.on('error', ignore)
    return { client, end: () => client.disconnect() }
  },
  5: (url: string, options: object = {}): Connection & { client: Redis5 } => {
    const client = new Redis5(url, options)
    client.on('error', ignore)
    return { client, end: () => client.disconnect() }
  },
}

export async function nodeRedis(url: string, options: object = {}): Promise<Connection & { client: RedisClientType }> {
  const client: RedisClientType = createClient({ url, ...options })
  client.on('error', ignore)
  await client.connect()
  return { client, end: () => client.destroy() }
}

export const clusterOf = {
  ioredis6: (cluster: RedisCluster, options: object = {}): Connection & { client: Cluster6 } => {
    const client = new Cluster6(hosts(cluster.nodes.map(({ port }) => port)), options)
    client.on('error', ignore)
    return { client, end: () => client.disconnect() }
  },
  ioredis5: (cluster: RedisCluster, options: object = {}): Connection & { client: Cluster5 } => {
    const client = new Cluster5(hosts(cluster.nodes.map(({ port }) => port)), options)
    client.on('error', ignore)
    return { client, end: () => client.disconnect() }
  },
  nodeRedis: async (
    cluster: RedisCluster,
    options: object = {},
  ): Promise<Connection & { client: RedisClusterType }> => {
    const rootNodes = hosts(cluster.nodes.map(({ port }) => port)).map((socket) => ({ socket }))
    const client: RedisClusterType = createCluster({ rootNodes, ...options })
    client.on('error', ignore)
    await client.connect()
    return { client, end: () => client.destroy() }
  },
}

export const sentinelOf = {
  ioredis6: (setup: SentinelSetup): Connection & { client: Redis6 } => {
    const sentinels = hosts(setup.sentinels.map(({ port }) => port))
    const client = new Redis6({ sentinels, name: setup.masterName })
    client.on('error', ignore)
    return { client, end: () => client.disconnect() }
  },
  nodeRedis: async (setup: SentinelSetup): Promise<Connection & { client: RedisSentinelType }> => {
    const sentinelRootNodes = hosts(setup.sentinels.map(({ port }) => port))
    const client: RedisSentinelType = createSentinel({ name: setup.masterName, sentinelRootNodes })
    client.on('error', ignore)
    await client.connect()
    return { client, end: () => client.destroy() }
  },
}

/**
 * Stores with a client each, as processes have; servers and clients end with it. Their timeout is long: many cases at once,
 * some of which list ten thousand names, keep a busy machine from answering within the two seconds of the default.
 */
export function setup(
  connect: () => Connection | Promise<Connection>,
  stop: () => Promise<void>,
  options?: RedisStoreOptions,
): Setup {
  const ends: (() => unknown)[] = []
  return {
    async store(): Promise<Store> {
      const { client, end } = await connect()
      ends.push(end)
      return redis(client, { timeout: '20s', ...options })
    },
    async close() {
      for (const end of ends) await end()
      await stop()
    },
  }
}

/** Again and again while it is unavailable. */
export async function eventually<T>(attempt: () => Promise<T> | T, withinMs = 10_000): Promise<T> {
  const deadline = performance.now() + withinMs
  for (;;) {
    try {
      return await attempt()
    } catch (error) {
      if (performance.now() > deadline) throw error
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
}
