/** A grant counts only once its replicas have it: what a failover can then still lose is only what was refused anyway. */
import { describe, expect, test, type TestContext } from 'vitest'
import { type RedisServer, startRedis, startRedisCluster } from '../../../testbed/servers/index.js'
import { createLocks, InvalidOptionError, openStore, StoreUnavailableError } from '../../../src/index.js'
import { ALL, type Claim, type Store, type StoreEvent } from '../../../src/store.js'
import { type RedisStoreOptions, redis } from '../../../src/stores/redis/index.js'
import { clusterOf, type Connection, eventually, ioredis, nodeRedis } from '../../../testbed/redis/fixtures.js'

/** A master and its replica, in step. */
async function pair(t: TestContext): Promise<{ master: RedisServer; replica: RedisServer }> {
  const fast = ['--repl-diskless-sync-delay', '0']
  const master = await startRedis({ args: fast })
  t.onTestFinished(() => master.stop())
  const replica = await startRedis({ args: [...fast, '--replicaof', `127.0.0.1 ${master.port}`] })
  t.onTestFinished(() => replica.stop())
  await t.expect.poll(async () => String(await master.command('INFO', 'replication'))).toMatch(/state=online/)
  return { master, replica }
}

function on(t: TestContext, connection: Connection, options: RedisStoreOptions = { replicas: 1, within: '3s' }): Store {
  t.onTestFinished(() => void connection.end())
  const store = redis(connection.client, options)
  t.onTestFinished(() => store.close())
  return store
}

let counter = 0
function claim(key: string, over: Partial<Claim> = {}): Claim {
  return { key, owner: `test/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

const clients = {
  'ioredis 6': async (url: string) => ioredis[6](url),
  'ioredis 5': async (url: string) => ioredis[5](url),
  'node-redis': async (url: string) => nodeRedis(url),
}

describe.concurrent.each(Object.entries(clients))('%s', (_name, connect) => {
  test.concurrent('a grant is on the replica before it is answered; with the replica stopped every acquire is refused and released', async (t) => {
    const { master, replica } = await pair(t)
    const store = on(t, await connect(master.url))
    for (let i = 0; i < 20; i++) {
      expect(
        await store.acquire([claim(`lock:${i}`), claim(`semaphore:${i}`, { weight: 1, capacity: 2 })]),
      ).toMatchObject([{ granted: true }, { granted: true }])
      expect(await replica.command('EXISTS', `lock:${i}`, `semaphore:${i}`)).toBe(2)
    }
    await replica.freeze()
    t.onTestFinished(() => replica.thaw())
    const [answer] = await store.acquire([claim('lock:late')])
    expect(answer).toMatchObject({ granted: 'unknown' })
    const error = answer && 'error' in answer ? answer.error : undefined
    expect(error).toBeInstanceOf(StoreUnavailableError)
    expect(String(error)).toMatch(/0 of 1 replicas acknowledged the grant within 3s/)
    expect(await master.command('EXISTS', 'lock:late')).toBe(0)
    await expect(createLocks(store).acquire('late', { wait: 0 })).rejects.toBeInstanceOf(StoreUnavailableError)
    await replica.thaw()
    await t.expect.poll(async () => (await store.acquire([claim('lock:again')]))[0]).toMatchObject({ granted: true })
  })

  test.concurrent('a waiter that was handed the lock asks the replicas too before it believes it', async (t) => {
    const { master, replica } = await pair(t)
    const options = { replicas: 1, within: '3s' } as const
    const [store, holder] = [on(t, await connect(master.url), options), on(t, await connect(master.url), {})]
    const heard: StoreEvent[] = []
    expect(await store.watch?.('lock:a', (event) => heard.push(event)).ready).toBe(true)
    const [held, waiting] = [claim('lock:a'), claim('lock:a', { queueMs: 30_000 })]
    await holder.acquire([held])
    await store.acquire([waiting])
    await holder.release([held])
    await t.expect.poll(() => heard).toMatchObject([{ type: 'granted', owner: waiting.owner }])
    expect(await store.release([waiting])).toEqual([{ outcome: 'released' }])
    const [second, next] = [claim('lock:a'), claim('lock:a', { queueMs: 30_000 })]
    await holder.acquire([second])
    await store.acquire([next])
    await replica.freeze()
    t.onTestFinished(() => replica.thaw())
    heard.length = 0
    await holder.release([second])
    await t.expect.poll(() => heard).toMatchObject([{ type: 'freed', owner: next.owner }])
    await t.expect.poll(() => master.command('EXISTS', 'lock:a')).toBe(0)
    await holder.acquire([claim('lock:a')])
    const renewal = { key: 'lock:a', owner: next.owner, ttlMs: 30_000, queued: true }
    expect(await store.renew([renewal])).toMatchObject([{ outcome: 'gone' }])
  })
})

test.concurrent('each master of a cluster is asked about its own grants', async (t) => {
  // Longer than a busy machine stops: a fail-over that nobody asked for may lose what is not replicated yet.
  const cluster = await startRedisCluster({ nodeTimeoutMs: 60_000 })
  t.onTestFinished(() => cluster.stop())
  const store = on(t, clusterOf.ioredis6(cluster))
  const keys = Array.from({ length: 30 }, (_, i) => `lock:${i}`)
  for (const key of keys) expect(await eventually(() => store.acquire([claim(key)]))).toMatchObject([{ granted: true }])
  for (const replica of cluster.replicas) await replica.freeze()
  t.onTestFinished(async () => {
    for (const replica of cluster.replicas) await replica.thaw()
  })
  const late = await Promise.all(keys.slice(0, 3).map((key) => store.acquire([claim(`${key}:late`)])))
  expect(late.flat()).toMatchObject([{ granted: 'unknown' }, { granted: 'unknown' }, { granted: 'unknown' }])
})

test.concurrent('replicas and within are options of the URL too, and are checked', async (t) => {
  const { master, replica } = await pair(t)
  const store = await openStore(`${master.url}?replicas=1&within=3s`)
  t.onTestFinished(() => store.close())
  expect(await store.acquire([claim('lock:a')])).toMatchObject([{ granted: true }])
  await replica.freeze()
  t.onTestFinished(() => replica.thaw())
  const [answer] = await store.acquire([claim('lock:b')])
  expect(String(answer && 'error' in answer && answer.error)).toMatch(/within 3s/)
  const { client, end } = ioredis[6](master.url)
  t.onTestFinished(() => void end())
  for (const options of [{ replicas: -1 }, { replicas: 1.5 }, { replicas: 1, within: 'soon' }, { replcas: 1 }])
    expect(() => redis(client, options as RedisStoreOptions)).toThrow(InvalidOptionError)
})
