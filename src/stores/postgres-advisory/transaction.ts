import { errorCode } from '../../clients/postgres/errors.js'
import { InvalidOptionError, LockTimeoutError } from '../../errors.js'
import { type Duration, milliseconds } from '../../util/duration.js'
import { knownOptions } from '../../util/options.js'
import { realWorld } from '../../util/world.js'
import { toLeaseholdError } from './errors.js'
import { formatId, idOfName, idOfNumbers, type LockId } from './keys.js'

export interface TransactionLockOptions {
  /** Give up after this long, whatever `statement_timeout` says. 0: one attempt. `'forever'`: never. Default 10s. */
  wait?: Duration | 'forever' | undefined
  /** `shared`: any number at once, but never beside an exclusive one. */
  mode?: 'exclusive' | 'shared' | undefined
}

/** A client of `pg` on which BEGIN was run, or what postgres.js gives to the function of `sql.begin`. */
export type TransactionClient = PgTransactionClient | PostgresJsTransactionClient

export interface PgTransactionClient {
  query(text: string): Promise<{ rows: unknown[] }>
}

export interface PostgresJsTransactionClient {
  unsafe(text: string): PromiseLike<unknown[]>
  savepoint(work: (tx: PostgresJsTransactionClient) => Promise<unknown>): Promise<unknown>
}

/** A name as in `locks.acquire` (with its namespace, `shop:order:7`), or a number or pair of your own. */
export type LockTarget = string | bigint | readonly [number, number]

/**
 * What is asked of either client. Statements have no parameters, which makes each one message: only then is the statement's
 * time the transaction's outside of one, which `assertBegun` compares. Numbers are all that is put into the text.
 */
interface LockTransaction {
  ask(text: string): Promise<Record<string, string>[]>
  /** A failure inside leaves the transaction usable, and holding what it held before. */
  within<T>(work: (inner: LockTransaction) => Promise<T>): Promise<T>
}

/**
 * Locks names until this transaction ends, by commit or rollback: nothing to release, and no connection besides yours.
 * Excludes the holders of the same names through `advisory()`. Rejects with `LockTimeoutError` if one stays busy; the
 * transaction then holds none of them and may go on. Several names are locked in one order by all callers, so that
 * transactions that use this function do not deadlock.
 *
 * @example
 * ```ts
 * await sql.begin(async (tx) => {
 *   await lockInTransaction(tx, 'order:7', { wait: '5s' })
 *   await tx`UPDATE orders SET state = 'paid' WHERE id = 7`
 * })
 * ```
 */
export async function lockInTransaction(
  tx: TransactionClient,
  names: LockTarget | readonly LockTarget[],
  options: TransactionLockOptions = {},
): Promise<void> {
  const { wait = '10s', mode = 'exclusive' } = knownOptions(options, ['wait', 'mode'])
  const waitMs = wait === 'forever' ? Number.POSITIVE_INFINITY : milliseconds('wait', wait, { or: '"forever"' })
  if (mode !== 'exclusive' && mode !== 'shared') throw new InvalidOptionError('mode', mode, "'exclusive' or 'shared'")
  const targets = inOrder(isList(names) ? names : [names as LockTarget])
  const transaction = transactionOf(tx)
  const [first] = targets
  if (!first) return
  const since = realWorld.now()
  try {
    // The usual case, a lock that is free, takes one round trip and no savepoint.
    if (targets.length === 1 && (await attempt(transaction, targets, mode)).length === 0) return
    if (targets.length === 1 && waitMs === 0) throw new TargetBusyError(first)
    await transaction.within(async (inner) => {
      if (waitMs > 0) return lockEach(inner, targets, mode, since + waitMs)
      const busy = await attempt(inner, targets, mode)
      if (busy[0]) throw new TargetBusyError(busy[0])
    })
  } catch (error) {
    if (error instanceof TargetBusyError)
      throw new LockTimeoutError(error.target.name, { waitedMs: realWorld.now() - since })
    throw errorCode(error) === '53200' ? toLeaseholdError(error) : error
  }
}

interface TransactionTarget {
  name: string
  id: LockId
}

class TargetBusyError extends Error {
  constructor(readonly target: TransactionTarget) {
    super()
  }
}

const BEGUN = '(now() <> statement_timestamp())::text AS begun'

/** Resolves with the targets that are busy. The others are locked. */
async function attempt(
  tx: LockTransaction,
  targets: readonly TransactionTarget[],
  mode: string,
): Promise<TransactionTarget[]> {
  const tries = targets.map(({ id }, i) => `(${call('pg_try_advisory_xact_lock', id, mode)})::text AS got${i}`)
  const [row] = await tx.ask(`SELECT ${[BEGUN, ...tries].join(', ')}`)
  assertBegun(row)
  return targets.filter((_, i) => row?.[`got${i}`] !== 'true')
}

