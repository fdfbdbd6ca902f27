/** Starts a Redis Cluster. */
import { randomBytes } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { againIfPortTaken, makeHome, stopAll, until } from './process.js'
import { RedisProcess, type RedisServer } from './redis.js'

export interface RedisClusterOptions {
  masters?: number
  replicasPerMaster?: number
  /** cluster-node-timeout: a master that is silent for this long is failed over. */
  nodeTimeoutMs?: number
}

export interface RedisCluster extends AsyncDisposable {
  /** Masters first, in the order of their slots; then the replicas of the first master, of the second, … */
  readonly nodes: RedisServer[]
  readonly masters: RedisServer[]
  readonly replicas: RedisServer[]
  readonly urls: string[]
  readonly url: string
  /** The node that serves this slot now, whatever its role was at the start. */
  masterOf(slot: number): Promise<RedisServer>
  /** Resolves when every running node sees all slots served and every running replica is in step with its master. */
  settled(): Promise<void>
  stop(): Promise<void>
}

const SLOTS = 16_384
const CLUSTER_BUS = 10_000

interface Member {
  id: string
  server: RedisProcess
  /** The slots of a master, or the master of a replica. */
  role: { epoch: number; slots: string } | { masterId: string }
}

/**
 * The state file of the cluster, written before the first start. Nodes that know each other from the beginning need no
 * introduction, which makes `redis-cli --cluster create` take several seconds.
 */
function nodesFile(members: Member[], self: Member, masters: number): string {
  const lines = members.map(({ id, server, role }) => {
    const flags = `${id === self.id ? 'myself,' : ''}${'slots' in role ? 'master' : 'slave'}`
    const address = `127.0.0.1:${server.port}@${server.port + CLUSTER_BUS}`
    const follows = 'slots' in role ? '-' : role.masterId
    const tail = 'slots' in role ? `${role.epoch} connected ${role.slots}` : '0 connected'
    return `${id} ${address} ${flags} ${follows} 0 0 ${tail}`
  })
  return `${lines.join('\n')}\nvars currentEpoch ${masters} lastVoteEpoch 0\n`
}

async function makeMember(nodeTimeoutMs: number, role: Member['role']): Promise<Member> {
  const home = await makeHome({ name: 'cluster', alsoBus: true })
  const config = [
    'cluster-enabled yes',
    'cluster-config-file nodes.conf',
    `cluster-node-timeout ${nodeTimeoutMs}`,
    // A replica may take over however long ago it last got data from its master: the tests kill masters early and
    // often.
    'cluster-replica-validity-factor 0',
    'repl-diskless-sync-delay 0',
  ]
  const server = new RedisProcess(home, {}, { config })
  await server.writeConfig()
  return { id: randomBytes(20).toString('hex'), server, role }
}

async function makeMembers(masters: number, replicasPerMaster: number, nodeTimeoutMs: number): Promise<Member[]> {
  const firstSlot = (index: number) => Math.round((index * SLOTS) / masters)
  const leading = await Promise.all(
    Array.from({ length: masters }, (_, index) =>
      makeMember(nodeTimeoutMs, { epoch: index + 1, slots: `${firstSlot(index)}-${firstSlot(index + 1) - 1}` }),
    ),
  )
  const following = await Promise.all(
    leading.flatMap(({ id }) =>
      Array.from({ length: replicasPerMaster }, () => makeMember(nodeTimeoutMs, { masterId: id })),
    ),
  )
  return [...leading, ...following]
}

class LocalRedisCluster implements RedisCluster {
  readonly nodes: RedisProcess[]
  readonly masters: RedisProcess[]
  readonly replicas: RedisProcess[]

  constructor(nodes: RedisProcess[], masters: number) {
    this.nodes = nodes
    this.masters = nodes.slice(0, masters)
    this.replicas = nodes.slice(masters)
  }

  get urls(): string[] {
    return this.nodes.map((node) => node.url)
  }

  get url(): string {
    return `redis+cluster://${this.nodes.map((node) => `127.0.0.1:${node.port}`).join(',')}`
  }

  async masterOf(slot: number): Promise<RedisServer> {
    for (const node of this.nodes.filter((each) => each.running)) {
      const ranges = (await node.command('CLUSTER', 'SLOTS')) as [number, number, [string, number]][]
      const range = ranges.find(([first, last]) => first <= slot && slot <= last)
      const owner = this.nodes.find((each) => each.port === range?.[2][1])
      if (owner?.running) return owner
    }
    throw new Error(`no running node serves slot ${slot}`)
  }

  async settled(): Promise<void> {
    await until('the Redis cluster is whole', async () => {
      const looks = await Promise.all(this.nodes.filter((node) => node.running).map(isSettled))
      return looks.every(Boolean)
    })
  }

  stop(): Promise<void> {
    return stopAll(this.nodes)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }
}

async function isSettled(node: RedisProcess): Promise<boolean> {
  const cluster = String(await node.command('CLUSTER', 'INFO').catch(() => ''))
  if (!cluster.includes('cluster_state:ok') || !cluster.includes(`cluster_slots_ok:${SLOTS}`)) return false
  const replication = String(await node.command('INFO', 'replication').catch(() => ''))
  return replication.includes('role:master') || replication.includes('master_link_status:up')
}

async function attempt(masters: number, replicasPerMaster: number, nodeTimeoutMs: number): Promise<LocalRedisCluster> {
  const members = await makeMembers(masters, replicasPerMaster, nodeTimeoutMs)
  const nodes = members.map(({ server }) => server)
  try {
    await Promise.all(
      members.map((self) => writeFile(join(self.server.dir, 'nodes.conf'), nodesFile(members, self, masters))),
    )
    await Promise.all(nodes.slice(0, masters).map((node) => node.start()))
    await Promise.all(nodes.slice(masters).map((node) => node.start()))
    const cluster = new LocalRedisCluster(nodes, masters)
    await cluster.settled()
    const attached = async (master: RedisProcess) =>
      String(await master.command('INFO', 'replication')).includes(`connected_slaves:${replicasPerMaster}`)
    await until('every master has its replicas', async () =>
      (await Promise.all(cluster.masters.map(attached))).every(Boolean),
    )
    return cluster
  } catch (error) {
    await stopAll(nodes)
    throw error
  }
}

/** Starts a Redis Cluster. Resolves when all nodes see all slots served and the replicas are attached. */
export function startRedisCluster({
  masters = 3,
  replicasPerMaster = 1,
  nodeTimeoutMs = 1_500,
}: RedisClusterOptions = {}): Promise<RedisCluster> {
  return againIfPortTaken(() => attempt(masters, replicasPerMaster, nodeTimeoutMs))
}
