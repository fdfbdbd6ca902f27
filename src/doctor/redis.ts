/**
 * What breaks locks on a Redis server, on Sentinel and on a cluster.
 *
 * @module
 */
import { text } from '../clients/redis/adapter.js'
import type { RedisAddress } from '../clients/redis/open.js'
import { parseAddress } from '../stores/redis/open.js'
import { reasonOf } from '../util/reason.js'
import type { Check, DoctorOptions, Examination, Defect } from './check.js'
import { judgeLatency, judgeSkew, readClock } from './measure.js'
import {
  type ExaminedNode,
  examineNode,
  fieldsOf,
  nameOf,
  type OpenRedisNodes,
  openNodes,
  type RedisNode,
  serverName,
  timeOf,
} from './redis-node.js'
import { CLUSTER_COMMANDS, judgeRights, REDIS_COMMANDS, REPLICA_COMMANDS } from './redis-rights.js'
import { judgeEviction, judgeMemory, judgePersistence, judgeReplicas, judgeRole, judgeVersion } from './redis-server.js'
import { trialOf } from './trial.js'

/** Slots of a cluster. One that nobody serves refuses its names, and by default the whole cluster refuses all. */
const SLOTS = 16_384

export async function examineRedis(url: string, options: DoctorOptions): Promise<Examination> {
  const { address, options: given } = parseAddress(url)
  const opened = address.kind === 'cluster' ? await openCluster(address, options) : await openMaster(address, options)
  const { nodes, close } = opened
  try {
    const examined = await Promise.all(nodes.map(examineNode))
    const [first] = examined as [ExaminedNode, ...ExaminedNode[]]
    const form = address.kind === 'single' ? '' : `, ${address.kind}`
    const confirmed = given.replicas ?? 0
    const prefix = given.prefix ?? ''
    const cluster = address.kind === 'cluster'
    const commands = [
      ...REDIS_COMMANDS,
      ...(cluster ? CLUSTER_COMMANDS : []),
      ...(confirmed > 0 ? REPLICA_COMMANDS : []),
    ]
    const rights = { commands, prefix, page: 'docs/stores/redis.md' }
    const each = (
      id: string,
      worst: Check['worst'],
      looksAt: string,
      judge: (one: ExaminedNode) => Defect | undefined | Promise<Defect | undefined>,
    ): Check => ({ id, worst, looksAt, run: () => onEach(examined, judge) })
    return {
      server: `${serverName(first)}${form}`,
      close,
      checks: [
        each('redis.version', 'danger', 'the kind and version of the server', judgeVersion),
        each('redis.role', 'danger', 'the role of the server', judgeRole),
        each('redis.eviction', 'danger', 'maxmemory-policy', judgeEviction),
        each('redis.memory', 'danger', 'the memory of the server', judgeMemory),
        each('redis.persistence', 'warning', 'appendonly and appendfsync', (one) =>
          judgePersistence(one, 'warning', ', and two processes then hold the same one until the first notices'),
        ),
        each('redis.replicas', 'warning', 'the replicas and min-replicas-to-write', (one) =>
          judgeReplicas(one, confirmed),
        ),
        clusterCheck(address, examined, opened.defects),
        each('redis.rights', 'danger', 'the rights of this user', ({ node }) => judgeRights(node, rights)),
        each('redis.clock', 'warning', 'the clock of the server', async ({ node }) =>
          judgeSkew(await readClock(() => timeOf(node), options.hostNow), node.name),
        ),
        each('redis.latency', 'danger', 'the latency of the server', ({ node }) =>
          judgeLatency(() => node.send('PING'), options.ttlMs, node.name),
        ),
        trialOf('redis', url),
      ],
    }
  } catch (error) {
    await close()
    throw error
  }
}

/** A server that cannot be judged does not keep the others from being judged. */
async function onEach(
  nodes: readonly ExaminedNode[],
  judge: (one: ExaminedNode) => Defect | undefined | Promise<Defect | undefined>,
): Promise<Defect[]> {
  const defects = await Promise.all(nodes.map(async (one) => judge(one)))
  return defects.filter((defect) => defect !== undefined)
}

interface OpenServers extends OpenRedisNodes {
  /** What was wrong with the cluster already when its masters were looked for. */
  defects: Defect[]
}

async function openMaster(address: RedisAddress, { timeoutMs }: DoctorOptions): Promise<OpenServers> {
  return { ...(await openNodes(address, timeoutMs)), defects: [] }
}

