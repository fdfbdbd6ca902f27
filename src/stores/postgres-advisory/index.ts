/**
 * Locks of PostgreSQL itself: `pg_advisory_lock`, with a ttl, fencing tokens and a loss that is noticed.
 *
 * @module
 */
import type { PgPool } from '../../clients/postgres/types.js'
import { InvalidOptionError } from '../../errors.js'
import type { Store } from '../../store.js'
import { type Duration, milliseconds } from '../../util/duration.js'
import { knownOptions } from '../../util/options.js'
import { realWorld, type World } from '../../util/world.js'
import { AdvisoryKeys, type AdvisoryId } from './keys.js'
import { LONGEST_IDLE_MS } from './locking.js'
import { APPLICATION_TAG, clientsLike } from './setup.js'
import { AdvisoryStatements } from './statements.js'
import { AdvisoryStore } from './store.js'

export type { PgPool, PgPoolClient, PgQueryable, PgResult } from '../../clients/postgres/types.js'
export type { AdvisoryId } from './keys.js'
export {
  type LockTarget,
  lockInTransaction,
  type PgTransactionClient,
  type PostgresJsTransactionClient,
  type TransactionClient,
  type TransactionLockOptions,
} from './transaction.js'

export interface AdvisoryOptions {
  /**
   * Connections of its own that the store opens at most, and one more for each further class of ttl that is held at the
   * same time. One is enough as long as nothing waits. A claim that waits while all are taken polls instead of standing in
   * the server's queue.
   */
  maxSessions?: number | undefined
  /** Where the sequence of fencing tokens is. All processes that share locks must name the same one. */
  schema?: string | undefined
  /** Your own numbers for some names, to share locks with other programs that use them. Undefined: the hash of the name. */
  key?: (name: string) => AdvisoryId | undefined
  /** How long to wait for an answer of the server before it counts as unavailable. */
  timeout?: Duration | undefined
  /**
   * Leave the server's queue after this long, and enter it again at its end. A statement that waits keeps PostgreSQL
   * from cleaning up what has been deleted since it began.
   */
  queueFor?: Duration | undefined
  /** Time, timers and chance, for tests. */
  world?: World | undefined
}

const OPTIONS = ['maxSessions', 'schema', 'key', 'timeout', 'queueFor', 'world']

/**
 * A store on session-level advisory locks. Opens connections of its own, like those of the pool; the pool itself is
 * left alone.
 */
export function advisory(pool: PgPool, options: AdvisoryOptions = {}): Store {
  const {
    maxSessions = 4,
    world = realWorld,
    schema = 'public',
    key,
    timeout = '5s',
    queueFor = '1m',
  } = knownOptions(options, OPTIONS)
  if (!Number.isInteger(maxSessions) || maxSessions < 1) {
    throw new InvalidOptionError('maxSessions', maxSessions, 'a whole number of at least 1')
  }
  const timeoutMs = milliseconds('timeout', timeout, { min: 10 })
  return new AdvisoryStore({
    maxSessions,
    world,
    timeoutMs,
    queueMs: milliseconds('queueFor', queueFor, { min: 10, max: LONGEST_IDLE_MS }),
    statements: new AdvisoryStatements(schema),
    applicationName: applicationName(pool),
    keys: new AdvisoryKeys(key),
    open: clientsLike(pool, timeoutMs),
  })
}

/** The pool's application name with a tag, so that monitoring shows whose session it is and that leasehold opened it. */
function applicationName(pool: PgPool): string {
  const { application_name: own } = (pool?.options ?? {}) as { application_name?: unknown }
  const name = typeof own === 'string' && own !== '' ? own : (process.env['PGAPPNAME'] ?? '')
  // PostgreSQL cuts names after 63 bytes, which would cut the tag; a cut inside of a character leaves U+FFFD.
  return `${Buffer.from(name)
    .subarray(0, 50)
    .toString()
    .replace(/\uFFFD+$/, '')} ${APPLICATION_TAG}`.trim()
}
