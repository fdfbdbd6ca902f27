/**
 * URLs of Redis.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'
import { unknownWord } from '../../util/options.js'
import type { RedisStoreOptions } from './options.js'

export interface Address {
  kind: 'single' | 'cluster' | 'sentinel'
  tls: boolean
  hosts: { host: string; port: number }[]
  username: string | undefined
  password: string | undefined
  db: number
  /** The name under which the sentinels know the master. */
  master: string
  options: RedisStoreOptions
}

const TAKES =
  'redis://[user:password@]host[:port][/db], redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/master[/db], ' +
  'each also as rediss…, each with ?prefix=…, ?timeout=…, ?replicas=… and ?within=…'

const PORTS = { single: 6379, cluster: 6379, sentinel: 26379 }

/** Several hosts are more than `URL` takes, so the parts are taken by hand. */
export function parseAddress(url: string): Address {
  const match = /^(rediss?)(?:\+(cluster|sentinel))?:\/\/(?:([^/?]*)@)?([^@/?]*)((?:\/[^?]*)?)(?:\?(.*))?$/s.exec(url)
  if (!match) throw bad(url)
  const [, scheme, topology = 'single', credentials, authority = '', path = '', query = ''] = match
  const kind = topology as Address['kind']
  const hosts = authority.split(',').map((part) => hostOf(part, PORTS[kind], url))
  if (kind === 'single' && hosts.length !== 1) throw bad(url)
  const [username, password] = credentialsOf(credentials, url)
  const parts = path
    .split('/')
    .slice(1)
    .map((part) => decoded(part, url))
  const master = kind === 'sentinel' ? (parts.shift() ?? '') : ''
  if (kind === 'sentinel' && master === '') throw bad(url)
  const db = parts.length === 0 || parts[0] === '' ? 0 : Number(parts[0])
  if (!Number.isInteger(db) || db < 0 || parts.length > 1 || (kind === 'cluster' && db !== 0)) throw bad(url)
  return { kind, tls: scheme === 'rediss', hosts, username, password, db, master, options: optionsOf(query) }
}

function bad(url: string): InvalidOptionError {
  return new InvalidOptionError('store', url, TAKES)
}

function decoded(text: string, url: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw bad(url)
  }
}

function hostOf(part: string, port: number, url: string): { host: string; port: number } {
  const match = /^(?:\[([^\]]+)\]|([^:]*))(?::(\d{1,5}))?$/.exec(part)
  if (!match) throw bad(url)
  return { host: match[1] ?? (match[2] || '127.0.0.1'), port: match[3] ? Number(match[3]) : port }
}

function credentialsOf(text: string | undefined, url: string): [string | undefined, string | undefined] {
  if (text === undefined) return [undefined, undefined]
  const [user = '', ...rest] = text.split(':')
  const password = rest.length > 0 ? decoded(rest.join(':'), url) : undefined
  return [user === '' ? undefined : decoded(user, url), password]
}

function optionsOf(query: string): RedisStoreOptions {
  const options: RedisStoreOptions = {}
  for (const [name, value] of new URLSearchParams(query)) {
    if (name === 'prefix') options.prefix = value
    else if (name === 'timeout') options.timeout = value as NonNullable<RedisStoreOptions['timeout']>
    else if (name === 'replicas') options.replicas = /^\d{1,3}$/.test(value) ? Number(value) : Number.NaN
    else if (name === 'within') options.within = value as NonNullable<RedisStoreOptions['within']>
    else throw unknownWord('option', name, ['prefix', 'timeout', 'replicas', 'within'])
  }
  return options
}
