/**
 * Which store a URL is for: asked when a store is opened, and when `doctor` examines one.
 *
 * @module
 */
import { InvalidOptionError } from '../errors.js'

export type UrlStore = 'memory' | 'sqlite' | 'redis' | 'redlock' | 'postgres' | 'advisory' | 'etcd'

const STORES: Readonly<Record<string, UrlStore>> = {
  memory: 'memory',
  sqlite: 'sqlite',
  redis: 'redis',
  rediss: 'redis',
  'redis+cluster': 'redis',
  'rediss+cluster': 'redis',
  'redis+sentinel': 'redis',
  'rediss+sentinel': 'redis',
  redlock: 'redlock',
  'rediss+redlock': 'redlock',
  postgres: 'postgres',
  postgresql: 'postgres',
  'postgres+advisory': 'advisory',
  'postgresql+advisory': 'advisory',
  etcd: 'etcd',
  etcds: 'etcd',
}

/** `except`: stores that the caller cannot do anything with. */
export function storeOfUrl(url: string, except?: UrlStore): { scheme: string; store: UrlStore } {
  const scheme = typeof url === 'string' ? (/^([a-z][a-z+]*):/.exec(url)?.[1] ?? '') : ''
  const store = Object.hasOwn(STORES, scheme) ? STORES[scheme] : undefined
  if (store !== undefined && store !== except) return { scheme, store }
  const known = Object.keys(STORES).filter((each) => STORES[each] !== except)
  throw new InvalidOptionError('store', url, `a URL that begins with one of ${known.join(', ')}`)
}
