import { MissingPackageError } from '../../errors.js'
import type { Duration } from '../../kit/duration.js'
import type { Store } from '../../store.js'
import { unlessMissing } from '../../util/optional-import.js'
import { splitUrlOptions } from '../../util/url-options.js'
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
  const { rest, options } = splitUrlOptions(url, ['schema', 'timeout', 'migrate'])
  const { schema, timeout, migrate } = options
  return {
    connection: rest,
    ...(schema === undefined ? {} : { schema }),
    ...(timeout === undefined ? {} : { timeout: timeout as Duration }),
    ...(migrate === undefined ? {} : { migrate: migrate !== 'false' }),
  }
}

/** `pg` if it is installed, else `postgres`. */
export async function openClient(url: string): Promise<OpenClient> {
  const pg = await loadPg()
  if (pg) {
    // Idle connections must not keep a process alive that has nothing else to do.
    const pool = new pg.default.Pool({ connectionString: url, allowExitOnIdle: true, max: 10 })
    pool.on('error', () => {})
    return { client: pool, close: async () => void (pool.ending || (await pool.end())) }
  }
  const postgres = await loadPostgresJs()
  if (postgres) {
    // Its own pause between attempts to reconnect grows to 20 s, in which nothing is asked and locks run out.
    const sql = postgres.default(url, { onnotice: () => {}, backoff: (tries) => Math.min(0.05 * 2 ** tries, 1) })
    return { client: sql as unknown as PostgresClient, close: () => sql.end({ timeout: 1 }) }
  }
  throw new MissingPackageError('a store on PostgreSQL', ['pg', 'postgres'])
}

async function loadPg(): Promise<typeof import('pg') | undefined> {
  try {
    return await import('pg')
  } catch (error) {
    return unlessMissing(error, 'pg')
  }
}

async function loadPostgresJs(): Promise<{ default: typeof import('postgres') } | undefined> {
  try {
    return await import('postgres')
  } catch (error) {
    return unlessMissing(error, 'postgres')
  }
}
