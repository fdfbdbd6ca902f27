/**
 * What breaks locks on etcd, asked over its JSON gateway: quorum, alarms, disk latency, space. Takes endpoints, so that it needs
 * no client.
 *
 * @module
 */
import { type IncomingMessage, request as plainly } from 'node:http'
import { request as overTls } from 'node:https'
import { StoreUnavailableError } from '../errors.js'
import type { EtcdTls } from '../stores/etcd/connection.js'
import { type EtcdCredentials, endpointsFrom } from '../stores/etcd/create.js'
import { parseEtcdUrl } from '../stores/etcd/open.js'
import { formatDuration } from '../util/duration.js'
import { trialOf } from './trial.js'
import { reasonOf } from '../util/reason.js'
import type { Check, DoctorOptions, Examination, Defect } from './check.js'
import { judgeLatency } from './measure.js'
import { GOOD_VERSIONS, isOutdated, OUTDATED } from '../stores/etcd/version.js'

/** A disk is slow if more than this share of syncs takes longer than this many seconds: heartbeats and elections fail then. */
const SLOW_SYNC_SECONDS = 0.256
const SLOW_SHARE = 0.01
/** Syncs from which on their distribution says something. */
const ENOUGH_SYNCS = 50
/** The share of the space quota from which on it counts as filling up. */
const FILLING = 0.8

/** Sends one request and resolves with the body. Another one than `fetch` where client certificates are needed. */
export type EtcdRequest = (url: string, body?: object) => Promise<string>

interface EtcdStatus {
  version?: string
  /** Member ID; absent or 0 without a leader. */
  leader?: string
  dbSize?: string
  errors?: string[]
  header?: { member_id?: string }
}

interface EtcdMember {
  endpoint: string
  status: EtcdStatus
}

export async function examineEtcdUrl(url: string, options: DoctorOptions): Promise<Examination> {
  const { hosts, options: given } = await parseEtcdUrl(url)
  const members = endpointsFrom(hosts, given.tls)
  const endpoints = members.map(({ origin }) => origin)
  const tls = members[0]?.tls
  const plain = requestWith({}, tls, options.timeoutMs)
  const request = given.credentials
    ? requestWith({ authorization: await tokenOf(endpoints, given.credentials, plain) }, tls, options.timeoutMs)
    : plain
  const examination = await examineEtcd(endpoints, request, options)
  return { ...examination, checks: [...examination.checks, trialOf('etcd', url)] }
}

/** Of whichever member answers: one that is down is a finding, and no reason to give up. */
async function tokenOf(
  endpoints: readonly string[],
  { username, password }: EtcdCredentials,
  request: EtcdRequest,
): Promise<string> {
  const ask = (endpoint: string): Promise<string> =>
    request(`${endpoint}/v3/auth/authenticate`, { name: username, password })
  try {
    const { token = '' } = JSON.parse(await Promise.any(endpoints.map(ask))) as { token?: string }
    return token
  } catch (error) {
    throw error instanceof AggregateError ? error.errors[0] : error
  }
}

/** Not `fetch`, which takes no certificates. */
function requestWith(headers: Record<string, string>, tls: EtcdTls | undefined, timeoutMs: number): EtcdRequest {
  return (url, body) =>
    new Promise((resolve, reject) => {
      const signal = AbortSignal.timeout(timeoutMs)
      const fail = (error: Error): void =>
        reject(signal.aborted ? new Error(`no answer within ${formatDuration(timeoutMs)}`) : error)
      const answered = (response: IncomingMessage): void => {
        const { statusCode = 0 } = response
        let text = ''
        response.setEncoding('utf8').on('data', (part: string) => (text += part))
        response.on('error', fail).on('end', () => {
          if (statusCode < 300) resolve(text)
          else reject(new Error(`HTTP ${statusCode}: ${text.slice(0, 200)}`))
        })
      }
      const terms = { method: body ? 'POST' : 'GET', headers, signal }
      const sent = url.startsWith('https:')
        ? overTls(url, { ...terms, ...tls }, answered)
        : plainly(url, terms, answered)
      sent.on('error', fail).end(body && JSON.stringify(body))
    })
}

/** `endpoints`: `http://host:2379` of every member. */
export async function examineEtcd(
  endpoints: readonly string[],
  request: EtcdRequest,
  options: DoctorOptions,
): Promise<Examination> {
  const members: EtcdMember[] = []
  const silent: { endpoint: string; reason: string }[] = []
  await Promise.all(
    endpoints.map(async (endpoint) => {
      try {
        members.push({
          endpoint,
          status: JSON.parse(await request(`${endpoint}/v3/maintenance/status`, {})) as EtcdStatus,
        })
      } catch (error) {
        silent.push({ endpoint, reason: reasonOf(error) })
      }
    }),
  )
  const [first] = members
  if (!first) throw new StoreUnavailableError(silent.map(({ endpoint, reason }) => `${endpoint}: ${reason}`).join('; '))
  const each = (judge: (member: EtcdMember) => Promise<Defect | undefined>) => async (): Promise<Defect[]> =>
    (await Promise.all(members.map(judge))).filter((defect) => defect !== undefined)
  const checks: Check[] = [
    {
      id: 'etcd.quorum',
      worst: 'danger',
      looksAt: 'the members and their leader',
      run: async () => [
        ...judgeSilent(silent, members.length),
        ...members.map(judgeLeader).filter((defect) => defect !== undefined),
      ],
    },
    {
      id: 'etcd.version',
      worst: 'warning',
      looksAt: 'the versions of the members',
      run: async () => members.map(judgeVersion).filter((defect) => defect !== undefined),
    },
    { id: 'etcd.alarms', worst: 'danger', looksAt: 'the alarms', run: () => judgeAlarms(first, request) },
    { id: 'etcd.health', worst: 'danger', looksAt: '/health', run: each((member) => judgeHealth(member, request)) },
    {
      id: 'etcd.disk',
      worst: 'warning',
      looksAt: 'the metrics of the disk',
      run: each((member) => judgeDisk(member, request)),
    },
    {
      id: 'etcd.space',
      worst: 'warning',
      looksAt: 'the size of the database',
      run: each((member) => judgeSpace(member, request)),
    },
    {
      id: 'etcd.latency',
      worst: 'danger',
      looksAt: 'the latency of the members',
      run: each(({ endpoint }) =>
        judgeLatency(() => request(`${endpoint}/v3/maintenance/status`, {}), options.ttlMs, endpoint),
      ),
    },
  ]
  return {
    server: `etcd ${first.status.version ?? '?'}, ${endpoints.length} endpoint${endpoints.length === 1 ? '' : 's'}`,
    checks,
    close: async () => {},
  }
}

