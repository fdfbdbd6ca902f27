/**
 * What breaks locks on a Redlock: servers that are not independent, that do not vote, and those that break locks by themselves.
 *
 * @module
 */
import { maybeText } from '../clients/redis/adapter.js'
import { parseRedisUrl, type RedisAddress } from '../clients/redis/open.js'
import { MissingPackageError, StoreUnavailableError } from '../errors.js'
import { FORMAT, RECORD } from '../stores/redlock/keys.js'
import { type Duration, formatDuration, milliseconds } from '../util/duration.js'
import { reasonOf } from '../util/reason.js'
import type { Check, DoctorOptions, Examination, Defect } from './check.js'
import { type ClockReading, judgeLatency, judgeSkew, readClock } from './measure.js'
import {
  type ExaminedNode,
  examineNode,
  nameOf,
  type OpenRedisNodes,
  openNodes,
  type RedisNode,
  serverName,
  timeOf,
} from './redis-node.js'
import { judgeRights, REDLOCK_COMMANDS } from './redis-rights.js'
import { judgeEviction, judgeMemory, judgePersistence, judgeRole, judgeVersion } from './redis-server.js'
import { trialOf } from './trial.js'

const PORTS = { redlock: 6379, 'rediss+redlock': 6379 }
const FORM = 'redlock://host:port,host:port,host:port, or rediss+redlock://'
/** As the store has it. */
const DEFAULT_MAX_TTL = '1m'
/** Servers whose clocks differ by more, in milliseconds, give tokens that are ahead of the others', and expire keys at other times. */
const MOST_DIFFERENCE_MS = 1_000

/** What a server says of the Redlock that it votes for. */
interface VotingRecord {
  run: string | undefined
  state: string | undefined
  sinceMs: number
  longestMs: number
  nodes: number
  format: string
}

interface RedlockNodes {
  /** How many the URL names. */
  size: number
  majority: number
  maxTtlMs: number
  /** Those that answered. */
  nodes: ExaminedNode[]
  /** Name and reason of the others. */
  silent: { name: string; reason: string }[]
}

export async function examineRedlock(url: string, options: DoctorOptions): Promise<Examination> {
  const { scheme, hosts, username, password, path, query } = parseRedisUrl(url, PORTS, FORM)
  const maxTtl = query.get('maxTtl') ?? DEFAULT_MAX_TTL
  const maxTtlMs = milliseconds('maxTtl', /^\d+$/.test(maxTtl) ? Number(maxTtl) : (maxTtl as Duration))
  const common = { tls: scheme === 'rediss+redlock', username, password, db: Number(path[0] || 0), master: '' }
  const addresses = hosts.map((host): RedisAddress => ({ kind: 'single', hosts: [host], ...common }))
  const { nodes, silent, close } = await openServers(addresses, options.timeoutMs)
  if (nodes.length === 0) {
    await close()
    throw new StoreUnavailableError(silent.map(({ name, reason }) => `${name}: ${reason}`).join('; '))
  }
  const size = hosts.length
  const all: RedlockNodes = { size, majority: Math.floor(size / 2) + 1, maxTtlMs, nodes, silent }
  const kinds = [...new Set(nodes.map(serverName))]
  return { server: `${size} servers, ${kinds.join(', ')}`, close, checks: checksOf(url, all, options) }
}

type OpenServers = Pick<RedlockNodes, 'nodes' | 'silent'> & Pick<Examination, 'close'>

/** In the order of the URL. One that does not answer is a finding, and no reason to give up. */
async function openServers(addresses: readonly RedisAddress[], timeoutMs: number): Promise<OpenServers> {
  const opened: OpenRedisNodes[] = []
  const close = (): Promise<unknown> => Promise.all(opened.map((one) => one.close()))
  const open = async (address: RedisAddress): Promise<ExaminedNode | { name: string; reason: string }> => {
    const name = nameOf(address)
    try {
      const one = await openNodes(address, timeoutMs)
      opened.push(one)
      return await examineNode({ ...(one.nodes[0] as RedisNode), name })
    } catch (error) {
      if (error instanceof MissingPackageError) throw error
      return { name, reason: reasonOf(error) }
    }
  }
  const all = await Promise.all(addresses.map(open))
  return { nodes: all.filter((one) => 'node' in one), silent: all.filter((one) => 'reason' in one), close }
}

