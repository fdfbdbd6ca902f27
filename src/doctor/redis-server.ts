/**
 * What can be wrong with one Redis server, whichever store uses it.
 *
 * @module
 */
import type { Defect } from './check.js'
import { type ExaminedNode, type ServerInfo, kindOf, settingOf } from './redis-node.js'

/** The oldest Redis that has every command of the scripts (HRANDFIELD). */
const OLDEST_VERSION = 60_200
/** From here on grants are pushed through a list (BLMPOP), which is quicker. */
const PUSHING_VERSION = 70_000
/** The share of maxmemory from which on a server that evicts nothing is about to refuse writes. */
const NEARLY_FULL = 0.9

export function judgeVersion({ node, info }: ExaminedNode): Defect | undefined {
  const { name, version, redisVersion } = kindOf(info)
  const at = node.name
  if (name === 'Dragonfly') {
    return {
      severity: 'danger',
      at,
      summary: 'Dragonfly lets scripts touch declared keys only',
      evidence: `dragonfly_version ${version}`,
      fix: 'pass redis(client, { declareKeys: true }); a URL cannot say so',
    }
  }
  if (name === 'KeyDB' && info.get('role') === 'active-replica') {
    return {
      severity: 'danger',
      at,
      summary: 'with active replication two masters grant the same lock',
      evidence: 'role active-replica',
      fix: 'active-replica no, or a server of its own for locks',
    }
  }
  if (redisVersion < OLDEST_VERSION) {
    return {
      severity: 'danger',
      at,
      summary: 'this server is too old',
      evidence: `${name} ${version}`,
      fix: 'Redis 6.2 or newer; 7.0 or newer pushes grants faster',
    }
  }
  if (redisVersion < PUSHING_VERSION) {
    return {
      severity: 'note',
      at,
      summary: 'hand-offs are slower than they could be',
      evidence: `${name} ${version} is older than Redis 7.0, so grants come on channels`,
      fix: 'Redis 7.0 or newer',
    }
  }
  return undefined
}

export function judgeRole({ node, info }: ExaminedNode): Defect | undefined {
  if (info.get('role') !== 'slave') return undefined
  const master = `${info.get('master_host')}:${info.get('master_port')}`
  return {
    severity: 'danger',
    at: node.name,
    summary: 'this is a replica: it takes no writes, or such that the master does not know of',
    evidence: `role slave of ${master}`,
    fix: `connect to the master (${master}), or to its sentinels: redis+sentinel://host:26379/<master>`,
  }
}

export function judgeEviction({ node, info }: ExaminedNode): Defect | undefined {
  const policy = info.get('maxmemory_policy')
  const most = Number(info.get('maxmemory') ?? 0)
  if (policy === undefined) throw new Error('INFO names no maxmemory_policy')
  if (policy === 'noeviction' || !(most > 0)) return undefined
  return {
    severity: 'danger',
    at: node.name,
    summary: 'the server may evict locks without notice, and two processes then hold the same one',
    evidence: `maxmemory-policy ${policy} with maxmemory ${mib(most)} (${mib(Number(info.get('used_memory') ?? 0))} used); ${info.get('evicted_keys') ?? 0} keys evicted so far`,
    fix: 'CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; or a server of its own for locks',
  }
}

export function judgeMemory({ node, info }: ExaminedNode): Defect | undefined {
  const most = Number(info.get('maxmemory') ?? 0)
  const used = Number(info.get('used_memory') ?? 0)
  if (!(most > 0) || info.get('maxmemory_policy') !== 'noeviction' || used < most * NEARLY_FULL) return undefined
  return {
    severity: used >= most ? 'danger' : 'warning',
    at: node.name,
    summary: 'the server is out of memory, or nearly: it refuses new locks and renewals',
    evidence: `${mib(used)} of maxmemory ${mib(most)} used`,
    fix: 'raise maxmemory, or move other data elsewhere',
  }
}

