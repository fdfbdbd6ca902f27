/**
 * A cluster in trouble: what a process does to the servers that are well, and to its own leases. The tests of a group run at
 * once, each with a cluster of its own: they mostly wait.
 */
import { describe, expect, test, type TestContext } from 'vitest'
import {
  type RedisCluster,
  type RedisClusterOptions,
  type RedisServer,
  startRedisCluster,
} from '../../../testbed/servers/index.js'
import { createLocks, StoreUnavailableError } from '../../../src/index.js'
import { ALL, type Claim, type Store } from '../../../src/store.js'
import { redis, type RedisStoreOptions } from '../../../src/stores/redis/index.js'
import { slotOf } from '../../../src/stores/redis/keys.js'
import { clusterRules } from '../../../testbed/redis/acl.js'
import { clusterOf, type Connection, eventually } from '../../../testbed/redis/fixtures.js'

/** `nodeTimeoutMs`: longer than a busy machine stops, or masters that are well are taken for dead. */
async function start(t: TestContext, options: RedisClusterOptions = {}): Promise<RedisCluster> {
  const cluster = await startRedisCluster({ replicasPerMaster: 0, nodeTimeoutMs: 60_000, ...options })
  t.onTestFinished(() => cluster.stop())
  return cluster
}

/** PATIENT: a busy machine does not answer within the default of two seconds, which would be an outage. */
const PATIENT = { timeout: '20s' } as const

