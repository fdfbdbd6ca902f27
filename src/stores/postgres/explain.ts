import { LeaseholdError, StoreUnavailableError } from '../../errors.js'
import { reasonOf } from '../../util/reason.js'
import type { Names } from './migrate.js'
import { isMissing, SchemaError } from './schema-error.js'

/** What is known about an error of the server, in words that help. */
const reasons: Record<string, string> = {
  '25006': 'this server takes no writes (a standby, or default_transaction_read_only is on)',
  '53100': 'the server has no disk space left',
  '53200': 'the server has no shared memory left for locks (see max_locks_per_transaction)',
  '53300': 'the server takes no more connections (see max_connections)',
  '57014': 'the server did not finish in time',
  '57P01': 'the server is shutting down, or an administrator ended the connection',
  '57P02': 'the server crashed',
  '57P03': 'the server is starting up or shutting down',
  '55P03': 'another transaction holds what is needed, and does not end',
}

/** Every error of a call, as one of ours that says what it means. */
export function explain(error: unknown, names: Names): LeaseholdError {
  if (error instanceof LeaseholdError) return error
  const { code = '' } = error as { code?: string }
  const message = reasonOf(error)
  if (isMissing(error)) {
    return new SchemaError(
      `the schema "${names.schema}" lacks something that leasehold needs (${message}); run: leasehold migrate --store postgres://…`,
      { cause: error },
    )
  }
  if (code === '42501') {
    return new SchemaError(
      `the role may not use leasehold's tables: ${message}; grant it what docs/stores/postgres.md says under "Rights" (USAGE on the schema "${names.schema}" and SELECT, INSERT, UPDATE, DELETE on its tables leasehold_*)`,
      { cause: error },
    )
  }
  const reason = reasons[code] ? `${reasons[code]}: ${message}` : message
  return new StoreUnavailableError(`postgres is unavailable: ${reason}`, { cause: error })
}

/** The connection broke, rather than the server refusing. */
export function isBroken(error: unknown): boolean {
  const code = (error as { code?: unknown }).code
  if (code === undefined) return true
  return typeof code === 'string' && (/^(08|57P)/.test(code) || /^(E[A-Z]+|CONNECT)/.test(code))
}