function judgeSilent(silent: readonly { endpoint: string; reason: string }[], answering: number): Defect[] {
  return silent.map(({ endpoint, reason }) => ({
    severity: 'warning',
    at: endpoint,
    summary: `a member does not answer; ${answering} do`,
    evidence: reason,
    fix: 'bring it back, or replace it: etcdctl member remove, member add',
  }))
}

function judgeLeader({ endpoint, status }: EtcdMember): Defect | undefined {
  if (status.leader !== undefined && status.leader !== '0') return undefined
  return {
    severity: 'danger',
    at: endpoint,
    summary: 'this member knows no leader: without a quorum nothing can be locked or renewed',
    evidence: status.errors?.join(', ') || 'leader 0',
    fix: 'bring a majority of the members back: etcdctl endpoint status --cluster',
  }
}

function judgeVersion({ endpoint, status: { version = '' } }: EtcdMember): Defect | undefined {
  if (!isOutdated(version)) return undefined
  return {
    severity: 'warning',
    at: endpoint,
    summary: OUTDATED,
    evidence: `version ${version}`,
    fix: `update this member to ${GOOD_VERSIONS}`,
  }
}

async function judgeAlarms({ endpoint }: EtcdMember, request: EtcdRequest): Promise<Defect[]> {
  const answer = JSON.parse(await request(`${endpoint}/v3/maintenance/alarm`, { action: 'GET' })) as {
    alarms?: { memberID?: string; alarm?: string }[]
  }
  return (answer.alarms ?? []).map(({ memberID, alarm = '?' }) => ({
    severity: 'danger',
    at: `member ${BigInt(memberID ?? 0).toString(16)}`,
    summary: alarm === 'NOSPACE' ? 'etcd is out of space and refuses every lock' : `etcd raised the alarm ${alarm}`,
    evidence: `alarm ${alarm}`,
    fix:
      alarm === 'NOSPACE'
        ? 'etcdctl compact <revision>, etcdctl defrag, then etcdctl alarm disarm'
        : 'replace this member',
  }))
}

async function judgeHealth({ endpoint }: EtcdMember, request: EtcdRequest): Promise<Defect | undefined> {
  const unhealthy = (evidence: string): Defect => ({
    severity: 'danger',
    at: endpoint,
    summary: 'this member cannot write, or has no leader',
    evidence,
    fix: 'etcdctl endpoint health --cluster, and the log of this member',
  })
  try {
    const { health, reason } = JSON.parse(await request(`${endpoint}/health`)) as { health?: string; reason?: string }
    return health === 'true' ? undefined : unhealthy(`health ${health}${reason ? `: ${reason}` : ''}`)
  } catch (error) {
    const message = reasonOf(error)
    if (!message.startsWith('HTTP 503')) throw error
    return unhealthy(message)
  }
}

async function judgeDisk({ endpoint }: EtcdMember, request: EtcdRequest): Promise<Defect | undefined> {
  const metrics = await request(`${endpoint}/metrics`)
  const name = 'etcd_disk_wal_fsync_duration_seconds'
  const all = metricIn(metrics, `${name}_count`)
  const quick = metricIn(metrics, `${name}_bucket{le="${SLOW_SYNC_SECONDS}"}`)
  if (all === undefined || quick === undefined) throw new Error('the metrics name no duration of syncs')
  if (all < ENOUGH_SYNCS || all - quick <= all * SLOW_SHARE) return undefined
  return {
    severity: 'warning',
    at: endpoint,
    summary: 'the disk is slow: leaders are replaced, and leases run out meanwhile',
    evidence: `${Math.round(all - quick)} of ${Math.round(all)} syncs took longer than ${formatDuration(SLOW_SYNC_SECONDS * 1_000)}`,
    fix: 'a local SSD that etcd shares with nobody',
  }
}

async function judgeSpace({ endpoint, status }: EtcdMember, request: EtcdRequest): Promise<Defect | undefined> {
  const quota = metricIn(await request(`${endpoint}/metrics`), 'etcd_server_quota_backend_bytes')
  if (quota === undefined) throw new Error('the metrics name no quota')
  const used = Number(status.dbSize ?? 0)
  if (used < quota * FILLING) return undefined
  return {
    severity: 'warning',
    at: endpoint,
    summary: 'the database is nearly as large as it may be; then etcd refuses every lock (NOSPACE)',
    evidence: `${Math.round(used / 2 ** 20)} of ${Math.round(quota / 2 ** 20)} MiB`,
    fix: 'compact and defragment it (etcdctl compact, defrag; --auto-compaction-retention), or raise --quota-backend-bytes',
  }
}

function metricIn(metrics: string, name: string): number | undefined {
  const line = metrics.split('\n').find((each) => each.startsWith(`${name} `))
  return line === undefined ? undefined : Number(line.slice(name.length + 1))
}
