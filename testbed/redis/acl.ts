/** The least that a user needs, as docs/stores/redis.md has it. A test reads it there. */
import { readFileSync } from 'node:fs'
import type { RedisServer } from '../servers/index.js'

/** The rules of a user on a cluster, keys and channels included, as the docs have them. */
export function clusterRules(): string[] {
  const docs = readFileSync(new URL('../../docs/stores/redis.md', import.meta.url), 'utf8')
  const rules = /ACL SETUSER locker on >password ([^`]*)```/.exec(docs)?.[1]
  const more = /On a cluster besides: `([^`]*)`/.exec(docs)?.[1]
  if (!rules || !more) throw new Error('the docs name no rules')
  return `${rules.replaceAll('\\\n', ' ')} ${more}`.trim().split(/\s+/)
}

/** The rules of the first `ACL SETUSER` in the docs, with another name, password, keys and channels. */
export async function makeUser(server: RedisServer, keys: string[], channels: string[]): Promise<string> {
  const docs = readFileSync(new URL('../../docs/stores/redis.md', import.meta.url), 'utf8')
  const rules = /ACL SETUSER [^`]*?(\+evalsha[^`]*)```/.exec(docs)?.[1]
  if (!rules) throw new Error('the docs name no rules')
  const commands = rules.replaceAll('\\\n', ' ').trim().split(/\s+/)
  const allowed = [...keys.map((key) => `~${key}`), ...channels.map((channel) => `&${channel}`)]
  await server.command('ACL', 'SETUSER', 'locker', 'reset', 'on', '>pw', ...allowed, ...commands)
  return 'locker:pw'
}
