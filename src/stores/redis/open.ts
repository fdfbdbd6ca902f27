/**
 * A store from a URL, with a client of its own.
 *
 * @module
 */
import { MissingPackageError } from '../../errors.js'
import type { Store } from '../../store.js'
import { adapterOf } from '../../clients/redis/adapter-of.js'
import { loadIoRedis, loadNodeRedis } from '../../clients/redis/load.js'
import { type Address, parseAddress } from './address.js'
import { embedded } from './scripts.js'
import { createRedisStore } from './store.js'

/** A client, and how to end it. */
interface Opened {
  client: object
  close: () => Promise<unknown>
}

/**
 * `redis://`, `redis+cluster://`, `redis+sentinel://`, each also as `rediss…`, with whichever of ioredis and node-redis
 * is installed. `close()` of the store closes the client too.
 */
export async function open(url: string): Promise<Store> {
  const address = parseAddress(url)
  const opened = (await withIoRedis(address)) ?? (await withNodeRedis(address))
  if (!opened) throw new MissingPackageError('a store on Redis', ['ioredis', 'redis'])
  return createRedisStore(adapterOf(opened.client), address.options, embedded, opened.close)
}

/** What is wrong is said by the call that it concerns; an unheard `error` event would end the process. */
const ignore = (): void => {}

async function withIoRedis({ kind, tls, hosts, username, password, db, master }: Address): Promise<Opened | undefined> {
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

async function withNodeRedis(address: Address): Promise<Opened | undefined> {
  const module = await loadNodeRedis()
  if (!module) return undefined
  const client = nodeRedisClient(module, address)
  client.on('error', ignore)
  // Not awaited: it goes on trying, and calls say why it is not connected yet.
  client.connect().catch(ignore)
  return { client, close: async () => client.destroy() }
}

interface NodeRedisClient {
  on(event: 'error', listener: () => void): unknown
  connect(): Promise<unknown>
  destroy(): unknown
}

function nodeRedisClient(module: typeof import('redis'), address: Address): NodeRedisClient {
  const { kind, tls, hosts, username, password, db, master } = address
  const secret = { ...(username === undefined ? {} : { username }), ...(password === undefined ? {} : { password }) }
  const secure = tls ? { socket: { tls: true as const } } : {}
  if (kind === 'cluster') {
    const rootNodes = hosts.map(({ host, port }) => ({ socket: { host, port, ...secure.socket } }))
    return module.createCluster({ rootNodes, defaults: { ...secret, ...secure } }) as NodeRedisClient
  }
  if (kind === 'sentinel') {
    const nodeClientOptions = { ...secret, ...secure, database: db }
    return module.createSentinel({
      name: master,
      sentinelRootNodes: hosts,
      nodeClientOptions,
      sentinelClientOptions: secure,
    }) as NodeRedisClient
  }
  const { host, port } = hosts[0] as { host: string; port: number }
  return module.createClient({ ...secret, socket: { host, port, ...secure.socket }, database: db }) as NodeRedisClient
}
