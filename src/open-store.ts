import { InvalidOptionError } from './errors.js'
import type { Store } from './store.js'
import { memory } from './stores/memory/index.js'

/** Each store's module is loaded only when its URL is asked for: one backend never requires another's client. */
const OPENERS: Record<string, (url: string) => Promise<Store>> = {
  memory: async () => memory(),
  sqlite: async (url) => (await import('./stores/sqlite/index.js')).sqlite(decodeURI(url.slice('sqlite:'.length))),
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
  if (!open)
    throw new InvalidOptionError('store', url, `a URL that begins with one of ${Object.keys(OPENERS).join(', ')}`)
  return open(url)
}
