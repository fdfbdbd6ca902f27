/**
 * Clients: the libraries that are installed, a client from an address, and what a store uses of a client.
 *
 * @module
 */
import { InvalidOptionError, MissingPackageError } from '../../errors.js'
import { unlessMissing } from '../../util/optional-import.js'
import type { Adapter } from './adapter.js'
import { ioredisAdapter, isIoRedis } from './ioredis.js'
import type { IoRedis } from './ioredis-connections.js'
import { isNodeRedis, nodeRedisAdapter } from './node-redis.js'
import type { NodeRedis } from './node-redis-connections.js'

/** Where a client connects to. */
export interface RedisAddress {
  kind: 'single' | 'cluster' | 'sentinel'
  tls: boolean
  /** One for `single`; else those by which the others are found. */
  hosts: { host: string; port: number }[]
  username: string | undefined
  password: string | undefined
  db: number
  /** The name under which the sentinels know the master; `''` elsewhere. */
  master: string
}

/** A client of our own, and how to end it. */
export interface OpenedRedis {
  client: object
  close: () => Promise<unknown>
}

/** The parts of a URL that names one or several hosts, which is more than the class `URL` takes. */
export interface RedisUrl extends Pick<RedisAddress, 'hosts' | 'username' | 'password'> {
  /** Without `://`. */
  scheme: string
  /** What stands between the slashes behind the hosts. */
  path: string[]
  query: URLSearchParams
}

/** `ports`: the port of a host without one, by scheme; other schemes are refused. `form`: what a URL should look like, for the error. */
export function parseRedisUrl(url: string, ports: Readonly<Record<string, number>>, form: string): RedisUrl {
  const bad = (): InvalidOptionError => new InvalidOptionError('store', url, form)
  const decoded = (part: string): string => {
    try {
      return decodeURIComponent(part)
    } catch {
      throw bad()
    }
  }
  const match = /^([a-z+]+):\/\/(?:([^/?]*)@)?([^@/?]*)((?:\/[^?]*)?)(?:\?(.*))?$/s.exec(url)
  const [, scheme = '', credentials, authority = '', path = '', query = ''] = match ?? []
  const port = Object.hasOwn(ports, scheme) ? ports[scheme] : undefined
  if (port === undefined) throw bad()
  const hosts = authority.split(',').map((part) => {
    const named = /^(?:\[([^\]]+)\]|([^:]*))(?::(\d{1,5}))?$/.exec(part)
    if (!named) throw bad()
    return { host: named[1] ?? (named[2] || '127.0.0.1'), port: named[3] ? Number(named[3]) : port }
  })
  const [user = '', ...secret] = (credentials ?? '').split(':')
  return {
    scheme,
    hosts,
    username: user === '' ? undefined : decoded(user),
    password: secret.length > 0 ? decoded(secret.join(':')) : undefined,
    path: path.split('/').slice(1).map(decoded),
    query: new URLSearchParams(query),
  }
}

/** With whichever of ioredis and node-redis is installed. `purpose`: who needs it, for the error if neither is. */
export async function openRedis(address: RedisAddress, purpose: string): Promise<OpenedRedis> {
  const opened = (await withIoRedis(address)) ?? (await withNodeRedis(address))
  if (!opened) throw new MissingPackageError(purpose, ['ioredis', 'redis'])
  return opened
}

/** Recognised by shape, so that no client has to be imported. */
export function adapterOf(client: unknown): Adapter {
  if (typeof client === 'object' && client !== null) {
    if (isIoRedis(client)) return ioredisAdapter(client as IoRedis)
    if (isNodeRedis(client)) return nodeRedisAdapter(client as NodeRedis)
  }
  throw new InvalidOptionError(
    'client',
    client,
    'an ioredis Redis or Cluster, or a node-redis client, cluster or sentinel (not a pool, a multi or a URL)',
  )
}

export async function loadIoRedis(): Promise<Pick<typeof import('ioredis'), 'Redis' | 'Cluster'> | undefined> {
  try {
    return await import('ioredis')
  } catch (error) {
    return unlessMissing(error, 'ioredis')
  }
}

export async function loadNodeRedis(): Promise<typeof import('redis') | undefined> {
  try {
    return await import('redis')
  } catch (error) {
    return unlessMissing(error, 'redis')
  }
}

/** An `error` event without a listener would end the process. What is wrong is said by the call that it concerns. */
const ignore = (): void => {}

async function withIoRedis({
  kind,
  tls,
  hosts,
  username,
  password,
  db,
  master,
}: RedisAddress): Promise<OpenedRedis | undefined> {
  const ioredis = await loadIoRedis()
  if (!ioredis) return undefined
  const secret = { ...(username === undefined ? {} : { username }), ...(password === undefined ? {} : { password }) }
  const secure = tls ? { tls: {} } : {}
  if (kind === 'cluster') {
    const client = new ioredis.Cluster(hosts, { redisOptions: { ...secret, ...secure } })
    client.on('error', ignore)
    return { client, close: async () => client.disconnect() }
  }
  const client = new ioredis.Redis(
    kind === 'sentinel'
      ? { sentinels: hosts, name: master, db, ...secret, ...(tls ? { tls: {}, enableTLSForSentinelMode: true } : {}) }
      : { ...hosts[0], db, ...secret, ...secure },
  )
  client.on('error', ignore)
  return { client, close: async () => client.disconnect() }
}

async function withNodeRedis(address: RedisAddress): Promise<OpenedRedis | undefined> {
  const module = await loadNodeRedis()
  if (!module) return undefined
  const client = nodeRedisClient(module, address)
  client.on('error', ignore)
  // Not awaited: it goes on trying, and calls say why it is not connected yet.
  client.connect().catch(ignore)
  return { client, close: async () => client.destroy() }
}

interface OpenableNodeRedis {
  on(event: 'error', listener: () => void): unknown
  connect(): Promise<unknown>
  destroy(): unknown
}

function nodeRedisClient(module: typeof import('redis'), address: RedisAddress): OpenableNodeRedis {
  const { kind, tls, hosts, username, password, db, master } = address
  const secret = { ...(username === undefined ? {} : { username }), ...(password === undefined ? {} : { password }) }
  const secure = tls ? { socket: { tls: true as const } } : {}
  if (kind === 'cluster') {
    const rootNodes = hosts.map(({ host, port }) => ({ socket: { host, port, ...secure.socket } }))
    return module.createCluster({ rootNodes, defaults: { ...secret, ...secure } }) as OpenableNodeRedis
  }
  if (kind === 'sentinel') {
    const nodeClientOptions = { ...secret, ...secure, database: db }
    return module.createSentinel({
      name: master,
      sentinelRootNodes: hosts,
      nodeClientOptions,
      sentinelClientOptions: secure,
    }) as OpenableNodeRedis
  }
  const { host, port } = hosts[0] as { host: string; port: number }
  return module.createClient({ ...secret, socket: { host, port, ...secure.socket }, database: db }) as OpenableNodeRedis
}
