import type { Store } from '../../src/store.js'

/** Each module is loaded only when it is needed: processes that use one store should start fast. */
const OPENERS: [RegExp, (url: string) => Promise<Store>][] = [
  [/^sqlite:/, async (url) => (await import('../../src/stores/sqlite/index.js')).sqlite(url.slice('sqlite:'.length))],
  [/^redis/, async (url) => (await import('../../src/stores/redis/open.js')).open(url)],
  [/^redlock:/, async (url) => (await import('../../src/stores/redlock/open.js')).open(url)],
  [/^postgres:/, async (url) => (await import('../../src/stores/postgres/open.js')).open(url)],
  [/^postgres\+advisory:/, async (url) => (await import('../../src/stores/postgres-advisory/open.js')).open(url)],
]

/** A store of its own for this process, at a place that others may share. */
export async function storeAt(url: string): Promise<Store> {
  const open = OPENERS.find(([scheme]) => scheme.test(url))?.[1]
  if (!open) throw new Error(`no store for ${url}`)
  return open(url)
}