/** `restart`: what a restart without data does to locks, as the end of a sentence. */
export async function judgePersistence(
  { node, info }: ExaminedNode,
  severity: 'warning' | 'note',
  restart: string,
): Promise<Defect | undefined> {
  const failing = failedWrites(info)
  if (failing) {
    return {
      severity: 'warning',
      at: node.name,
      summary: 'the server cannot save its data, and may refuse writes because of that (MISCONF)',
      evidence: failing,
      fix: 'look at its log and its disk: full, read-only, or not writable for its user',
    }
  }
  if (info.get('aof_enabled') !== '1') {
    const save = await settingOf(node, 'save').catch(() => undefined)
    const snapshots = save === undefined ? '' : save === '' ? ', no snapshots' : `, snapshots by "save ${save}"`
    return {
      severity,
      at: node.name,
      summary: `a restart forgets locks${restart}`,
      evidence: `appendonly no${snapshots}`,
      fix: 'CONFIG SET appendonly yes and CONFIG SET appendfsync always, and the same in redis.conf',
    }
  }
  // Hosted servers refuse CONFIG. What is then unknown is only whether a power failure loses the last second.
  const fsync = await settingOf(node, 'appendfsync').catch(() => undefined)
  if (fsync === 'always') return undefined
  return {
    severity: 'note',
    at: node.name,
    summary: `a power failure ${fsync === undefined ? 'may forget' : 'forgets'} the latest locks${restart}`,
    evidence: fsync === undefined ? 'appendfsync could not be read (CONFIG GET is denied)' : `appendfsync ${fsync}`,
    fix: 'CONFIG SET appendfsync always, if a second of lost locks matters more than the time of a write',
  }
}

function failedWrites(info: ServerInfo): string | undefined {
  if (info.get('aof_enabled') === '1' && info.get('aof_last_write_status') === 'err') return 'aof_last_write_status err'
  return info.get('rdb_last_bgsave_status') === 'err' ? 'rdb_last_bgsave_status err' : undefined
}

/** `confirmed`: how many replicas each grant waits for (`?replicas=`). */
export async function judgeReplicas({ node, info }: ExaminedNode, confirmed: number): Promise<Defect | undefined> {
  const replicas = Number(info.get('connected_slaves') ?? 0)
  const good = Number(info.get('min_slaves_good_slaves') ?? replicas)
  // INFO counts good replicas only if min-replicas-to-write is set. How many it asks for, the trial shows where CONFIG is denied.
  const setting = await settingOf(node, 'min-replicas-to-write').catch(() => undefined)
  const least = setting === undefined ? Number(info.has('min_slaves_good_slaves')) : Number(setting)
  if (least > 0 && good < least) {
    return {
      severity: 'danger',
      at: node.name,
      summary: 'the server has too few replicas and refuses every write (NOREPLICAS)',
      evidence: `min-replicas-to-write ${least}, ${good} connected and not behind`,
      fix: 'bring the replicas back, or lower min-replicas-to-write',
    }
  }
  if (replicas < confirmed) {
    return {
      severity: 'danger',
      at: node.name,
      summary: 'every acquire fails, because it waits for more replicas than there are',
      evidence: `?replicas=${confirmed} in the URL, ${replicas} connected`,
      fix: 'bring the replicas back, or lower ?replicas=',
    }
  }
  if (replicas === 0 || least > 0 || confirmed > 0) return undefined
  return {
    severity: 'warning',
    at: node.name,
    summary: 'a failover loses the latest locks, and two processes then hold the same one',
    evidence: `${replicas} replica${replicas === 1 ? '' : 's'}, min-replicas-to-write 0: a write is answered before any replica has it`,
    fix: `CONFIG SET min-replicas-to-write 1 (a master that is cut off stops granting), and ?replicas=1 in the URL (a grant waits for a replica); fence what must never happen twice`,
  }
}

function mib(bytes: number): string {
  return bytes < 2 ** 20 ? `${Math.ceil(bytes / 2 ** 10)} KiB` : `${Math.round(bytes / 2 ** 20)} MiB`
}
