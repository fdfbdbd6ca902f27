import { LeaseholdError } from '../../errors.js'
import type { Duration } from '../../kit/duration.js'
import type { Store } from '../../store.js'
import { databaseOf, type PostgresClient } from './database.js'
import { type Sources, sources } from './migrate.js'
import { createPostgresStore, type PostgresOptions } from './store.js'

/** A client opened from a URL, with whichever library is installed. */
export interface OpenClient {
  client: PostgresClient
  close: () => Promise<void>
}

/**
 * For `openStore('postgres://…')`: opens its own connections, and closes them with the store. In the query of the URL,
 * `schema`, `timeout` and `migrate=true` are ours; everything else is the client's.
 */
export async function open(url: string, options: PostgresOptions = {}, files: Sources = sources): Promise<Store> {
  const { connection, ...given } = parseUrl(url)
  const { client, close } = await openClient(connection)
  return createPostgresStore(databaseOf(client), { ...given, ...options }, files, close)
}

/** What of the URL is ours, and what is left for the client. */
export function parseUrl(url: string): PostgresOptions & { connection: string } {
  const [address = '', query = ''] = url.split(/\?(.*)/s)
  const parameters = new URLSearchParams(query)
  const own: PostgresOptions = {}
  const take = (name: string): string | undefined => {
    const value = parameters.get(name) ?? undefined
    parameters.delete(name)
    return value
  }
  const [schema, timeout, migrate] = [take('schema'), take('timeout'), take('migrate')]
  if (schema !== undefined) own.schema = schema
  if (timeout !== undefined) own.timeout = timeout as Duration
  if (migrate !== undefined) own.migrate = migrate !== 'false'
  return { ...own, connection: parameters.size > 0 ? `${address}?${parameters.toString()}` : address }
}

/** `pg` if it is installed, else `postgres`. */
export async function openClient(url: string): Promise<OpenClient> {
  const pg = await optional(() => import('pg'), 'pg')
  if (pg) {
    // Idle connections must not keep a process alive that has nothing else to do.
    const pool = new pg.default.Pool({ connectionString: url, allowExitOnIdle: true, max: 10 })
    pool.on('error', () => {})
    return { client: pool, close: async () => void (pool.ending || (await pool.end())) }
  }
  const postgres = await optional(() => import('postgres'), 'postgres')
  if (postgres) {
    // Its own pause between attempts to reconnect grows to 20 s, in which nothing is asked and locks run out.
    const sql = postgres.default(url, { onnotice: () => {}, backoff: (tries) => Math.min(0.05 * 2 ** tries, 1) })
    return { client: sql as unknown as PostgresClient, close: () => sql.end({ timeout: 1 }) }
  }
  throw new LeaseholdError(
    'MISSING_PACKAGE',
    'postgres:// needs a client package: npm install pg (or: npm install postgres)',
  )
}

/** Undefined if exactly this package is not there; any other failure is a failure. */
async function optional<T>(load: () => Promise<T>, name: string): Promise<T | undefined> {
  try {
    return await load()
  } catch (error) {
    const { code, message } = error as { code?: string; message?: string }
    if (code === 'ERR_MODULE_NOT_FOUND' && message?.includes(`'${name}'`)) return undefined
    throw error
  }
}
