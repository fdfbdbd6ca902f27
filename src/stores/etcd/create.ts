import { InvalidOptionError } from '../../errors.js'
import type { Store } from '../../store.js'
import { knownOptions } from '../../util/options.js'
import { realWorld } from '../../util/world.js'
import type { Endpoint, EtcdTls } from './connection.js'
import { EtcdStore } from './store.js'

const DEFAULT_PORT = 2379
const DEFAULT_PREFIX = 'leasehold/'

export const OPTIONS: readonly string[] = ['credentials', 'tls', 'prefix']
const TLS_OPTIONS: readonly string[] = ['ca', 'cert', 'key', 'passphrase', 'servername', 'rejectUnauthorized']

export interface EtcdCredentials {
  username: string
  password: string
}

export interface EtcdOptions {
  /** User and password, for a cluster with authentication. */
  credentials?: EtcdCredentials | undefined
  /** true: TLS with the authorities that Node trusts. An object: your own authority, and a client certificate if the cluster asks for one. */
  tls?: boolean | EtcdTls | undefined
  /** Before every key in etcd. All processes that share locks use the same one. Default `leasehold/`. */
  prefix?: string | undefined
}

export function createEtcd(hosts: string | readonly string[], options: EtcdOptions): Store {
  const { credentials, tls, prefix = DEFAULT_PREFIX } = knownOptions(options, OPTIONS)
  return new EtcdStore({
    endpoints: endpointsFrom(hosts, tls),
    credentials: credentials === undefined ? undefined : credentialsFrom(credentials),
    prefix: prefixFrom(prefix),
    world: realWorld,
  })
}

export function endpointsFrom(hosts: string | readonly string[], tls: EtcdOptions['tls']): Endpoint[] {
  const list = typeof hosts === 'string' ? hosts.split(',') : hosts
  if (!Array.isArray(list) || list.length === 0) {
    throw new InvalidOptionError('hosts', hosts, "a list of endpoints, such as ['10.0.0.1:2379', '10.0.0.2:2379']")
  }
  const secure = tlsFrom(tls)
  const endpoints = list.map((host) => endpointFrom(host, secure))
  if (new Set(endpoints.map(({ name }) => name)).size < endpoints.length) {
    throw new InvalidOptionError('hosts', list, 'each endpoint once')
  }
  return endpoints
}

/** `host`, `host:port`, `[::1]:2379`, or with `http://` or `https://` before it, as etcd itself prints its endpoints. */
function endpointFrom(host: unknown, tls: EtcdTls | undefined): Endpoint {
  const parts =
    typeof host === 'string' ? /^(https?:\/\/)?(\[[^\]/@]+\]|[^:/@[\]\s]+)(?::(\d{1,5}))?\/?$/.exec(host) : null
  const port = Number(parts?.[3] ?? DEFAULT_PORT)
  if (!parts || port < 1 || port > 65_535) {
    // As a URL, in which what cannot be a port is hidden: it may be a password whose host was forgotten.
    const shown = typeof host === 'string' && !host.includes('://') ? `etcd://${host}` : host
    throw new InvalidOptionError('hosts', shown, 'host:port, such as 10.0.0.1:2379')
  }
  if (parts[1] === 'http://' && tls)
    throw new InvalidOptionError('hosts', host, 'https:// or no scheme, since tls is set')
  const secure = tls ?? (parts[1] === 'https://' ? {} : undefined)
  const name = `${parts[2]}:${port}`
  return { name, origin: `${secure ? 'https' : 'http'}://${name}`, tls: secure }
}

function tlsFrom(tls: unknown): EtcdTls | undefined {
  if (tls === undefined || tls === false) return undefined
  if (tls === true) return {}
  if (typeof tls !== 'object' || tls === null) {
    const takes = 'true, or an object with ca, cert and key'
    // Not shown: it may be a key.
    throw new InvalidOptionError('tls', undefined, takes, `tls takes ${takes}; it was a ${typeof tls}`)
  }
  const known: EtcdTls = knownOptions(tls, TLS_OPTIONS)
  if ((known.cert === undefined) !== (known.key === undefined)) {
    throw new InvalidOptionError('tls', tls, 'cert and key together')
  }
  return { ...known }
}

function credentialsFrom(credentials: unknown): EtcdCredentials {
  const expected = 'an object with username and password'
  if (typeof credentials !== 'object' || credentials === null) {
    throw new InvalidOptionError('credentials', credentials, expected)
  }
  const { username, password } = knownOptions(credentials as EtcdCredentials, ['username', 'password'])
  if (typeof username !== 'string' || username === '' || typeof password !== 'string') {
    throw new InvalidOptionError('credentials', credentials, expected)
  }
  return { username, password }
}

function prefixFrom(prefix: unknown): string {
  if (typeof prefix === 'string' && !prefix.includes('\0') && prefix.isWellFormed()) return prefix
  throw new InvalidOptionError('prefix', prefix, "text such as 'leasehold/'")
}
