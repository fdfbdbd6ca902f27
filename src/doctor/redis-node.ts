/**
 * One Redis server and what it says about itself: for single servers, each master of a cluster, and each node of a Redlock.
 *
 * @module
 */
import type { Adapter, RedisReply } from '../clients/redis/adapter.js'
import { text } from '../clients/redis/adapter.js'
import { adapterOf, openRedis, type RedisAddress } from '../clients/redis/open.js'
import { reasonOf } from '../util/reason.js'
import { within } from './check.js'

export interface RedisNode {
  /** `host:port` */
  readonly name: string
  send(...args: string[]): Promise<RedisReply>
}

export interface OpenRedisNodes {
  nodes: RedisNode[]
  close(): Promise<unknown>
}

/** Connects, and rejects with the client's own reason if that fails. */
export async function openNodes(address: RedisAddress, timeoutMs: number): Promise<OpenRedisNodes> {
  const { client, close } = await openRedis(address, 'doctor')
  const adapter = adapterOf(client)
  const end = async (): Promise<void> => {
    adapter.detach()
    await close()
  }
  try {
    await whenReady(adapter, timeoutMs)
    const masters = await within(timeoutMs, adapter.masters())
    const nodes = masters.map(
      (server): RedisNode => ({
        // Of a master behind sentinels, the address may change at any moment.
        name: address.kind === 'sentinel' ? `master ${address.master}` : server.address || nameOf(address),
        send: (...args) => within(timeoutMs, server.send(...args)),
      }),
    )
    return { nodes, close: end }
  } catch (error) {
    await end()
    throw error
  }
}

export function nameOf({ hosts: [first] }: RedisAddress): string {
  return `${first?.host}:${first?.port}`
}

async function whenReady(adapter: Adapter, timeoutMs: number): Promise<void> {
  adapter.wake()
  let stop = (): void => {}
  const ready = new Promise<void>((resolve, reject) => {
    const check = (): void => {
      if (adapter.ready()) return resolve()
      const reason = adapter.closed() ? adapter.whyNotReady() : adapter.lastError
      if (reason !== undefined) reject(new Error(reasonOf(reason)))
    }
    stop = adapter.onStateChange(check)
    check()
  })
  try {
    await within(timeoutMs, ready)
  } finally {
    stop()
  }
}

/** What INFO says, by field. */
export type ServerInfo = ReadonlyMap<string, string>

async function infoOf(node: RedisNode): Promise<ServerInfo> {
  return fieldsOf(text(await node.send('INFO')))
}

/** One server with its INFO. */
export interface ExaminedNode {
  readonly node: RedisNode
  /** Throws if this user may not ask for it: then each check that needs it cannot be made. */
  readonly info: ServerInfo
}

export async function examineNode(node: RedisNode): Promise<ExaminedNode> {
  const answer = await infoOf(node).catch((error: unknown) => {
    if (error instanceof Error && error.message.includes('NOPERM')) return error
    throw error
  })
  return {
    node,
    get info() {
      if (answer instanceof Error) throw answer
      return answer
    },
  }
}

/** `Redis 7.0.15`, as far as it says so. */
export function serverName(one: ExaminedNode): string {
  try {
    const { name, version } = kindOf(one.info)
    return `${name} ${version}`
  } catch {
    return 'Redis'
  }
}

/** Lines of `name:value`. */
export function fieldsOf(answer: string): ServerInfo {
  return new Map(answer.split(/\r?\n/).map((line) => line.split(/:(.*)/, 2) as [string, string]))
}

/** The value of a setting. Rejects if this user may not read it, as on most hosted servers. */
export async function settingOf(node: RedisNode, name: string): Promise<string> {
  const reply = await node.send('CONFIG', 'GET', name)
  // RESP3 answers with a map.
  if (reply instanceof Map) return text(reply.get(name) ?? '')
  if (Array.isArray(reply)) return text(reply[1] ?? '')
  return text((reply as Record<string, unknown> | null)?.[name] ?? '')
}

/** Epoch milliseconds by the server's clock. */
export async function timeOf(node: RedisNode): Promise<number> {
  const [seconds, micros] = (await node.send('TIME')) as unknown[]
  return Number(text(seconds)) * 1_000 + Number(text(micros)) / 1_000
}

/** `7.0.15` as 70015 and `6.2` as 60200. */
export function versionNumber(version: string): number {
  const [major = 0, minor = 0, patch = 0] = version.split('.').map(Number)
  return major * 10_000 + minor * 100 + patch
}

export interface ServerKind {
  name: 'Redis' | 'Valkey' | 'KeyDB' | 'Dragonfly' | 'Garnet'
  version: string
  /** The version of Redis that it says it is compatible with. */
  redisVersion: number
}

export function kindOf(info: ServerInfo): ServerKind {
  const redis = info.get('redis_version') ?? '0'
  const redisVersion = versionNumber(redis)
  const other = (name: ServerKind['name'], version: string | undefined): ServerKind => ({
    name,
    version: version ?? redis,
    redisVersion,
  })
  if (info.has('dragonfly_version')) return other('Dragonfly', info.get('dragonfly_version'))
  if (info.has('garnet_version')) return other('Garnet', info.get('garnet_version'))
  if (info.has('valkey_version')) return other('Valkey', info.get('valkey_version'))
  if (/keydb/i.test(info.get('executable') ?? '') || info.get('role') === 'active-replica') return other('KeyDB', redis)
  return other('Redis', redis)
}
