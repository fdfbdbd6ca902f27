import { errorCode, SERVER_REASONS } from '../../clients/postgres/errors.js'
import { brand, LeaseholdError, StoreUnavailableError, UnsupportedError } from '../../errors.js'
import { reasonOf } from '../../util/reason.js'

/** The database has no schema that this code can work with. Asking again will not help. */
export class SchemaError extends UnsupportedError {
  static {
    brand(this, 'SchemaError')
  }
}

/** Explanations by SQLSTATE of what a call of the lease table may meet. */
const REASONS: Readonly<Record<string, string>> = {
  ...SERVER_REASONS,
  '25006': 'this server takes no writes (a standby, or default_transaction_read_only is on)',
  '53100': 'the server has no disk space left',
  '53200': 'the server has no shared memory left for locks (see max_locks_per_transaction)',
  '57014': 'the server did not finish in time',
  '55P03': 'another transaction holds what is needed, and does not end',
}

/** Every error of a call, as one of leasehold's that says what it means. */
export function explainError(error: unknown, schema: string): LeaseholdError {
  if (error instanceof LeaseholdError) return error
  const message = reasonOf(error)
  if (isMissing(error)) {
    return new SchemaError(
      `the schema "${schema}" lacks something that leasehold needs (${message}); run: leasehold migrate --store postgres://…`,
      { cause: error },
    )
  }
  const code = errorCode(error) ?? ''
  if (code === '42501') {
    return new SchemaError(
      `the role may not use leasehold's tables: ${message}; grant it what docs/stores/postgres.md says under "Rights" (USAGE on the schema "${schema}" and SELECT, INSERT, UPDATE, DELETE on its tables leasehold_*)`,
      { cause: error },
    )
  }
  const reason = REASONS[code] ? `${REASONS[code]}: ${message}` : message
  return new StoreUnavailableError(`postgres is unavailable: ${reason}`, { cause: error })
}

/**
 * Whether the connection broke, rather than the server or this library refusing. A server that is full (53300) refuses: no
 * connection was lost.
 */
export function isBroken(error: unknown): boolean {
  const code: unknown = errorCode(error)
  if (code === undefined) return true
  return typeof code === 'string' && (/^(08|57P)/.test(code) || /^(E[A-Z]+|CONNECT)/.test(code))
}

/** Undefined table, function or schema. */
export function isMissing(error: unknown): boolean {
  return ['42P01', '42883', '3F000'].includes(errorCode(error) ?? '')
}
