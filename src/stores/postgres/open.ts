import { driverOf, openClient } from '../../clients/postgres/open.js'
import type { Store } from '../../store.js'
import type { Duration } from '../../util/duration.js'
import { splitUrlOptions } from '../../util/url-options.js'
import { type SqlFiles, sqlFiles } from './schema.js'
import { createPostgresStore, type PostgresOptions } from './store.js'

/**
 * For `openStore('postgres://…')`: opens its own connections, and closes them with the store. In the query of the URL,
 * `schema`, `timeout` and `migrate=true` are leasehold's; everything else is the client's.
 */
export async function open(url: string, options: PostgresOptions = {}, files: SqlFiles = sqlFiles): Promise<Store> {
  const { connection, ...given } = parseUrl(url)
  const { client, close } = await openClient(connection)
  return createPostgresStore(driverOf(client), { ...given, ...options }, files, close)
}

/** The store's options in a URL, and what is left for the client. */
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