function checksOf(url: string, all: RedlockNodes, options: DoctorOptions): Check[] {
  const { nodes } = all
  const each = (
    id: string,
    worst: Check['worst'],
    looksAt: string,
    judge: (one: ExaminedNode) => Defect | undefined | Promise<Defect | undefined>,
  ): Check => ({
    id,
    worst,
    looksAt,
    run: async () => (await Promise.all(nodes.map(async (one) => judge(one)))).filter((defect) => defect !== undefined),
  })
  const rights = { commands: REDLOCK_COMMANDS, prefix: '', page: 'docs/stores/redlock.md' }
  return [
    { id: 'redlock.servers', worst: 'danger', looksAt: 'the servers', run: async () => judgeServers(all) },
    {
      id: 'redlock.independence',
      worst: 'danger',
      looksAt: 'run_id and replication',
      run: async () => judgeIndependence(nodes),
    },
    each('redlock.version', 'danger', 'the kinds and versions of the servers', judgeVersion),
    each('redlock.role', 'danger', 'the roles of the servers', judgeRole),
    each('redlock.eviction', 'danger', 'maxmemory-policy', judgeEviction),
    each('redlock.memory', 'danger', 'the memory of the servers', judgeMemory),
    each('redlock.persistence', 'note', 'appendonly and appendfsync', (one) =>
      judgePersistence(
        one,
        'note',
        `: the server then sits out for ${formatDuration(all.maxTtlMs)}, and the others decide`,
      ),
    ),
    each('redlock.rights', 'danger', 'the rights of this user', ({ node }) => judgeRights(node, rights)),
    { id: 'redlock.votes', worst: 'danger', looksAt: `the record ${RECORD}`, run: () => judgeVotes(all, options) },
    {
      id: 'redlock.clocks',
      worst: 'warning',
      looksAt: 'the clocks of the servers',
      run: () => judgeClocks(nodes, options),
    },
    each('redlock.latency', 'danger', 'the latency of the servers', ({ node }) =>
      judgeLatency(() => node.send('PING'), Math.min(options.ttlMs, all.maxTtlMs), node.name),
    ),
    trialOf('redlock', url),
  ]
}

function judgeServers({ size, majority, nodes, silent }: RedlockNodes): Defect[] {
  const lacking = nodes.length < majority
  const defects = silent.map(
    ({ name, reason }): Defect => ({
      severity: lacking ? 'danger' : 'warning',
      at: name,
      summary: lacking
        ? `no lock can be had: ${nodes.length} of ${size} servers answer, and it takes ${majority}`
        : `a server does not answer: ${nodes.length - majority} more may fail`,
      evidence: reason,
      fix: 'bring it back; its address and password stand in the URL',
    }),
  )
  if (size % 2 === 0) {
    defects.push({
      severity: 'note',
      summary: 'an even number of servers costs one more and survives no more failures',
      evidence: `${size} servers, of which ${size - majority} may fail`,
      fix: `use ${size - 1} or ${size + 1}`,
    })
  }
  return defects
}

/** Two nodes that are one server, or that copy each other, would be two votes of what one server knows. */
function judgeIndependence(nodes: readonly ExaminedNode[]): Defect[] {
  const defects: Defect[] = []
  for (const [i, one] of nodes.entries()) {
    for (const other of nodes.slice(i + 1)) {
      const at = `${one.node.name} and ${other.node.name}`
      const run = one.info.get('run_id')
      const replication = one.info.get('master_replid')
      if (run !== undefined && run === other.info.get('run_id')) {
        defects.push({
          severity: 'danger',
          at,
          summary: 'one server has two votes',
          evidence: `both have run_id ${run}`,
          fix: 'name each server once, by one address',
        })
      } else if (replication !== undefined && replication === other.info.get('master_replid')) {
        defects.push({
          severity: 'danger',
          at,
          summary: 'one of them copies the other, so that a vote counts twice and a failover loses both',
          evidence: `both have replication ID ${replication}; roles ${one.info.get('role')} and ${other.info.get('role')}`,
          fix: 'REPLICAOF NO ONE on servers of their own: Redlock needs servers that know nothing of each other',
        })
      }
    }
  }
  return defects
}

