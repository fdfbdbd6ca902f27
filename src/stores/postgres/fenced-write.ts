/**
 * Fencing on the side of the resource: a token is worth something only where it is checked.
 *
 * @module
 */
import type {
  PgPool,
  PgPoolClient,
  PgQueryable,
  PgResult,
  PostgresJsTransaction,
} from '../../clients/postgres/types.js'
import { brand, InvalidOptionError, LeaseholdError } from '../../errors.js'
import { knownOptions } from '../../util/options.js'
import type { PostgresClient } from '../../clients/postgres/driver.js'
import { schemaNames, sqlString } from './schema.js'
import { isPool } from '../../clients/postgres/pg.js'
import { isPostgresJs } from '../../clients/postgres/postgres-js.js'

/** A transaction: a `pg` client between BEGIN and COMMIT, or what postgres.js gives to the callback of `sql.begin`. */
export type Transaction = PgQueryable | PostgresJsTransaction

/** A holder with a newer token has written to the resource: the caller no longer holds the lock. Nothing was written. */
export class StaleTokenError extends LeaseholdError {
  readonly resource: string
  readonly token: bigint
  /** The newest token that has written. */
  readonly seen: bigint

  constructor(resource: string, token: bigint, seen: bigint, options?: ErrorOptions) {
    super('STALE_TOKEN', `a write to "${resource}" was refused: its token ${token} is older than ${seen}`, options)
    this.resource = resource
    this.token = token
    this.seen = seen
  }

  static {
    brand(this, 'StaleTokenError')
  }
}

/** `guardedWrite` did not commit: its `cause`, or its message, says why. The writes are undone, or belong to another transaction. */
export class NotCommittedError extends LeaseholdError {
  readonly resource: string

  constructor(resource: string, why: string, options?: ErrorOptions) {
    super('NOT_COMMITTED', `a write to "${resource}" was not committed: ${why}`, options)
    this.resource = resource
  }

  static {
    brand(this, 'NotCommittedError')
  }
}

export interface GuardOptions {
  /** What is written to, such as `order:7`. Need not be the name of the lock. */
  resource: string
  /** `lock.fencingToken` */
  token: bigint
  /** Where leasehold's tables are. */
  schema?: string | undefined
}

/**
 * To be called in the transaction that writes, before the write. Rejects with `StaleTokenError` if a newer token has
 * written to the resource; the transaction can then only be rolled back. Rejects with `InvalidOptionError` if no
 * transaction is open: the guard would end with its own statement, and a newer holder could write before you do.
 */
export async function guard(transaction: Transaction, options: GuardOptions): Promise<void> {
  await guardIn(transaction, options)
}

/** The same, and resolves with the ID of the transaction. */
async function guardIn(transaction: Transaction, options: GuardOptions): Promise<string> {
  const { resource, token, schema = 'public' } = knownOptions(options, ['resource', 'token', 'schema'])
  if (typeof resource !== 'string' || resource === '' || resource.includes('\0')) {
    throw new InvalidOptionError('resource', resource, 'text of at least one character, without NUL')
  }
  if (typeof token !== 'bigint' || BigInt.asIntN(64, token) !== token)
    throw new InvalidOptionError('token', token, 'a fencing token (a bigint of at most 64 bits)')
  if (isPool(transaction) || isPostgresJs(transaction)) {
    throw notATransaction('on a whole pool the guard and the write could be apart')
  }
  // Of exactly the declared types: a function of the same name that fits a small number better, made by a role that may create
  // in the schema, would otherwise be called instead, with the rights of the writer.
  const args = `${sqlString(resource)}::pg_catalog.text, '${token}'::pg_catalog.int8`
  const call = `${schemaNames(schema).fill('{schema}.leasehold_guard')}(${args})`
  try {
    // PostgreSQL refuses SAVEPOINT outside of a transaction, before the guard of the same message has run.
    const enter = 'SAVEPOINT leasehold_guard; RELEASE SAVEPOINT leasehold_guard'
    return await lastValue(transaction, `${enter}; SELECT pg_catalog.pg_current_xact_id()::text AS xid FROM ${call}`)
  } catch (error) {
    const { code, detail } = error as { code?: string; detail?: string }
    if (code === 'LH001') throw new StaleTokenError(resource, token, BigInt(detail as string), { cause: error })
    if (code === NO_TRANSACTION) throw notATransaction('none is open on this connection: BEGIN comes first')
    throw error
  }
}

