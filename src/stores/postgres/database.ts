import { InvalidOptionError } from '../../errors.js'
import type { Dedicated } from './dedicated.js'
import { isPool, type PgPool, PgDatabase } from './pg.js'
import { isPostgresJs, PostgresJsDatabase, type PostgresJsSql } from './postgres-js.js'

/** A `pg` Pool or a postgres.js `sql`. */
export type PostgresClient = PgPool | PostgresJsSql

/** What the store needs of a client library. */
export interface Database {
  /**
   * Runs statements in one simple-protocol message, which is one transaction. Resolves with the first column of the
   * first row of the last one. A connection that does not answer is given up soon after `timeoutMs`.
   */
  run(sql: string, timeoutMs: number): Promise<string | undefined>
  /** The connection of our own for heartbeats and releases, one for all stores on this client. To be closed by each. */
  dedicated(timeoutMs: number): Dedicated
  /** Listens on one connection for all stores on this client, which is made anew when it breaks. */
  listen(channels: readonly string[], subscriber: Subscriber, timeoutMs: number): Listening
  /** Called when connections broke without anybody asking. */
  onBroken(listener: () => void): () => void
}

/** Who listens. */
export interface Subscriber {
  heard(payload: string, channel: string): void
  /** From now on the server will tell. Called again after each reconnect. */
  up(): void
  /** The connection is gone: what is said now is missed. */
  down(): void
}

export interface Listening {
  /** Nothing is heard although something was said. `before`: it was, on this connection. */
  suspect(before: boolean): void
  close(): Promise<void>
}

export function databaseOf(client: PostgresClient): Database {
  if (isPostgresJs(client)) return new PostgresJsDatabase(client)
  if (isPool(client)) return new PgDatabase(client)
  const single = typeof (client as { query?: unknown } | null)?.query === 'function'
  throw new InvalidOptionError(
    'pool',
    client,
    `a pg Pool or a postgres.js sql${single ? ' (a single Client may be in the middle of your transaction)' : ''}`,
  )
}
