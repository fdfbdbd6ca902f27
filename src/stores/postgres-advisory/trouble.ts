import { LeaseholdError, StoreUnavailableError, UnsupportedError } from '../../errors.js'
import type { PgError } from './client.js'

/** The session has ended, and with it every lock on it. */
export class SessionLost extends StoreUnavailableError {
  constructor(cause: unknown) {
    super(`postgres-advisory is unavailable: ${reasonOf(cause)}`, { cause })
  }
}

const reasons: Record<string, string> = {
  '53200':
    'the server has no room for another lock: it has max_locks_per_transaction × (max_connections + max_prepared_transactions) of them for all sessions together; raise max_locks_per_transaction in postgresql.conf and restart it',
  '53300': 'the server takes no more connections (see max_connections)',
  '25006': 'this server takes no writes',
  '57014': 'somebody cancelled the statement',
  '57P01': 'the server is shutting down, or an administrator ended the connection',
  '57P02': 'the server crashed',
  '57P03': 'the server is starting up or shutting down',
  '57P05': 'the server ended the session, because nothing was heard of us for as long as the ttl',
}

/** Every error as one of ours that says what it means. */
export function explain(error: unknown): LeaseholdError {
  if (error instanceof LeaseholdError) return error
  return new StoreUnavailableError(`postgres-advisory is unavailable: ${reasonOf(error)}`, { cause: error })
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const { code = '', message } = error as PgError
  const reason = reasons[code]
  return reason ? `${reason} (${message})` : message || code || error.name
}

export function codeOf(error: unknown): string | undefined {
  return (error as { code?: string } | undefined)?.code
}

/** The connection is gone, rather than a statement refused. */
export function isFatal(error: unknown): boolean {
  const { code, severity } = (error ?? {}) as PgError
  if (severity === undefined || code === undefined) return true
  return severity !== 'ERROR' || /^(08|57P)/.test(code)
}

export function pooled(): UnsupportedError {
  return new UnsupportedError(
    'postgres-advisory needs sessions, but a pooler in front of PostgreSQL (such as PgBouncer in transaction mode) gives every statement another one, so locks would be left behind on connections of others. Connect to PostgreSQL itself or to a pool in session mode; or use leasehold/postgres (lease table) or lockInTransaction, which work through such a pooler',
  )
}
