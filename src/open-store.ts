import { InvalidOptionError } from './errors.js'
import type { Store } from './store.js'
import { memory } from './stores/memory/index.js'

/** Each store's module is loaded only when its URL is asked for: one backend never requires another's client. */
const redis = async (url: string): Promise<Store> => (await import('./stores/redis/open.js')).open(url)
const redlock = async (url: string): Promise<Store> => (await import('./stores/redlock/open.js')).open(url)
const postgres = async (url: string): Promise<Store> => (await import('./stores/postgres/open.js')).open(url)
const advisory = async (url: string): Promise<Store> => (await import('./stores/postgres-advisory/open.js')).open(url)

const OPENERS: Record<string, (url: string) => Promise<Store>> = {
  memory: async () => memory(),
  sqlite: async (url) => (await import('./stores/sqlite/index.js')).sqlite(pathFrom(url)),
  redis,
  rediss: redis,
  'redis+cluster': redis,
  'rediss+cluster': redis,
  'redis+sentinel': redis,
  'rediss+sentinel': redis,
  redlock,
  'rediss+redlock': redlock,
  postgres,
  postgresql: postgres,
  'postgres+advisory': advisory,
  'postgresql+advisory': advisory,
}

/**
 * Opens a store from a URL, with a client of its own that `store.close()` closes.
 *
 * `memory:`, `sqlite:./locks.db`, `redis://`, `redis+cluster://h1:p,h2:p`, `redis+sentinel://h1:p,h2:p/<master>`,
 * `redlock://h1:p,h2:p,h3:p`, `postgres://`, `postgres+advisory://`
 *
 * @example
 * ```ts
 * const store = await openStore('sqlite:./locks.db')
 * ```
 */
export async function openStore(url: string): Promise<Store> {
  const scheme = /^([a-z][a-z+]*):/.exec(String(url))?.[1]
  const open = scheme === undefined ? undefined : OPENERS[scheme]
  if (!open) {
    // Without who and the password: an error may end in a log.
    const shown = typeof url === 'string' ? url.replace(/\/\/[^/]*@/, '//…@') : url
    throw new InvalidOptionError('store', shown, `a URL that begins with one of ${Object.keys(OPENERS).join(', ')}`)
  }
  return open(url)
}

function pathFrom(url: string): string {
  try {
    return decodeURI(url.slice('sqlite:'.length))
  } catch {
    throw new InvalidOptionError('store', url, 'a path in which a % is written as %25')
  }
}
