import { Cluster, Redis } from 'ioredis'
import { createClient, createCluster, createSentinel } from 'redis'
import { slotOf } from '../../../src/stores/redis/keys.js'
import type { RedisClient } from '../../../src/stores/redis/index.js'
import {
  type RedisCluster,
  type RedisServer,
  type SentinelSetup,
  startRedis,
  startRedisCluster,
  startSentinel,
} from '../../../testbed/servers/index.js'

export interface Connection {
  client: RedisClient
  end: () => unknown
}

/** What can be done to a fixture while locks are held there. `loses`: written data may be lost, and leases with it. */
export interface Fault {
  name: string
  loses: boolean
  strike(): Promise<unknown>
}

/** A kind of Redis, seen through a kind of client. */
export interface RedisFixture {
  name: string
  connect(): Promise<Connection>
  faults: Fault[]
  stop(): Promise<void>
}

/** The names that everybody fights over. */
export const NAMES: readonly string[] = ['a', 'b', 'c']

const ignore = (): void => {}
const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
const hosts = (servers: readonly RedisServer[]) => servers.map(({ port }) => ({ host: '127.0.0.1', port }))

function io(client: Redis | Cluster): Connection {
  client.on('error', ignore)
  return { client, end: () => client.disconnect() }
}

/** As much of node-redis as is used here: its own types, compared with each other, take the compiler half a minute. */
interface NodeRedis {
  on(event: string, listener: () => void): unknown
  connect(): Promise<unknown>
  destroy(): unknown
}

async function node(client: NodeRedis): Promise<Connection> {
  client.on('error', ignore)
  await client.connect()
  return { client: client as NodeRedis & RedisClient, end: () => client.destroy() }
}

/** What hurts no data, on every server of a fixture. */
function harmless(servers: () => readonly RedisServer[]): Fault[] {
  const everywhere = (...command: string[]) =>
    Promise.all(servers().map((each) => each.command(...command).catch(ignore)))
  return [
    { name: 'SCRIPT FLUSH', loses: false, strike: () => everywhere('SCRIPT', 'FLUSH') },
    { name: 'CLIENT KILL', loses: false, strike: () => everywhere('CLIENT', 'KILL', 'TYPE', 'normal') },
    { name: 'CLIENT KILL pubsub', loses: false, strike: () => everywhere('CLIENT', 'KILL', 'TYPE', 'pubsub') },
  ]
}

export async function single(with_: 'ioredis' | 'node-redis'): Promise<RedisFixture> {
  const server = await startRedis({ appendonly: true })
  const freeze = async (): Promise<void> => {
    await server.freeze()
    await sleep(600)
    await server.thaw()
  }
  return {
    name: `${with_}, one server`,
    connect: async () => (with_ === 'ioredis' ? io(new Redis(server.url)) : node(createClient({ url: server.url }))),
    faults: [
      ...harmless(() => [server]),
      { name: 'a frozen server', loses: false, strike: freeze },
      { name: 'restart with data', loses: false, strike: () => server.restart({ keepData: true }) },
      { name: 'crash with data', loses: false, strike: () => server.restart({ keepData: true, mode: 'immediate' }) },
      { name: 'restart without data', loses: true, strike: () => server.restart({ keepData: false }) },
    ],
    stop: () => server.stop(),
  }
}

async function replicaOf(cluster: RedisCluster, slot: number): Promise<RedisServer> {
  const id = String(await (await cluster.masterOf(slot)).command('CLUSTER', 'MYID'))
  for (const each of cluster.nodes) {
    const lines = String(await each.command('CLUSTER', 'NODES')).split('\n')
    if (lines.some((line) => line.includes('myself') && line.includes('slave') && line.includes(id))) return each
  }
  throw new Error(`the master of slot ${slot} has no replica`)
}

async function moveSlot(cluster: RedisCluster, slot: number): Promise<void> {
  const from = await cluster.masterOf(slot)
  const masters = [...new Set(await Promise.all([0, 6_000, 12_000].map((each) => cluster.masterOf(each))))]
  const to = masters.find((each) => each !== from) as RedisServer
  const [fromId, toId] = [String(await from.command('CLUSTER', 'MYID')), String(await to.command('CLUSTER', 'MYID'))]
  await to.command('CLUSTER', 'SETSLOT', String(slot), 'IMPORTING', fromId)
  await from.command('CLUSTER', 'SETSLOT', String(slot), 'MIGRATING', toId)
  for (;;) {
    const keys = (await from.command('CLUSTER', 'GETKEYSINSLOT', String(slot), '2')) as string[]
    if (keys.length === 0) break
    await from.command('MIGRATE', '127.0.0.1', String(to.port), '', '0', '5000', 'KEYS', ...keys)
    await sleep(5)
  }
  for (const each of new Set([to, from, ...masters]))
    await each.command('CLUSTER', 'SETSLOT', String(slot), 'NODE', toId)
}

export async function clustered(with_: 'ioredis' | 'node-redis'): Promise<RedisFixture> {
  const cluster = await startRedisCluster()
  const slot = (): number => slotOf(`lock:${NAMES[Math.floor(Math.random() * NAMES.length)]}`)
  const rootNodes = hosts(cluster.nodes).map((socket) => ({ socket }))
  const failOver = async (...how: string[]): Promise<void> => {
    await (await replicaOf(cluster, slot())).command('CLUSTER', 'FAILOVER', ...how)
    await cluster.settled()
  }
  const kill = async (): Promise<void> => {
    const master = await cluster.masterOf(slot())
    await master.kill()
    await sleep(4_000)
    await master.restart()
    await cluster.settled()
  }
  return {
    name: `${with_}, cluster of three masters with replicas`,
    connect: async () =>
      with_ === 'ioredis' ? io(new Cluster(hosts(cluster.nodes))) : node(createCluster({ rootNodes })),
    faults: [
      ...harmless(() => cluster.nodes),
      { name: 'CLUSTER FAILOVER', loses: false, strike: () => failOver() },
      { name: 'slot migration', loses: false, strike: () => moveSlot(cluster, slot()) },
      { name: 'CLUSTER FAILOVER TAKEOVER', loses: true, strike: () => failOver('TAKEOVER') },
      { name: 'a master dies', loses: true, strike: kill },
    ],
    stop: () => cluster.stop(),
  }
}

export async function sentinelled(with_: 'ioredis' | 'node-redis'): Promise<RedisFixture & { setup: SentinelSetup }> {
  const setup = await startSentinel()
  const sentinels = hosts(setup.sentinels)
  const failOver = async (): Promise<void> => {
    const before = (await setup.currentMaster()).port
    await setup.sentinels[0]?.command('SENTINEL', 'FAILOVER', setup.masterName).catch(ignore)
    for (let i = 0; i < 200; i++) {
      const now = await setup.currentMaster().catch(() => undefined)
      if (now && now.port !== before) return sleep(1_000)
      await sleep(50)
    }
  }
  return {
    setup,
    name: `${with_}, through Sentinel`,
    connect: async () =>
      with_ === 'ioredis'
        ? io(new Redis({ sentinels, name: setup.masterName }))
        : node(createSentinel({ name: setup.masterName, sentinelRootNodes: sentinels })),
    faults: [
      ...harmless(() => [setup.master, ...setup.replicas]),
      { name: 'Sentinel fail-over', loses: true, strike: failOver },
    ],
    stop: () => setup.stop(),
  }
}