function on<C extends Connection>(
  t: TestContext,
  connection: C,
  options: RedisStoreOptions = PATIENT,
): { client: C['client']; store: Store } {
  t.onTestFinished(() => void connection.end())
  const store = redis(connection.client, options)
  t.onTestFinished(() => store.close())
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

describe('a dead master', () => {
  test.concurrent.for(Object.entries(clients))(
    '%s: a dead master makes a process renew the locks of its own slots only, and send no more than before to healthy masters',
    async ([_name, connect], t) => {
      const cluster = await start(t, { nodeTimeoutMs: 2_000 })
      for (const node of cluster.nodes) await node.command('CONFIG', 'SET', 'cluster-require-full-coverage', 'no')
      // With the default timeout: requests to the dead master are given up after two seconds, and others sent instead.
      const { store } = on(t, await connect(cluster), {})
      const locks = createLocks(store, { ttl: '60s' })
      t.onTestFinished(() => locks.close({ grace: 0 }))
      const [healthy, doomed] = [names(60, false), names(3, true)]
      await Promise.all([...healthy, ...doomed].map((name) => locks.acquire(name)))
      let doubts = 0
      const doubted = new Set<string>()
      store.onPossibleLoss?.((affected) => {
        doubts++
        for (const name of [...healthy, ...doomed]) if (!affected || affected(`lock:${name}`)) doubted.add(name)
      })
      await cluster.masters[2]?.kill()
      const before = await scripts(cluster)
      const until = performance.now() + 5_000
      while (performance.now() < until) {
        // As an application would: it goes on asking for what the dead master served.
        await Promise.resolve(store.acquire([claim(`lock:${doomed[0]}`)])).catch(() => {})
        await new Promise((resolve) => setTimeout(resolve, 100))
      }
      expect([...doubted].filter((name) => healthy.includes(name))).toEqual([])
      expect(doubts).toBeLessThan(12)
      expect((await scripts(cluster)) - before).toBeLessThan(60)
    },
  )

  test.concurrent('a cluster that is down is reported as unavailable, with the reason', async (t) => {
    const small = await start(t, { nodeTimeoutMs: 2_000 })
    const { store } = on(t, clusterOf.ioredis6(small, { retryDelayOnClusterDown: 10, maxRedirections: 2 }), {})
    expect(await store.acquire([claim('lock:a')])).toMatchObject([{ granted: true }])
    const [gone, other] = small.masters
    await gone?.kill()
    await t.expect.poll(async () => String(await other?.command('CLUSTER', 'INFO'))).toContain('cluster_state:fail')
    const reason = async (): Promise<string> => {
      const error = await Promise.resolve(store.acquire([claim('lock:b')])).catch((caught: unknown) => caught)
      expect(error).toBeInstanceOf(StoreUnavailableError)
      return (error as Error).message
    }
    await t.expect.poll(reason, { timeout: 10_000 }).toMatch(/CLUSTERDOWN|cluster is down|unavailable/)
  })
})

/** A slot on its way from its master to another, key by key. */
async function beginMigration(cluster: RedisCluster, slot: number) {
  const from = await cluster.masterOf(slot)
  const to = cluster.masters.find((node) => node !== from) as RedisServer
  const ids = await Promise.all([from, to].map(async (node) => String(await node.command('CLUSTER', 'MYID'))))
  await to.command('CLUSTER', 'SETSLOT', String(slot), 'IMPORTING', String(ids[0]))
  await from.command('CLUSTER', 'SETSLOT', String(slot), 'MIGRATING', String(ids[1]))
  const keys = async (): Promise<string[]> =>
    (await from.command('CLUSTER', 'GETKEYSINSLOT', String(slot), '1000')) as string[]
  const move = (...names: string[]): Promise<unknown> =>
    from.command('MIGRATE', '127.0.0.1', String(to.port), '', '0', '5000', 'KEYS', ...names)
  return {
    from,
    keys,
    move,
    /** Without REPLACE, as redis-cli does: a key that is there already fails it. */
    async finish(): Promise<void> {
      for (const key of await keys()) expect([key, await move(key)]).toEqual([key, 'OK'])
      for (const node of [to, from, ...cluster.masters])
        await node.command('CLUSTER', 'SETSLOT', String(slot), 'NODE', String(ids[1]))
    },
  }
}

describe('a slot that is moving', () => {
  const connect = (t: TestContext, cluster: RedisCluster): { store: Store } => on(t, clusterOf.ioredis6(cluster))
  const isSideKey = (key: string): boolean => key.includes('leasehold:') && !key.includes(':held:')

  test.concurrent('renews and releases a plain lock while its keys are still there', async (t) => {
    const cluster = await start(t)
    const { store } = connect(t, cluster)
    const held = claim('lock:rel')
    const [grant] = await store.acquire([held])
    const migration = await beginMigration(cluster, slotOf('lock:rel'))
    expect(await store.renew([{ ...held, ttlMs: 30_000 }])).toMatchObject([{ outcome: 'ours' }])
    const token = grant?.granted === true ? grant.token : undefined
    expect(await store.release([{ key: held.key, owner: held.owner, token }])).toEqual([{ outcome: 'released' }])
    await expect(migration.from.command('EXISTS', 'lock:rel')).rejects.toThrow(/^ASK/)
    await migration.finish()
  })

  test.concurrent('answers unknown, and never gone, about a permit whose shares are still on their way', async (t) => {
    const cluster = await start(t)
    const { store } = connect(t, cluster)
    const permit = claim('semaphore:sem', { weight: 1, capacity: 2 })
    await store.acquire([permit])
    const migration = await beginMigration(cluster, slotOf('semaphore:sem'))
    await migration.move(...(await migration.keys()).filter((key) => !isSideKey(key)))
    const asked = async (): Promise<unknown[]> => {
      const outcomes: unknown[] = []
      const note = (answers: { outcome?: string }[]): void => void outcomes.push(answers[0]?.outcome)
      await Promise.resolve(store.renew([{ ...permit, ttlMs: 30_000 }])).then(note, () => outcomes.push('unknown'))
      await Promise.resolve(store.release([permit])).then(note, () => outcomes.push('unknown'))
      return outcomes
    }
    expect(await asked()).toEqual(['unknown', 'unknown'])
    await migration.finish()
    const renewed = (): Promise<unknown> =>
      eventually(async () => (await store.renew([{ ...permit, ttlMs: 30_000 }]))[0])
    await t.expect.poll(renewed, { timeout: 5_000 }).toMatchObject({ outcome: 'ours' })
  })

  test.concurrent('moves with waiters, holders and metadata: no MIGRATE fails because of their requests', async (t) => {
    const cluster = await start(t)
    const { store } = connect(t, cluster)
    const { store: other } = connect(t, cluster)
    const held = claim('lock:busy', { value: '{}', announce: true })
    const permit = claim('semaphore:{lock:busy}', { weight: 1, capacity: 1 })
    const waiting = [
      claim('lock:busy', { queueMs: 60_000 }),
      claim(permit.key, { weight: 1, capacity: 1, queueMs: 60_000 }),
    ]
    await store.acquire([held])
    await store.acquire([permit])
    for (const one of waiting) await other.acquire([one])
    const migration = await beginMigration(cluster, slotOf('lock:busy'))
    const all = await migration.keys()
    expect(all.filter(isSideKey).length).toBeGreaterThan(7)
    await migration.move(...all.filter((key) => !isSideKey(key)))
    for (let i = 0; i < 3; i++) {
      for (const one of waiting) {
        const answers = [
          other.acquire([one]),
          other.acquire([claim(one.key, { queueMs: 60_000 })]),
          other.renew([{ key: one.key, owner: one.owner, ttlMs: 60_000, queued: true }]),
          store.renew([{ ...held, ttlMs: 30_000, value: '"more"' }]),
          store.renew([{ ...permit, ttlMs: 30_000 }]),
          store.inspect?.(one.key),
        ]
        for (const settled of await Promise.allSettled(answers)) expect(JSON.stringify(settled)).not.toMatch(/"gone"/)
      }
    }
    await migration.finish()
    await t.expect
      .poll(() => eventually(async () => (await store.release([held]))[0]), { timeout: 5_000 })
      .toEqual({ outcome: 'released' })
    expect(await eventually(() => other.acquire([waiting[0] as Claim]))).toMatchObject([{ granted: true }])
    expect(await eventually(() => store.release([permit]))).toEqual([{ outcome: 'released' }])
  })
})

const users = {
  'ioredis 6': async (cluster: RedisCluster) =>
    clusterOf.ioredis6(cluster, { redisOptions: { username: 'locker', password: 'pw' } }),
  'ioredis 5': async (cluster: RedisCluster) =>
    clusterOf.ioredis5(cluster, { redisOptions: { username: 'locker', password: 'pw' } }),
  'node-redis': async (cluster: RedisCluster) =>
    clusterOf.nodeRedis(cluster, { defaults: { username: 'locker', password: 'pw' } }),
}

describe('a user with few rights', () => {
  test.concurrent.for(Object.entries(users))(
    '%s, as the user of the docs, locks, waits, lists and follows a slot that moves',
    async ([_name, connect], t) => {
      const cluster = await start(t)
      for (const node of cluster.nodes)
        await node.command('ACL', 'SETUSER', 'locker', 'reset', 'on', '>pw', ...clusterRules())
      const unhandled: unknown[] = []
      const note = (error: unknown): void => void unhandled.push(error)
      process.on('unhandledRejection', note)
      t.onTestFinished(() => void process.off('unhandledRejection', note))
      const [a, b] = [
        createLocks(on(t, await connect(cluster)).store),
        createLocks(on(t, await connect(cluster)).store),
      ]
      t.onTestFinished(async () => void (await Promise.all([a.close({ grace: 0 }), b.close({ grace: 0 })])))
      const held = await a.acquire('x', { ttl: '3s' })
      const next = b.acquire('x', { wait: '20s' })
      await t.expect.poll(async () => (await b.waiters('x')).length).toBe(1)
      await held.release()
      await (await next).release()
      await (await a.semaphore('s', 2).acquire()).release()
      let renewals = 0
      a.on('renewed', () => renewals++)
      const moved = await a.acquire('moved', { ttl: '6s' })
      const migration = await beginMigration(cluster, slotOf('lock:moved'))
      await migration.move(...(await migration.keys()))
      renewals = 0
      await t.expect.poll(() => renewals, { message: 'renewals find their way to the new node' }).toBeGreaterThan(1)
      expect(moved.isHeld).toBe(true)
      await migration.finish()
      expect(await b.forceRelease('moved')).toHaveLength(1)
      expect(unhandled).toEqual([])
    },
  )
})

/** The replica of this slot's master. */
async function replicaOf(cluster: RedisCluster, slot: number): Promise<{ master: RedisServer; replica: RedisServer }> {
  const master = await cluster.masterOf(slot)
  const id = String(await master.command('CLUSTER', 'MYID'))
  for (const replica of cluster.nodes) {
    const nodes = String(await replica.command('CLUSTER', 'NODES')).split('\n')
    const myself = nodes.find((line) => line.includes('myself')) ?? ''
    if (myself.includes(id) && myself.includes('slave')) return { master, replica }
  }
  throw new Error('it has no replica')
}

describe('a replica that takes over', () => {
  test.concurrent.for(Object.entries(clients))(
    '%s notices within seconds that a replica took over by force and lost its grant',
    async ([_name, connect], t) => {
      const cluster = await start(t, { replicasPerMaster: 1, nodeTimeoutMs: 3_000 })
      const { store } = on(t, await connect(cluster))
      const locks = createLocks(store, { ttl: '60s' })
      t.onTestFinished(() => locks.close({ grace: 0 }))
      const { master, replica } = await replicaOf(cluster, slotOf('lock:x'))
      // The replica does not get the next grant.
      await master.command('ACL', 'SETUSER', 'default', '-sync', '-psync', '-replconf')
      await master.command('CLIENT', 'KILL', 'TYPE', 'replica')
      await t.expect.poll(async () => String(await master.command('INFO', 'replication'))).toMatch(/connected_slaves:0/)
      const lock = await locks.acquire('x')
      const lost = new Promise<void>((resolve) => lock.signal.addEventListener('abort', () => resolve()))
      await replica.command('CLUSTER', 'FAILOVER', 'TAKEOVER')
      await master.command('ACL', 'SETUSER', 'default', '+@all')
      const tookOver = performance.now()
      await lost
      // The next heartbeat is 20 s away.
      expect(performance.now() - tookOver).toBeLessThan(16_000)
      expect(lock.signal.reason).toMatchObject({ why: 'gone' })
    },
  )
})
