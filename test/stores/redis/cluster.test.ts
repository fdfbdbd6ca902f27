/** A cluster of three masters with a replica each: slots, fail-overs, migrations. */
import type { EventEmitter } from 'node:events'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { type RedisCluster, type RedisServer, startRedisCluster } from '../../../testbed/servers/index.js'
import { createLocks, InvalidOptionError } from '../../../src/index.js'
import { ALL, type Claim, type Store } from '../../../src/store.js'
import { redis } from '../../../src/stores/redis/index.js'
import { slotOf } from '../../../src/stores/redis/keys.js'
import { clusterOf, type Connection, eventually } from '../../../testbed/redis/fixtures.js'

let cluster: RedisCluster
beforeAll(async () => {
  // Longer than a busy machine stops: a fail-over that nobody asked for may lose what is not replicated yet.
  cluster = await startRedisCluster({ nodeTimeoutMs: 2_000 })
})
afterAll(() => cluster.stop())

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean()
  await cluster.settled()
})

function on<C extends Connection>(connection: C): { client: C['client']; store: Store } {
  cleanups.push(connection.end)
  const store = redis(connection.client)
  cleanups.push(() => store.close())
  return { client: connection.client, store }
}

let counter = 0
const run = Math.random().toString(36).slice(2)
function claim(key: string, over: Partial<Claim> = {}): Claim {
  return { key, owner: `test/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

const clients = {
  'ioredis 6': async () => clusterOf.ioredis6(cluster),
  'ioredis 5': async () => clusterOf.ioredis5(cluster),
  'node-redis': async () => clusterOf.nodeRedis(cluster),
}

/** The replica of the master of a slot takes over, in the orderly way or by force. */
async function failOver(slot: number, how: string[] = []): Promise<RedisServer> {
  const master = await cluster.masterOf(slot)
  const masterId = String(await master.command('CLUSTER', 'MYID'))
  for (const node of cluster.nodes) {
    const nodes = String(await node.command('CLUSTER', 'NODES'))
    const myself = nodes.split('\n').find((line) => line.includes('myself')) ?? ''
    if (!myself.includes(masterId) || !myself.includes('slave')) continue
    // Masters vote for replicas of one master once in two node time-outs, and a replica gives up after five seconds.
    for (let tries = 0; tries < 5; tries++) {
      await node.command('CLUSTER', 'FAILOVER', ...how)
      const leads = expect.poll(async () => (await cluster.masterOf(slot)).port, { timeout: 6_000 }).toBe(node.port)
      if (await leads.then(() => true).catch(() => false)) return node
    }
    throw new Error(`the replica at ${node.port} did not take over`)
  }
  throw new Error(`the master of slot ${slot} has no replica`)
}

/** Moves a slot with all its keys, step by step, and does something while it is on the way. */
async function migrate(slot: number, meanwhile: () => Promise<unknown>): Promise<void> {
  const from = await cluster.masterOf(slot)
  const masters = await Promise.all([0, 6_000, 12_000].map((each) => cluster.masterOf(each)))
  const to = masters.find((node) => node.port !== from.port) as RedisServer
  const [fromId, toId] = [String(await from.command('CLUSTER', 'MYID')), String(await to.command('CLUSTER', 'MYID'))]
  await to.command('CLUSTER', 'SETSLOT', String(slot), 'IMPORTING', fromId)
  await from.command('CLUSTER', 'SETSLOT', String(slot), 'MIGRATING', toId)
  await meanwhile()
  for (;;) {
    const keys = (await from.command('CLUSTER', 'GETKEYSINSLOT', String(slot), '10')) as string[]
    if (keys.length === 0) break
    await from.command('MIGRATE', '127.0.0.1', String(to.port), '', '0', '5000', 'KEYS', ...keys)
    await meanwhile()
  }
  for (const node of [to, from, ...masters]) await node.command('CLUSTER', 'SETSLOT', String(slot), 'NODE', toId)
  await expect.poll(async () => (await cluster.masterOf(slot)).port).toBe(to.port)
}

/** The channels that somebody subscribes to at the master of this slot: those of slots, and those that all masters serve. */
async function channelsOf(slot: number): Promise<string> {
  const master = await cluster.masterOf(slot)
  const masters = await Promise.all([0, 6_000, 12_000].map((each) => cluster.masterOf(each)))
  const everywhere = masters.map((node) => node.command('PUBSUB', 'CHANNELS'))
  return String(await Promise.all([master.command('PUBSUB', 'SHARDCHANNELS'), ...everywhere]))
}

describe.each(Object.entries(clients))('%s', (_name, connect) => {
  test('locks of any slot, with hash tags and stray braces in their names, are acquired, waited for and handed off', async () => {
    const [{ store: a }, { store: b }] = [on(await connect()), on(await connect())]
    for (const odd of ['plain', '{tag}', 'a{b}c', 'a}b', 'a{b', 'a{}b', '}{', '{}{x}', '{a}{b}']) {
      const key = `lock:${run}${odd}${++counter}`
      const held = claim(key)
      expect(await a.acquire([held])).toMatchObject([{ granted: true }])
      const heard: unknown[] = []
      const watch = b.watch?.(key, (event) => heard.push(event))
      expect(await watch?.ready).toBe(true)
      const waiting = claim(key, { queueMs: 30_000, weight: 1 })
      expect(await b.acquire([waiting])).toMatchObject([{ granted: false, ahead: 0, blocker: { owner: held.owner } }])
      expect(await a.release([held])).toEqual([{ outcome: 'released' }])
      await expect.poll(() => heard).toMatchObject([{ type: 'granted', owner: waiting.owner }])
      expect(await b.release([waiting])).toEqual([{ outcome: 'released' }])
      watch?.close()
    }
  })

  test('a store that listens before its client knows the cluster hears of revocations soon after its first lock', async () => {
    const [{ store: holder }, { store: other }] = [on(await connect()), on(await connect())]
    const lost: unknown[] = []
    const watch = holder.watchRevoked?.((lease) => lost.push(lease))
    const held = claim(`lock:${run}new${++counter}`)
    expect(await holder.acquire([held])).toMatchObject([{ granted: true }])
    // Until then a stolen lock is noticed with its next renewal only.
    await expect.poll(() => watch?.live(), { interval: 10, timeout: 500 }).toBe(true)
    await other.revoke?.(held.key)
    await expect.poll(() => lost).toMatchObject([{ owner: held.owner }])
    watch?.close()
  })

  test('holders are listed over all masters, foreign ones among them', async () => {
    const { store, client } = on(await connect())
    const base = `${run}:list${++counter}:`
    const names = Array.from({ length: 40 }, (_, i) => `lock:${base}${i}`)
    for (const name of names) expect(await store.acquire([claim(name)])).toMatchObject([{ granted: true }])
    const foreign = `lock:${base}foreign`
    await (client as unknown as { set(key: string, value: string): Promise<unknown> }).set(foreign, 'somebody')
    const views = (await store.holders?.(`lock:${base}`)) ?? []
    expect(views.map(({ key }) => key).sort()).toEqual([...names, foreign].sort())
    expect(views.filter(({ foreign: stranger }) => stranger).map(({ key }) => key)).toEqual([foreign])
  })

  test('held locks stay held over a CLUSTER FAILOVER, waiters are served, tokens grow', async () => {
    const [{ store: a }, { store: b }] = [on(await connect()), on(await connect())]
    const [locks, others] = [createLocks(a), createLocks(b)]
    const name = `${run}:failover:${++counter}`
    const slot = slotOf(`lock:${name}`)
    const lock = await locks.acquire(name, { ttl: '20s' })
    const waiting = others.acquire(name, { wait: '25s' })
    await expect.poll(async () => (await locks.waiters(name)).length).toBe(1)
    await failOver(slot)
    await eventually(() => lock.extend('20s'))
    expect(lock.isHeld).toBe(true)
    expect(await lock.release()).toBe(true)
    const successor = await waiting
    expect(successor.fencingToken).toBeGreaterThan(lock.fencingToken)
    await successor.release()
    await locks.close()
    await others.close()
  })

  test('a slot that moves to another master takes its locks, its queue and its subscribers with it', async () => {
    const [{ store: a }, { store: b }] = [on(await connect()), on(await connect())]
    const key = `lock:${run}:moving:${++counter}`
    const held = claim(key)
    const [granted] = await a.acquire([held])
    const waiting = claim(key, { queueMs: 60_000 })
    const heard: unknown[] = []
    const watch = b.watch?.(key, (event) => heard.push(event))
    expect(await watch?.ready).toBe(true)
    expect(await b.acquire([waiting])).toMatchObject([{ granted: false }])
    await migrate(slotOf(key), async () => {
      // While the keys of a slot are in two places nothing about them can be decided. It must not be decided wrongly.
      const [answer] = await Promise.resolve(b.acquire([claim(key)])).catch(() => [])
      expect(answer?.granted).not.toBe(true)
    })
    expect(await eventually(() => a.renew([{ ...held, ttlMs: 30_000 }]))).toMatchObject([{ outcome: 'ours' }])
    // Until the old master has said that it does not serve the channel any more, the watch is live there.
    await expect.poll(() => channelsOf(slotOf(key))).toContain(key)
    await expect.poll(() => watch?.live()).toBe(true)
    heard.length = 0
    expect(await a.release([held])).toEqual([{ outcome: 'released' }])
    // Granted; or, if the clock of its new server is not known yet, to ask.
    await expect.poll(() => heard).toMatchObject([{ owner: waiting.owner }])
    const [again] = await b.acquire([waiting])
    expect(again).toMatchObject({ granted: true })
    if (granted?.granted === true && again?.granted === true) expect(again.token).toBeGreaterThan(granted.token)
    watch?.close()
  })
})

test('the holder of a grant that died with its master is told when the replica takes over', async () => {
  const { store } = on(clusterOf.ioredis6(cluster))
  const locks = createLocks(store)
  const name = `${run}:dies:${++counter}`
  const slot = slotOf(`lock:${name}`)
  const master = await cluster.masterOf(slot)
  // The master dies before its replica gets the grant.
  await master.command('ACL', 'SETUSER', 'default', '-sync', '-psync', '-replconf')
  await master.command('CLIENT', 'KILL', 'TYPE', 'replica')
  await expect.poll(async () => String(await master.command('INFO', 'replication'))).toMatch(/connected_slaves:0/)
  const lock = await locks.acquire(name, { ttl: '60s' })
  const lost = new Promise((resolve) => lock.signal.addEventListener('abort', resolve))
  await master.kill()
  await expect.poll(async () => (await cluster.masterOf(slot)).port).not.toBe(master.port)
  await lost
  expect(lock.signal.reason).toMatchObject({ why: 'gone' })
  await locks.close()
  await master.restart()
})

test('a prefix with half a hash tag is refused on a cluster, a whole one is fine', async () => {
  const connection = clusterOf.ioredis6(cluster)
  cleanups.push(connection.end)
  expect(() => redis(connection.client, { prefix: 'a{b:' })).toThrow(InvalidOptionError)
  const store = redis(connection.client, { prefix: '{app}:' })
  cleanups.push(() => store.close())
  const claims = ['lock:1', 'lock:2', 'lock:3'].map((key) => claim(`${key}:${run}`))
  expect(new Set(claims.map(({ key }) => store.partition?.(key))).size).toBe(1)
  const answers = await store.acquire(claims, { atomic: true })
  expect(answers.map(({ granted }) => granted)).toEqual([true, true, true])
})

test('a client that knows nothing of the cluster is told what is wrong', async () => {
  const { Redis } = await import('ioredis')
  const client = new Redis((cluster.masters[0] as RedisServer).url)
  ;(client as EventEmitter).on('error', () => {})
  const { store } = on({ client, end: () => client.disconnect() })
  const keys = Array.from({ length: 20 }, (_, i) => claim(`lock:${run}:lost:${i}`))
  const outcomes = await Promise.all(
    keys.map(async (one) => Promise.resolve(store.acquire([one])).catch((error: unknown) => error)),
  )
  const errors = outcomes.filter((outcome) => outcome instanceof Error)
  expect(errors.length).toBeGreaterThan(0)
  for (const error of errors) expect(String(error)).toMatch(/is a cluster, and the client is not a cluster client/)
})

test('a listing misses nothing while other processes say which indexes they use', async () => {
  const base = `announced:${run}`
  const { client, store } = on(await clusterOf.ioredis6(cluster))
  const names = Array.from({ length: 1_500 }, (_, i) => `lock:${base}:${i}`)
  await Promise.all(names.map((key) => store.acquire([claim(key)])))
  const lister = on(await clusterOf.ioredis6(cluster))
  const calls = lister.client as unknown as { evalsha: (...args: unknown[]) => Promise<unknown> }
  const evalsha = calls.evalsha.bind(lister.client)
  // Another process names an index again: what was read already moves behind what was not.
  let moved = 0
  calls.evalsha = async (...args) => {
    const reply = await evalsha(...args)
    const directory = String(args[2])
    if (!directory.endsWith(':indexes')) return reply
    for (const index of await client.zrange(directory, '0', '19'))
      await client.zadd(directory, Date.now() + 90_000_000 + moved++, index)
    return reply
  }
  // Without the search for foreign holders, which finds most of what is missing here.
  const listing = redis(lister.client, { listForeign: false })
  cleanups.push(() => listing.close())
  const views = (await listing.holders?.(`lock:${base}`)) ?? []
  expect(moved).toBeGreaterThan(0)
  expect(new Set(views.map(({ key }) => key)).size).toBe(names.length)
})

test('what an idle store knew of the servers does not count for the next locks on it', async () => {
  const { client } = on(await clusterOf.ioredis6(cluster))
  const store = redis(client, { listForeign: false })
  cleanups.push(() => store.close())
  const locks = createLocks(store)
  await (await locks.acquire(`idle:${run}`)).release()
  await locks.close()
  // As after a restart that the store does not hear of, since it listens to nothing now.
  for (const slot of [0, 6_000, 12_000]) await (await cluster.masterOf(slot)).command('FLUSHALL')
  const next = createLocks(store)
  const lock = await next.acquire(`idle:${run}`)
  expect((await next.holders(`idle:${run}`)).map(({ holder }) => holder)).toEqual([lock.holder])
  await next.close({ grace: 0 })
})
