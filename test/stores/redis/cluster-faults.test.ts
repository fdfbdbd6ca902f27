/** A cluster in trouble: what a process does to the servers that are well, and to its own leases. */
import { afterEach, describe, expect, test } from 'vitest'
import { type RedisCluster, type RedisClusterOptions, startRedisCluster } from '../../../scripts/servers/index.js'
import { createLocks } from '../../../src/index.js'
import { ALL, type Claim, type Store } from '../../../src/store.js'
import { redis } from '../../../src/stores/redis/index.js'
import { slotOf } from '../../../src/stores/redis/slots.js'
import { clusterOf, type Connection, eventually } from './places.js'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean()
})

async function start(options: RedisClusterOptions = {}): Promise<RedisCluster> {
  const cluster = await startRedisCluster({ replicasPerMaster: 0, nodeTimeoutMs: 800, ...options })
  cleanups.push(() => cluster.stop())
  return cluster
}

function on<C extends Connection>(connection: C): { client: C['client']; store: Store } {
  cleanups.push(connection.end)
  const store = redis(connection.client)
  cleanups.push(() => store.close())
  return { client: connection.client, store }
}

let counter = 0
function claim(key: string, over: Partial<Claim> = {}): Claim {
  return { key, owner: `test/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

const clients = {
  'ioredis 6': async (cluster: RedisCluster) => clusterOf.ioredis6(cluster),
  'ioredis 5': async (cluster: RedisCluster) => clusterOf.ioredis5(cluster),
  'node-redis': async (cluster: RedisCluster) => clusterOf.nodeRedis(cluster),
}

/** Names whose slots the third of three masters serves, or the others. */
function names(count: number, onThird: boolean): string[] {
  const found: string[] = []
  for (let i = 0; found.length < count; i++) if (slotOf(`lock:n${i}`) >= 10_923 === onThird) found.push(`n${i}`)
  return found
}

async function scripts(cluster: RedisCluster): Promise<number> {
  const stats = await Promise.all(cluster.masters.slice(0, 2).map((node) => node.command('INFO', 'commandstats')))
  return stats.reduce<number>(
    (sum, text) => sum + Number(/cmdstat_evalsha:calls=(\d+)/.exec(String(text))?.[1] ?? 0),
    0,
  )
}

describe.each(Object.entries(clients))('%s', (_name, connect) => {
  test('a dead master casts doubt on its own slots only, and its process leaves the healthy masters in peace', async () => {
    const cluster = await start()
    for (const node of cluster.nodes) await node.command('CONFIG', 'SET', 'cluster-require-full-coverage', 'no')
    const { store } = on(await connect(cluster))
    const locks = createLocks(store, { ttl: '60s' })
    cleanups.push(() => locks.close({ grace: 0 }))
    const [healthy, doomed] = [names(60, false), names(3, true)]
    await Promise.all([...healthy, ...doomed].map((name) => locks.acquire(name)))
    let doubts = 0
    const doubted = new Set<string>()
    store.onDoubt?.((affected) => {
      doubts++
      for (const name of [...healthy, ...doomed]) if (!affected || affected(`lock:${name}`)) doubted.add(name)
    })
    await cluster.masters[2]?.kill()
    const before = await scripts(cluster)
    const until = performance.now() + 4_000
    while (performance.now() < until) {
      // As an application would: it goes on asking for what the dead master served.
      await Promise.resolve(store.acquire([claim(`lock:${doomed[0]}`)])).catch(() => {})
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
    expect([...doubted].filter((name) => healthy.includes(name))).toEqual([])
    expect(doubts).toBeLessThan(12)
    expect((await scripts(cluster)) - before).toBeLessThan(60)
  })
})
