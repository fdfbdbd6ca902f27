/**
 * Whether a Redis user may do what the stores do. Asked inside a script, by `redis.acl_check_cmd` (Redis 7), which runs none of
 * the commands.
 *
 * @module
 */
import { text } from '../clients/redis/adapter.js'
import { LOCK_KINDS } from '../primitives/inspect.js'
import type { Defect } from './check.js'
import type { RedisNode } from './redis-node.js'

/** Stands for a key of leasehold's, and for a channel. */
const KEY = '{key}'
const CHANNEL = '{channel}'

/** What both stores send, with arguments that the server accepts: it checks their number first. */
const COMMON = [
  'evalsha 0 0',
  'eval 0 0',
  'time',
  'info',
  'select 0',
  'ping',
  `get ${KEY}`,
  `mget ${KEY}`,
  `set ${KEY} v`,
  `del ${KEY}`,
  `exists ${KEY}`,
  `type ${KEY}`,
  `pttl ${KEY}`,
  `pexpire ${KEY} 1`,
  `hget ${KEY} f`,
  `hset ${KEY} f v`,
  `hmget ${KEY} f`,
  `hdel ${KEY} f`,
  `hrandfield ${KEY}`,
  `hscan ${KEY} 0`,
  `zadd ${KEY} 1 m`,
  `zrem ${KEY} m`,
  `zrange ${KEY} 0 1`,
  `zrangebyscore ${KEY} 0 1`,
  `zscore ${KEY} m`,
  `zcard ${KEY}`,
  `zscan ${KEY} 0`,
  `publish ${CHANNEL} m`,
  `subscribe ${CHANNEL}`,
  `unsubscribe ${CHANNEL}`,
]

/** As docs/stores/redis.md lists them; a test compares the two. */
export const REDIS_COMMANDS: readonly string[] = [
  ...COMMON,
  `unlink ${KEY}`,
  `pexpireat ${KEY} 1`,
  `hexists ${KEY} f`,
  `hincrby ${KEY} f 1`,
  `zremrangebyscore ${KEY} 0 1`,
  `zrank ${KEY} m`,
  `lindex ${KEY} 0`,
  `llen ${KEY}`,
  `lset ${KEY} 0 v`,
  `ltrim ${KEY} 0 1`,
  `rpop ${KEY}`,
  `rpush ${KEY} v`,
  `blmpop 1 1 ${KEY} LEFT`,
  'scan 0',
]

export const CLUSTER_COMMANDS: readonly string[] = [
  'cluster slots',
  'cluster shards',
  'cluster info',
  'cluster nodes',
  'readonly',
  'readwrite',
  'asking',
  `spublish ${CHANNEL} m`,
  `ssubscribe ${CHANNEL}`,
  `sunsubscribe ${CHANNEL}`,
]

/** With `?replicas=`. */
export const REPLICA_COMMANDS: readonly string[] = ['wait 1 1']

/** As docs/stores/redlock.md lists them. */
export const REDLOCK_COMMANDS: readonly string[] = [...COMMON, `pubsub numsub ${CHANNEL}`]

/** Without these a store does less, or is slower, but locks are safe. */
const DISPENSABLE = new Set(['info', 'scan', 'blmpop', 'select', 'ping', 'unlink'])

const SCRIPT = `local denied = {}
if not redis.acl_check_cmd then return { 'too old' } end
for i, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if known and not allowed then denied[#denied + 1] = i end
end
return denied`

export interface RightsQuestion {
  commands: readonly string[]
  /** What stands before every key and channel. */
  prefix: string
  /** The page of the docs that has the ACL. */
  page: string
}

/** Undefined: everything is allowed, or this server cannot say (before Redis 7), and the trial shows it. */
export async function judgeRights(node: RedisNode, question: RightsQuestion): Promise<Defect | undefined> {
  const { commands, prefix, page } = question
  const own = `${prefix}leasehold:1:doctor`
  const lines = commands.map((line) => line.replace(KEY, own).replace(CHANNEL, own))
  const kinds = LOCK_KINDS.map((kind) => `${prefix}${kind}:doctor`)
  // A key of each kind: rules may allow the command and not the key.
  const asked = [...lines, ...kinds.map((key) => `set ${key} v`)]
  const labels = [...lines.map(commandOf), ...kinds.map((key) => `~${key.slice(0, -'doctor'.length)}*`)]
  let denied: unknown[]
  try {
    denied = (await node.send('EVAL', SCRIPT, '0', ...asked)) as unknown[]
  } catch (error) {
    if (!(error instanceof Error) || !error.message.includes('NOPERM')) throw error
    return defect(['eval'], page, node.name)
  }
  if (denied.length === 0 || text(denied[0]) === 'too old') return undefined
  const missing = denied.map((position) => labels[Number(position) - 1] as string)
  // Without the right to SET at all, the keys say nothing more.
  const named = missing.includes('set') ? missing.filter((label) => !label.startsWith('~')) : missing
  return defect(named, page, node.name)
}

/** Subcommands as ACL rules write them: `client|setname`. */
export function commandOf(line: string): string {
  const [command = '', second = ''] = line.split(' ')
  return command === 'cluster' || command === 'pubsub' ? `${command}|${second}` : command
}

function defect(missing: readonly string[], page: string, at: string): Defect {
  const rules = missing.map((label) => (label.startsWith('~') ? label : `+${label}`))
  const spared = missing.every((label) => DISPENSABLE.has(label))
  return {
    severity: spared ? 'warning' : 'danger',
    at,
    summary: spared ? 'this user may not do all that a store does' : 'this user may not do what a lock needs',
    evidence: `denied: ${rules.join(' ')}`,
    fix: `ACL SETUSER <user> ${rules.join(' ')} (the whole list: ${page})`,
  }
}