async function judgeVotes(all: RedlockNodes, { hostNow }: DoctorOptions): Promise<Defect[]> {
  const { nodes, size, majority, maxTtlMs } = all
  const records = await Promise.all(nodes.map(async (one) => ({ one, record: await recordOf(one) })))
  // Before its first lock, no server has a record: all begin to vote together.
  if (records.every(({ record }) => record === undefined)) return []
  const votes = (record: VotingRecord | undefined, run: string | undefined): boolean =>
    record !== undefined &&
    record.state === 'votes' &&
    record.run === run &&
    record.nodes === size &&
    record.format === FORMAT
  const voting = records.filter(({ one, record }) => votes(record, one.info.get('run_id'))).length
  const sitOutMs = Math.max(maxTtlMs, ...records.map(({ record }) => record?.longestMs ?? 0))
  return records
    .filter(({ one, record }) => !votes(record, one.info.get('run_id')))
    .map(({ one, record }): Defect => {
      const { why, fix } = whyNot(one, record, { size, sitOutMs, now: hostNow() })
      return {
        severity: voting < majority ? 'danger' : 'warning',
        at: one.node.name,
        summary: `this server does not vote; ${voting} of ${size} do, and it takes ${majority}`,
        evidence: why,
        fix,
      }
    })
}

async function recordOf({ node }: ExaminedNode): Promise<VotingRecord | undefined> {
  const reply = await node.send('HMGET', RECORD, 'run', 'state', 'since', 'longest', 'nodes', 'format')
  const [run, state, since, longest, votesFor, format] = (reply as unknown[]).map(maybeText)
  if (state === undefined) return undefined
  const number = (field: string | undefined): number => Number(field ?? 0)
  return {
    run,
    state,
    sinceMs: number(since),
    longestMs: number(longest),
    nodes: number(votesFor),
    format: format ?? '1',
  }
}

function whyNot(
  { info }: ExaminedNode,
  record: VotingRecord | undefined,
  { size, sitOutMs, now }: { size: number; sitOutMs: number; now: number },
): { why: string; fix: string } {
  const wait = `nothing to do: it votes again ${formatDuration(sitOutMs)} after a client has noticed it, while locks are in use`
  if (!record) return { why: 'it is empty, and the others are not: it was emptied or is new', fix: wait }
  if (record.format !== FORMAT) {
    const fix = 'run one version of leasehold at a time; docs/stores/redlock.md says how to change it'
    return { why: `its data has format ${record.format}, and this version reads ${FORMAT}`, fix }
  }
  if (record.state === 'votes' && record.run === info.get('run_id')) {
    const fix = `name all ${record.nodes} servers in the URL; to change their number: docs/stores/redlock.md`
    return { why: `it votes for a Redlock of ${record.nodes} servers, and the URL names ${size}`, fix }
  }
  if (record.run !== info.get('run_id')) return { why: 'it was restarted since it voted last', fix: wait }
  const until = record.sinceMs + sitOutMs
  const left = until - now
  const fix = 'nothing to do: it votes again then, as soon as a lock is asked for'
  if (left <= 0) return { why: 'it was restarted or emptied, and has sat out', fix }
  return {
    why: `it was restarted or emptied, and sits out until ${new Date(until).toISOString()} (${formatDuration(Math.ceil(left / 1_000) * 1_000)} more)`,
    fix,
  }
}

/** Exported for its test: servers on one machine have one clock. */
export async function judgeClocks(nodes: readonly ExaminedNode[], { hostNow }: DoctorOptions): Promise<Defect[]> {
  const read = async ({ node }: ExaminedNode): Promise<{ name: string; clock: ClockReading }> => ({
    name: node.name,
    clock: await readClock(() => timeOf(node), hostNow),
  })
  const clocks = (await Promise.all(nodes.map(read))).sort((a, b) => a.clock.offsetMs - b.clock.offsetMs)
  const defects = clocks.map(({ name, clock }) => judgeSkew(clock, name)).filter((defect) => defect !== undefined)
  const [slowest, fastest] = [clocks[0], clocks.at(-1)]
  if (!slowest || !fastest) return defects
  const differenceMs = fastest.clock.offsetMs - slowest.clock.offsetMs
  if (differenceMs - fastest.clock.errorMs - slowest.clock.errorMs <= MOST_DIFFERENCE_MS) return defects
  defects.push({
    severity: 'warning',
    at: `${slowest.name} and ${fastest.name}`,
    summary: 'the clocks of the servers differ from each other',
    evidence: `${fastest.name} is ${formatDuration(Math.round(differenceMs))} ahead of ${slowest.name}`,
    fix: 'let NTP (chrony, systemd-timesyncd) keep the clocks of all servers, by which leases end',
  })
  return defects
}