/**
 * Every master on a connection of its own: a cluster client does not connect at all to a cluster that is down, and could not
 * say what is wrong with it.
 */
async function openCluster(address: RedisAddress, { timeoutMs }: DoctorOptions): Promise<OpenServers> {
  const single = (host: { host: string; port: number }): RedisAddress => ({ ...address, kind: 'single', hosts: [host] })
  const opened: OpenRedisNodes[] = []
  const close = (): Promise<unknown> => Promise.all(opened.map((one) => one.close()))
  const defects: Defect[] = []
  try {
    const seed = await firstOf(address.hosts, (host) => openNodes(single(host), timeoutMs))
    opened.push(seed)
    const [entry] = seed.nodes as [RedisNode]
    const masters = mastersIn(text(await entry.send('CLUSTER', 'NODES')), entry.name)
    const nodes: RedisNode[] = []
    for (const host of masters) {
      try {
        const one = await openNodes(single(host), timeoutMs)
        opened.push(one)
        nodes.push(...one.nodes)
      } catch (error) {
        const at = `${host.host}:${host.port}`
        defects.push({
          severity: 'danger',
          at,
          summary: 'a master of the cluster cannot be reached from here',
          evidence: `${at} (the address that the cluster announces): ${reasonOf(error)}`,
          fix: 'bring it back or let a replica take over; behind NAT or in containers: cluster-announce-ip, cluster-announce-port',
        })
      }
    }
    return { nodes: nodes.length > 0 ? nodes : [entry], defects, close }
  } catch (error) {
    await close()
    throw error
  }
}

async function firstOf<T, R>(items: readonly T[], open: (item: T) => Promise<R>): Promise<R> {
  let last: unknown
  for (const item of items) {
    try {
      return await open(item)
    } catch (error) {
      last = error
    }
  }
  throw last
}

/** The addresses of the masters in the answer to CLUSTER NODES. `self`: for a node that does not know its own address yet. */
function mastersIn(nodes: string, self: string): { host: string; port: number }[] {
  const found: { host: string; port: number }[] = []
  for (const line of nodes.split('\n')) {
    const [, address = '', flags = ''] = line.split(' ')
    const words = flags.split(',')
    if (!words.includes('master') || words.includes('fail')) continue
    const [, host = '', port = ''] = /^(.*):(\d+)@/.exec(address) ?? []
    const own = /^(.*):\d+$/.exec(self)?.[1] ?? ''
    found.push({ host: host || own, port: Number(port) })
  }
  return found
}

function clusterCheck(address: RedisAddress, examined: readonly ExaminedNode[], defects: readonly Defect[]): Check {
  const [first] = examined as [ExaminedNode]
  const check = { id: 'redis.cluster', worst: 'danger', looksAt: 'the health of the cluster' } as const
  if (address.kind === 'cluster')
    return { ...check, run: async () => [...defects, ...(await judgeCluster(first.node))] }
  return {
    ...check,
    run: async () => {
      if (first.info.get('cluster_enabled') !== '1') return undefined
      return {
        severity: 'danger',
        summary: 'this server is a node of a cluster, and the URL is one of a single server',
        evidence: 'cluster_enabled 1',
        fix: `redis+cluster://${nameOf(address)}`,
      }
    },
  }
}

async function judgeCluster(node: RedisNode): Promise<Defect[]> {
  const info = fieldsOf(text(await node.send('CLUSTER', 'INFO')))
  const state = info.get('cluster_state')
  const served = Number(info.get('cluster_slots_ok') ?? 0)
  const lines = text(await node.send('CLUSTER', 'NODES'))
    .split('\n')
    .filter(Boolean)
  const defects: Defect[] = []
  if (state !== 'ok' || served < SLOTS) {
    defects.push({
      severity: 'danger',
      summary: 'the cluster does not serve all slots: names in the others cannot be locked',
      evidence: `cluster_state ${state}, ${served} of ${SLOTS} slots served`,
      fix: 'redis-cli --cluster check <host:port>, then bring the failed masters back or assign their slots (--cluster fix)',
    })
  }
  const failing = lines.filter((line) => /\bfail\??(,| )/.test(line.split(' ')[2]?.concat(' ') ?? ''))
  if (failing.length > 0) {
    const names = failing.map((line) => line.split(' ')[1]?.split('@')[0])
    defects.push({
      severity: 'warning',
      summary: 'nodes of the cluster have failed',
      evidence: names.join(', '),
      fix: 'bring them back, or CLUSTER FORGET them: a master without a replica takes its slots with it',
    })
  }
  return defects
}
