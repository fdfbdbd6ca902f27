/**
 * A lease table in PostgreSQL: for people who already have it and want nothing else.
 *
 * @module
 */
import type { Store } from '../../store.js'
import type { PostgresClient } from '../../clients/postgres/driver.js'
import { driverOf } from '../../clients/postgres/open.js'
import { createPostgresStore, type PostgresOptions } from './store.js'

export type {
  PgPool,
  PgPoolClient,
  PgQueryable,
  PgResult,
  PostgresJsSql,
  PostgresJsTransaction,
} from '../../clients/postgres/types.js'
export type { PostgresClient } from '../../clients/postgres/driver.js'
export {
  type GuardOptions,
  guard,
  guardedWrite,
  NotCommittedError,
  StaleTokenError,
  type Transaction,
  type TransactionOf,
} from './fenced-write.js'
export { migrate, migrationSql } from './migrate.js'
export type { MigrationOptions } from './schema.js'
export { SchemaError } from './errors.js'
export type { PostgresOptions } from './store.js'

/**
 * Keeps leases in a table. Takes a `pg` Pool or a postgres.js `sql`, which stays yours: closing the store does not close
 * it. The tables must be there (`leasehold migrate`, `await migrate(pool)`, or `migrate: true`).
 */
export function postgres(client: PostgresClient, options: PostgresOptions = {}): Store {
  return createPostgresStore(driverOf(client), options)
}
