import { InvalidOptionError, LeaseholdError, StoreUnavailableError } from './errors.js'
import type { Store } from './store.js'
import { memory } from './stores/memory/index.js'
import { storeOfUrl, type UrlStore } from './util/store-url.js'

/** Each store's module is loaded only when its URL is asked for: one backend never requires another's client. */
const OPENERS: Record<UrlStore, (url: string) => Promise<Store>> = {
  memory: async (url) => {
    if (url !== 'memory:') throw new InvalidOptionError('store', url, 'memory:, with nothing behind it')
    return memory()
  },
  sqlite: async (url) => (await import('./stores/sqlite/index.js')).sqlite(filePath(url.slice('sqlite:'.length))),
  redis: async (url) => (await import('./stores/redis/open.js')).open(url),
  redlock: async (url) => (await import('./stores/redlock/open.js')).open(url),
  postgres: async (url) => (await import('./stores/postgres/open.js')).open(url),
  advisory: async (url) => (await import('./stores/postgres-advisory/open.js')).open(url),
  etcd: async (url) => (await import('./stores/etcd/open.js')).open(url),
}

/**
 * Opens a store from a URL, with a client of its own that `store.close()` closes.
 *
 * `memory:`, `sqlite:./locks.db`, `redis://`, `redis+cluster://h1:p,h2:p`, `redis+sentinel://h1:p,h2:p/<master>`,
 * `redlock://h1:p,h2:p,h3:p`, `postgres://`, `postgres+advisory://`, `etcd://h1:p,h2:p,h3:p`, `etcds://`
 *
 * @example
 * ```ts
 * const store = await openStore('sqlite:./locks.db')
 * ```
 */
export async function openStore(url: string): Promise<Store> {
  const { scheme, store } = storeOfUrl(url)
  try {
    return await OPENERS[store](url)
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
