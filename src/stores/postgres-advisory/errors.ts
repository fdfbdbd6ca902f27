import { errorCode, SERVER_REASONS } from '../../clients/postgres/errors.js'
import { LeaseholdError, StoreUnavailableError, UnsupportedError } from '../../errors.js'
import { reasonOf } from '../../util/reason.js'

/** The session has ended, and with it every lock on it. */
export class SessionLost extends StoreUnavailableError {
  constructor(cause: unknown) {
    super(`postgres-advisory is unavailable: ${explain(cause)}`, { cause })
  }
}

const REASONS: Readonly<Record<string, string>> = {
  ...SERVER_REASONS,
  '53200':
    'the server has no room for another lock: it has max_locks_per_transaction × (max_connections + max_prepared_transactions) of them for all sessions together; raise max_locks_per_transaction in postgresql.conf and restart it',
  '25006': 'this server takes no writes',
  '57014': 'the statement was cancelled',
  '57P05': 'the server ended the session, because this process was silent for as long as the ttl',
}

/** Every error as one of leasehold's that says what it means. */
export function toLeaseholdError(error: unknown): LeaseholdError {
  if (error instanceof LeaseholdError) return error
  return new StoreUnavailableError(`postgres-advisory is unavailable: ${explain(error)}`, { cause: error })
}

function explain(error: unknown): string {
  const reason = REASONS[errorCode(error) ?? '']
  return reason ? `${reason} (${reasonOf(error)})` : reasonOf(error)
}

/** The error for a pooler that gives a session's statements to different backends. */
export function poolerError(): UnsupportedError {
  return new UnsupportedError(
    'postgres-advisory needs sessions, but a pooler in front of PostgreSQL (such as PgBouncer in transaction mode) gives every statement another one, so locks would be left behind on connections of others. Connect to PostgreSQL itself or to a pool in session mode; or use leasehold/postgres (lease table) or lockInTransaction, which work through such a pooler',
  )
}
