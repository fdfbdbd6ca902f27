import { Pool } from 'pg'
import postgresJs from 'postgres'
import { migrate, type PostgresClient, type PostgresOptions, postgres } from '../../src/stores/postgres/index.js'
import type { Store } from '../../src/store.js'
import type { Setup } from '../../src/testing/index.js'

export type Library = 'pg' | 'postgres.js'

/** A client of one of the two libraries, and how to close it. */
export function clientOf(library: Library, url: string, max = 5): { client: PostgresClient; end: () => Promise<void> } {
  if (library === 'pg') {
    const pool = new Pool({ connectionString: url, max })
    return { client: pool, end: async () => void (pool.ending || (await pool.end())) }
  }
  // As docs/stores/postgres.md advises: by default it pauses for up to 20 s before it connects again, and a connection that the
  // server ends while it asks for types rejects a promise that nobody handles.
  const sql = postgresJs(url, { max, onnotice: () => {}, backoff: () => 0.1, fetch_types: false })
  return { client: sql as unknown as PostgresClient, end: () => sql.end({ timeout: 1 }) }
}

/** A store with a client of its own, both closed by `close()`. */
export function storeAt(library: Library, url: string, options: PostgresOptions & { max?: number } = {}): Store {
  const { max, ...rest } = options
  const { client, end } = clientOf(library, url, max)
  const store = postgres(client, rest)
  const close = store.close.bind(store)
  store.close = async () => {
    await close()
    await end()
  }
  return store
}

/** One migrated database, for the conformance kit: many cases at once keep a busy machine from answering soon. */
export async function fixtureAt(library: Library, url: string, options: PostgresOptions = {}): Promise<Setup> {
  const { client, end } = clientOf(library, url)
  await migrate(client, { schema: options.schema ?? 'public' })
  await end()
  return { store: async () => storeAt(library, url, { timeout: '20s', ...options }), close: async () => {} }
}