async function lockEach(
  tx: LockTransaction,
  targets: readonly TransactionTarget[],
  mode: string,
  until: number,
): Promise<void> {
  // A statement_timeout is armed when a statement begins, so it is lifted one statement before the wait. Otherwise the
  // wait would end after that, with an error that says nothing of a lock. A rollback to the savepoint restores both.
  const [before] = await tx.ask(
    `SELECT ${BEGUN}, current_setting('lock_timeout') AS lock_timeout, current_setting('statement_timeout') AS statement_timeout,
      set_config('statement_timeout', '0', true) AS lifted`,
  )
  assertBegun(before)
  for (const target of targets) {
    const leftMs = until - realWorld.now()
    if (leftMs <= 0) throw new TargetBusyError(target)
    // A lock_timeout of 0 would wait for ever.
    const timeout = leftMs === Number.POSITIVE_INFINITY ? 0 : Math.max(Math.ceil(Math.min(leftMs, 2 ** 31 - 1)), 1)
    const lock = call('pg_advisory_xact_lock', target.id, mode)
    try {
      await tx.ask(`SELECT ${lock}::text FROM set_config('lock_timeout', '${timeout}', true)`)
    } catch (error) {
      throw errorCode(error) === '55P03' ? new TargetBusyError(target) : error
    }
  }
  await tx.ask(
    `SELECT set_config('lock_timeout', '${before?.['lock_timeout']}', true),
      set_config('statement_timeout', '${before?.['statement_timeout']}', true)`,
  )
}

function assertBegun(row: Record<string, string> | undefined): void {
  if (row?.['begun'] === 'true') return
  throw new InvalidOptionError(
    'tx',
    'a connection outside of any transaction',
    'a transaction that has begun: outside of one the lock would be released at once',
  )
}

function call(name: string, id: LockId, mode: string): string {
  const shared = mode === 'shared' ? '_shared' : ''
  return `${name}${shared}(${id.pair ? formatId(id).slice(1, -1) : `'${id.bits}'::bigint`})`
}

/** `[1, 2]` is a pair of numbers, one lock; everything else that is an array is a list. */
function isList(names: unknown): names is readonly LockTarget[] {
  return Array.isArray(names) && !(names.length === 2 && names.every((each) => typeof each === 'number'))
}

function inOrder(names: readonly LockTarget[]): TransactionTarget[] {
  const targets = names.map((name): TransactionTarget => {
    if (typeof name === 'string' && name !== '') return { name, id: idOfName(name) }
    if (typeof name === 'bigint' || Array.isArray(name)) {
      const id = idOfNumbers('name', name as bigint)
      return { name: formatId(id), id }
    }
    throw new InvalidOptionError('name', name, 'a name, a bigint or a pair of 32-bit integers')
  })
  const distinct = [...new Map(targets.map((target) => [target.id.text, target])).values()]
  return distinct.sort((a, b) => (a.id.text < b.id.text ? -1 : 1))
}

function transactionOf(tx: TransactionClient): LockTransaction {
  if (typeof tx === 'function' && 'savepoint' in tx && 'unsafe' in tx) return new PostgresJsLockTransaction(tx)
  if (typeof tx === 'object' && tx !== null && 'query' in tx && !('totalCount' in tx)) return new PgLockTransaction(tx)
  throw new InvalidOptionError(
    'tx',
    tx,
    'a pg client on which BEGIN was run, or what postgres.js gives to the function of sql.begin (not a pool: each of its queries may run elsewhere)',
  )
}

class PgLockTransaction implements LockTransaction {
  readonly #client: PgTransactionClient

  constructor(client: PgTransactionClient) {
    this.#client = client
  }

  async ask(text: string): Promise<Record<string, string>[]> {
    return (await this.#client.query(text)).rows as Record<string, string>[]
  }

  async within<T>(work: (inner: LockTransaction) => Promise<T>): Promise<T> {
    try {
      await this.ask('SAVEPOINT leasehold')
    } catch (error) {
      if (errorCode(error) === '25P01') assertBegun(undefined)
      throw error
    }
    try {
      const result = await work(this)
      await this.ask('RELEASE SAVEPOINT leasehold')
      return result
    } catch (error) {
      await this.ask('ROLLBACK TO SAVEPOINT leasehold; RELEASE SAVEPOINT leasehold').catch(() => {})
      throw error
    }
  }
}

/** Uses savepoints of postgres.js: it would fail the whole transaction for an error inside of a savepoint it does not know. */
class PostgresJsLockTransaction implements LockTransaction {
  readonly #tx: PostgresJsTransactionClient

  constructor(tx: PostgresJsTransactionClient) {
    this.#tx = tx
  }

  async ask(text: string): Promise<Record<string, string>[]> {
    return (await this.#tx.unsafe(text)) as Record<string, string>[]
  }

  async within<T>(work: (inner: LockTransaction) => Promise<T>): Promise<T> {
    return (await this.#tx.savepoint((inner) => work(new PostgresJsLockTransaction(inner)))) as T
  }
}
