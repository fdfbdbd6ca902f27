import { InvalidOptionError, LeaseholdError, StoreUnavailableError } from './errors.js'
import type { Store } from './store.js'
import { memory } from './stores/memory/index.js'

/** Each store's module is loaded only when its URL is asked for: one backend never requires another's client. */
const redis = async (url: string): Promise<Store> => (await import('./stores/redis/open.js')).open(url)
const redlock = async (url: string): Promise<Store> => (await import('./stores/redlock/open.js')).open(url)
const postgres = async (url: string): Promise<Store> => (await import('./stores/postgres/open.js')).open(url)
const advisory = async (url: string): Promise<Store> => (await import('./stores/postgres-advisory/open.js')).open(url)

const OPENERS: Record<string, (url: string) => Promise<Store>> = {
  memory: async (url) => {
    if (url !== 'memory:') throw new InvalidOptionError('store', url, 'memory:, with nothing behind it')
    return memory()
  },
  sqlite: async (url) => (await import('./stores/sqlite/index.js')).sqlite(filePath(url.slice('sqlite:'.length))),
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
  const scheme = typeof url === 'string' ? /^([a-z][a-z+]*):/.exec(url)?.[1] : undefined
  const open = scheme !== undefined && Object.hasOwn(OPENERS, scheme) ? OPENERS[scheme] : undefined
  if (!open) {
    throw new InvalidOptionError('store', url, `a URL that begins with one of ${Object.keys(OPENERS).join(', ')}`)
  }
  try {
    return await open(url)
  } catch (error) {
    if (error instanceof LeaseholdError) throw error
    // A client library that cannot read a URL says so with the URL, and so with its password.
    if (error instanceof URIError || (error as { code?: unknown }).code === 'ERR_INVALID_URL') {
      throw new InvalidOptionError('store', url, 'a URL whose special characters are written like %40')
    }
    const reason = error instanceof Error ? error.message : String(error)
    throw new StoreUnavailableError(`the ${scheme} store could not be opened: ${reason}`, { cause: error })
  }
}

/** As in a URL, but a file may well be called `100%.db`: what is no escape is a plain character. */
function filePath(path: string): string {
  try {
    return decodeURI(path)
  } catch {
    return path
  }
}
