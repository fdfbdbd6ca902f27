import { InvalidOptionError, MissingPackageError } from '../../errors.js'
import type { Duration } from '../../util/duration.js'
import type { Store } from '../../store.js'
import { loadIoRedis, loadNodeRedis } from '../../clients/redis/open.js'
import { unknownWord } from '../../util/options.js'
import { createRedlock, OPTIONS, type RedlockOptions } from './store.js'

const FORM =
  'redlock://[user:password@]host:port,host:port,host:port[/db][?maxTtl=1m&nodeTimeout=500ms&drift=0.01], or rediss+redlock://'

/** A client, and how to close it. */
interface OwnedClient {
  client: unknown
  close: () => unknown
}

interface NodeAddress {
  host: string
  port: number
  tls: boolean
  username: string | undefined
  password: string | undefined
  db: number
}

/**
 * Opens `redlock://h1:p,h2:p,h3:p` and `rediss+redlock://`, with whichever of ioredis and node-redis is installed. `close()` of
 * the store closes the clients too. `maxTtl` is a minute unless the URL says otherwise (`?maxTtl=5m`).
 */
export async function open(url: string): Promise<Store> {
  const { addresses, options } = parse(url)
  const connect = await connector()
  const opened = addresses.map(connect)
  const closeAll = async (): Promise<void> => {
    for (const { close } of opened) close()
  }
  try {
    return createRedlock(
      opened.map(({ client }) => client),
      options,
      closeAll,
    )
  } catch (error) {
    await closeAll()
    throw error
  }
}

function parse(url: string): { addresses: NodeAddress[]; options: RedlockOptions } {
  const match = /^(redlock|rediss\+redlock):\/\/(?:([^/?]*)@)?([^@/?]+)(?:\/(\d*))?(?:\?(.*))?$/s.exec(url)
  if (!match) throw new InvalidOptionError('store', url, FORM)
  const [, scheme, credentials = '', hosts = '', db = '', query = ''] = match
  const colon = credentials.indexOf(':')
  const username = decoded(colon < 0 ? credentials : credentials.slice(0, colon), url) || undefined
  const password = colon < 0 ? undefined : decoded(credentials.slice(colon + 1), url)
  const addresses = hosts.split(',').map((text): NodeAddress => {
    const parts = /^(\[[^\]]+\]|[^:]+)(?::(\d{1,5}))?$/.exec(text)
    if (!parts) throw new InvalidOptionError('store', url, FORM)
    const host = (parts[1] as string).replace(/^\[|\]$/g, '')
    const port = Number(parts[2] ?? 6379)
    return { host, port, tls: scheme === 'rediss+redlock', username, password, db: Number(db || 0) }
  })
  return { addresses, options: optionsOf(new URLSearchParams(query)) }
}

function decoded(text: string, url: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw new InvalidOptionError('store', url, FORM)
  }
}

function optionsOf(query: URLSearchParams): RedlockOptions {
  for (const name of query.keys()) {
    if (!OPTIONS.includes(name)) throw unknownWord('option', name, OPTIONS)
  }
  const duration = (name: string): Duration | undefined => {
    const text = query.get(name)
    return text === null ? undefined : /^\d+$/.test(text) ? Number(text) : (text as Duration)
  }
  const drift = query.get('drift')
  return {
    maxTtl: duration('maxTtl'),
    nodeTimeout: duration('nodeTimeout'),
    drift: drift === null ? undefined : Number(drift),
  }
}

/** An `error` event without a listener would end the process. The calls that fail name the reason. */
const ignore = (): void => {}

async function connector(): Promise<(address: NodeAddress) => OwnedClient> {
  const ioredis = await loadIoRedis()
  if (ioredis) {
    return ({ host, port, tls, username, password, db }) => {
      const secret = { ...(username ? { username } : {}), ...(password === undefined ? {} : { password }) }
      const client = new ioredis.Redis({ host, port, db, ...secret, ...(tls ? { tls: {} } : {}) })
      client.on('error', ignore)
      return { client, close: () => client.disconnect() }
    }
  }
  const redis = await loadNodeRedis()
  if (!redis) throw new MissingPackageError('a redlock store', ['ioredis', 'redis'])
  return ({ host, port, tls, username, password, db }) => {
    const secret = { ...(username ? { username } : {}), ...(password === undefined ? {} : { password }) }
    const socket = tls ? { host, port, tls: true as const } : { host, port }
    const client = redis.createClient({ ...secret, socket, database: db })
    client.on('error', ignore)
    // Not awaited: the client retries by itself, and calls name the reason while it is not connected.
    client.connect().catch(ignore)
    return { client, close: () => client.destroy() }
  }
}
