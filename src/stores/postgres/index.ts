/**
 * A lease table in PostgreSQL: for people who already have it and want nothing else.
 *
 * @module
 */
import type { Store } from '../../store.js'
import { databaseOf, type PostgresClient } from './database.js'
import { createPostgresStore, type PostgresOptions } from './store.js'

export type { PostgresClient } from './database.js'
export {
  type GuardOptions,
  guard,
  guardedWrite,
  NotCommittedError,
  StaleTokenError,
  type Transaction,
  type TransactionOf,
} from './fenced-write.js'
export { type MigrationOptions, migrate, migrationSql } from './migrate.js'
export { SchemaError } from './schema-error.js'
export type { PgPool, PgPoolClient, PgQueryable, PgResult } from './pg.js'
export type { PostgresJsSql, PostgresJsTransaction } from './postgres-js.js'
export type { PostgresOptions } from './store.js'

/**
 * Keeps leases in a table. Takes a `pg` Pool or a postgres.js `sql`, which stays yours: closing the store does not close
 * it. The tables must be there (`leasehold migrate`, `await migrate(pool)`, or `migrate: true`).
 */
export function postgres(client: PostgresClient, options: PostgresOptions = {}): Store {
  return createPostgresStore(databaseOf(client), options)
}
