/**
 * Locks of PostgreSQL itself: `pg_advisory_lock`, with a ttl, fencing tokens and a loss that is noticed.
 *
 * @module
 */
import type { Store } from '../../store.js'
import type { PgPool } from './client.js'
import type { AdvisoryOptions } from './options.js'
import { AdvisoryStore } from './store.js'

export type { PgPool } from './client.js'
export type { AdvisoryId } from './ids.js'
export type { AdvisoryOptions } from './options.js'
export {
  type LockTarget,
  lockInTransaction,
  type PgTransactionClient,
  type PostgresJsTransactionClient,
  type TransactionClient,
  type TransactionLockOptions,
} from './transaction.js'

/**
 * A store on session-level advisory locks. Opens connections of its own, like those of the pool; the pool itself is
 * left alone.
 */
export function advisory(pool: PgPool, options: AdvisoryOptions = {}): Store {
  return new AdvisoryStore(pool, options)
}