/** The connection is not inside a transaction. */
const NO_TRANSACTION = '25P01'
/** A statement failed before, and the server refuses everything but ROLLBACK. It answers COMMIT with a rollback. */
const ABORTED = '25P02'

const CURRENT_TRANSACTION = 'SELECT pg_catalog.pg_current_xact_id_if_assigned()::text AS xid'

function notATransaction(why: string): InvalidOptionError {
  return new InvalidOptionError('transaction', '[connection]', `one open transaction; ${why}`)
}

type TransactionRows = Record<string, unknown>[]

/** The first column of the last row-returning statement. */
async function lastValue(transaction: Transaction, question: string): Promise<string> {
  let rows: TransactionRows
  if ('unsafe' in transaction) {
    const results = (await transaction.unsafe(question)) as TransactionRows | TransactionRows[]
    rows = (Array.isArray(results.at(-1)) ? results.at(-1) : results) as TransactionRows
  } else {
    const results = (await transaction.query(question)) as PgResult | PgResult[]
    rows = (Array.isArray(results) ? (results.at(-1) as PgResult) : results).rows
  }
  return String(rows[0]?.xid)
}

/**
 * A transaction whose writes count only if no newer token has written to the resource. Whatever `write`
 * throws rolls it back. Resolves with what `write` returned, only when the server has committed this very transaction;
 * rejects with `NotCommittedError` if it could not, because a statement had failed whose error `write` kept to itself, or
 * because `write` ended the transaction by itself.
 */
export async function guardedWrite<T, C extends PostgresClient>(
  client: C,
  options: GuardOptions,
  write: (transaction: TransactionOf<C>) => Promise<T>,
): Promise<T> {
  if (typeof write !== 'function') throw new InvalidOptionError('write', write, 'a function that writes')
  if (isPostgresJs(client)) {
    return client.begin(async (sql) => {
      const xid = await guardIn(sql, options)
      const result = await write(sql as TransactionOf<C>)
      const last = await lastValue(sql, CURRENT_TRANSACTION).catch((error: unknown) => explained(error, options))
      if (last !== xid) throw endedInside(options)
      return result
    }) as Promise<T>
  }
  if (!isPool(client)) throw new InvalidOptionError('client', client, 'a pg Pool or a postgres.js sql')
  return inTransaction(await client.connect(), options, write as (tx: PgQueryable) => Promise<T>)
}

function explained(error: unknown, { resource }: GuardOptions): never {
  if ((error as { code?: string }).code !== ABORTED) throw error
  const why = 'a statement in it had failed, so the server rolls it back (a SAVEPOINT around that statement helps)'
  throw new NotCommittedError(resource, why, { cause: error })
}

function endedInside({ resource }: GuardOptions): NotCommittedError {
  return new NotCommittedError(resource, 'the callback ended the transaction by itself')
}

/** What `write` gets: the pool's client, or a `sql` like the one that was given. */
export type TransactionOf<C extends PostgresClient> = C extends PgPool ? PgQueryable : C

async function inTransaction<T>(
  client: PgPoolClient,
  options: GuardOptions,
  write: (client: PgQueryable) => Promise<T>,
): Promise<T> {
  const ignore = (): void => {}
  client.on('error', ignore)
  let broken: Error | undefined
  try {
    await client.query('BEGIN')
    const xid = await guardIn(client, options)
    const result = await write(client)
    await commit(client, xid, options)
    return result
  } catch (error) {
    await client.query('ROLLBACK').catch((failure: Error) => {
      broken = failure
    })
    throw error
  } finally {
    client.release(broken)
    client.off('error', ignore)
  }
}

/**
 * The server answers COMMIT without an error although it rolled back (only the command tag tells), and although the
 * transaction was another one by then. In one message: if the first statement fails, the second does not run.
 */
async function commit(client: PgQueryable, xid: string, options: GuardOptions): Promise<void> {
  const ended = client.query(`${CURRENT_TRANSACTION}; COMMIT`) as Promise<unknown>
  const [last, end] = (await ended.catch((error: unknown) => explained(error, options))) as [PgResult, PgResult]
  if (last.rows[0]?.xid !== xid) throw endedInside(options)
  if (end.command !== 'COMMIT') throw new NotCommittedError(options.resource, `the server answered ${end.command}`)
}
