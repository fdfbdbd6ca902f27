/**
 * A store from a URL, with a client of its own.
 *
 * @module
 */
import { adapterOf, openRedis, parseRedisUrl, type RedisAddress } from '../../clients/redis/open.js'
import { InvalidOptionError } from '../../errors.js'
import type { Store } from '../../store.js'
import { unknownWord } from '../../util/options.js'
import { createRedisStore, type RedisStoreOptions } from './create.js'
import { embedded } from './transport.js'

/**
 * `redis://`, `redis+cluster://`, `redis+sentinel://`, each also as `rediss…`, with whichever of ioredis and node-redis
 * is installed. `close()` of the store closes the client too.
 */
export async function open(url: string): Promise<Store> {
  const { address, options } = parseAddress(url)
  const { client, close } = await openRedis(address, 'a store on Redis')
  return createRedisStore(adapterOf(client), options, embedded, close)
}

const FORM =
  'redis://[user:password@]host[:port][/db], redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/master[/db], ' +
  'each also as rediss…, each with ?prefix=…, ?timeout=…, ?replicas=… and ?within=…'

const PORTS = { redis: 6379, 'redis+cluster': 6379, 'redis+sentinel': 26379 }
const TLS_PORTS = { rediss: 6379, 'rediss+cluster': 6379, 'rediss+sentinel': 26379 }

export function parseAddress(url: string): { address: RedisAddress; options: RedisStoreOptions } {
  const { scheme, hosts, username, password, path, query } = parseRedisUrl(url, { ...PORTS, ...TLS_PORTS }, FORM)
  const bad = (): InvalidOptionError => new InvalidOptionError('store', url, FORM)
  const [protocol, kind = 'single'] = scheme.split('+') as [string, RedisAddress['kind']?]
  if (kind === 'single' && hosts.length !== 1) throw bad()
  const master = kind === 'sentinel' ? (path.shift() ?? '') : ''
  if (kind === 'sentinel' && master === '') throw bad()
  const db = path.length === 0 || path[0] === '' ? 0 : Number(path[0])
  if (!Number.isInteger(db) || db < 0 || path.length > 1 || (kind === 'cluster' && db !== 0)) throw bad()
  const tls = protocol === 'rediss'
  return { address: { kind, tls, hosts, username, password, db, master }, options: optionsOf(query) }
}

function optionsOf(query: URLSearchParams): RedisStoreOptions {
  const options: RedisStoreOptions = {}
  for (const [name, value] of query) {
    if (name === 'prefix') options.prefix = value
    else if (name === 'timeout') options.timeout = value as NonNullable<RedisStoreOptions['timeout']>
    else if (name === 'replicas') options.replicas = /^\d{1,3}$/.test(value) ? Number(value) : Number.NaN
    else if (name === 'within') options.within = value as NonNullable<RedisStoreOptions['within']>
    else throw unknownWord('option', name, ['prefix', 'timeout', 'replicas', 'within'])
  }
  return options
}
