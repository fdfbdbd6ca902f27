/**
 * Fencing on the side of the resource: a token is worth something only where it is checked.
 *
 * @module
 */
import { brand, InvalidOptionError, LeaseholdError } from '../../errors.js'
import { knownOptions } from '../../util/options.js'
import type { PostgresClient } from './database.js'
import { namesOf, text } from './migrate.js'
import { isPool, type PgPool, type PgPoolClient, type PgQueryable } from './pg.js'
import { isPostgresJs, type PostgresJsTransaction } from './postgres-js.js'

/** A transaction: a `pg` client between BEGIN and COMMIT, or what postgres.js gives to the callback of `sql.begin`. */
export type Transaction = PgQueryable | PostgresJsTransaction

/** Somebody with a newer token has written to the resource: whoever this is no longer holds the lock. Nothing was written. */
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
 * written to the resource; the transaction can then only be rolled back.
 */
export async function guard(transaction: Transaction, options: GuardOptions): Promise<void> {
  const { resource, token, schema = 'public' } = knownOptions(options, ['resource', 'token', 'schema'])
  if (typeof resource !== 'string' || resource === '' || resource.includes('\0')) {
    throw new InvalidOptionError('resource', resource, 'text of at least one character, without NUL')
  }
  if (typeof token !== 'bigint') throw new InvalidOptionError('token', token, 'a fencing token (a bigint)')
  if (isPool(transaction) || isPostgresJs(transaction)) {
    throw new InvalidOptionError(
      'transaction',
      transaction,
      'one open transaction; on a whole pool the guard and the write could be apart',
    )
  }
  const question = `SELECT ${namesOf(schema).fill('{schema}.leasehold_guard')}(${text(resource)}, ${token})`
  try {
    await ('unsafe' in transaction ? transaction.unsafe(question) : transaction.query(question))
  } catch (error) {
    const { code, detail } = error as { code?: string; detail?: string }
    if (code === 'LH001') throw new StaleTokenError(resource, token, BigInt(detail as string), { cause: error })
    throw error
  }
}

/**
 * A transaction whose writes count only if nobody with a newer token has written to the resource. Whatever `write`
 * throws rolls it back. Resolves with what `write` returned, when it is committed.
 */
export async function guardedWrite<T, C extends PostgresClient>(
  client: C,
  options: GuardOptions,
  write: (transaction: TransactionOf<C>) => Promise<T>,
): Promise<T> {
  if (isPostgresJs(client)) {
    return client.begin(async (sql) => {
      await guard(sql, options)
      return write(sql as TransactionOf<C>)
    }) as Promise<T>
  }
  if (!isPool(client)) throw new InvalidOptionError('client', client, 'a pg Pool or a postgres.js sql')
  return inTransaction(await client.connect(), options, write as (tx: PgQueryable) => Promise<T>)
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
    await guard(client, options)
    const result = await write(client)
    await client.query('COMMIT')
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
