/**
 * One open database file and the transactions on it: each short, synchronous, and all or nothing.
 *
 * @module
 */
import { StoreUnavailableError } from '../../errors.js'
import type { Claim, Grant, LeaseId } from '../../store.js'
import { type Machine, mayBeSameBoot } from './boot-clock.js'
import { type OpenFile, identify, openFile } from './database-file.js'
import type { SqliteDriver } from './driver.js'
import { isBusy } from './errors.js'
import { LeaseTable, type LeaseTableContext, type PendingNotification, storedToken } from './lease-table.js'
import { type SqliteStatements, prepareStatements } from './statements.js'
import type { SubscriberFor } from './waiter-table.js'
import { wakeupDirectory } from './wakeup-file.js'

/**
 * How often, in milliseconds, calls check that the file under our path is still the one we opened. A check costs a system
 * call; until it happens, a process may trust leases of a file that was deleted.
 */
const REPLACED_CHECK_MS = 200
/** A sweep is due after this many rows may have been added, or this many transactions: more often would slow down each of them. */
const SWEEP_EVERY = 64
/** Rows that a sweep reads for each that may have been added. With 1 or less, rows of unused keys would pile up. */
const SWEPT_PER_ROW = 4
/** Sorts after every key: no key begins with these characters. */
const LAST_KEY = '\u{10ffff}'.repeat(4)

/** The key of subscriptions to every revocation. No other key is empty: each begins with its kind. */
export const REVOCATIONS = ''

/** What the work of a committed transaction returned, and whom to notify now. */
export interface WriteResult<T> {
  result: T
  notifications: readonly AddressedNotification[]
  /** Subscribers that were not refreshed for so long that their processes must be dead. */
  deadSubscribers: readonly string[]
}

export interface AddressedNotification extends PendingNotification {
  subscribers: readonly string[]
}

export interface ConnectionContext {
  path: string
  driver: SqliteDriver
  machine: Machine
  wallMicros: () => number
  subscriberFor: SubscriberFor
  /** Called when another file has taken the place of the one that was open. */
  onReplaced: () => void
}

const NONE: readonly never[] = []

export class SqliteConnection {
  readonly #context: ConnectionContext
  readonly #tableContext: LeaseTableContext
  #open: { file: OpenFile; sql: SqliteStatements } | undefined
  /** Set once another machine was seen to use the file. */
  #sharedError: StoreUnavailableError | undefined
  #lastToken = 0
  #checkedAt = 0
  /** Rows that may have been added since the last sweep. The first transaction sweeps: a process may live for no more than one. */
  #unswept = SWEEP_EVERY

  constructor(context: ConnectionContext) {
    this.#context = context
    const { wallMicros, subscriberFor } = context
    this.#tableContext = { wallMicros, subscriberFor, checkBoot: (boot) => this.#checkBoot(boot) }
  }

  /**
   * Throws what SQLite throws; after any error but "busy" the next call opens the file anew. `rows`: how many the work may add.
   */
  write<T>(work: (leases: LeaseTable, sql: SqliteStatements) => T, rows = 1): WriteResult<T> {
    return this.#transaction('begin', (sql, now) => {
      const leases = new LeaseTable(sql, now, this.#tableContext)
      const result = work(leases, sql)
      if (leases.lastToken === undefined) this.#checkBoot((sql.state.get() as { boot: string }).boot)
      else this.#lastToken = leases.lastToken
      this.#unswept += rows
      const deadSubscribers = this.#unswept > SWEEP_EVERY ? sweep(sql, leases, this.#unswept * SWEPT_PER_ROW) : NONE
      if (this.#unswept > SWEEP_EVERY) this.#unswept = 0
      const pending = leases.notifications
      const notifications = pending.length === 0 ? NONE : pending.map((notification) => addressed(notification, sql))
      return { result, notifications, deadSubscribers }
    })
  }

  /**
   * Grants a key that has no holder and no waiter, in one statement: half the cost of a transaction with several.
   * Undefined: it may have one, or a sweep is due; `write` has to decide.
   */
  acquireFree({ key, owner, weight, capacity, ttlMs, value }: Claim): Grant | undefined {
    const { machine, wallMicros } = this.#context
    const token = Math.max(this.#lastToken + 1, wallMicros())
    const granted = this.#single((sql) => {
      const now = machine.now()
      const end = now + ttlMs
      const { boot } = machine
      return sql.acquireFree.run(key, owner, weight, capacity, end, ttlMs, now, token, value ?? null, boot)
    })
    if (!granted) return undefined
    this.#lastToken = token
    return { granted: true, owner, token: BigInt(token), ttlMs }
  }

  /** Ends a lease that has no waiters, likewise. False: `write` has to decide. */
  releaseUncontended({ key, owner, token }: LeaseId): boolean {
    const { boot, now } = this.#context.machine
    return this.#single((sql) => sql.releaseUncontended.run(key, owner, now(), boot, storedToken(token)))
  }

  /** Reads one consistent state. Never waits for a writing transaction. */
  read<T>(work: (sql: SqliteStatements, now: number) => T): T {
    return this.#transaction('beginReading', (sql, now) => {
      this.#checkBoot((sql.state.get() as { boot: string }).boot)
      return work(sql, now)
    })
  }

  /** Epoch milliseconds by the machine's clock. Touches no table, so it never waits for another process. */
  wallTime(): number {
    return (this.#ready().sql.wallTime.get() as { ms: number }).ms
  }

  wakeupDirectory(): string {
    return wakeupDirectory((this.#open ?? this.#ready()).file.path)
  }

  close(): void {
    this.#open?.file.db.close()
    this.#open = undefined
  }

  #transaction<T>(begin: 'begin' | 'beginReading', work: (sql: SqliteStatements, now: number) => T): T {
    const { sql } = this.#ready()
    try {
      sql[begin].run()
      // The clock is read after BEGIN, which may have waited: an earlier reading would keep expired leases alive.
      const result = work(sql, this.#context.machine.now())
      sql.commit.run()
      return result
    } catch (error) {
      this.#abandon(sql, error)
      throw error
    }
  }

  /** Runs one statement by itself. Returns false when a sweep is due, which only a transaction makes. */
  #single(work: (sql: SqliteStatements) => { changes: number | bigint }): boolean {
    const { sql } = this.#ready()
    if (this.#unswept >= SWEEP_EVERY) return false
    try {
      if (Number(work(sql).changes) === 0) return false
    } catch (error) {
      if (!isBusy(error)) this.close()
      throw error
    }
    this.#unswept++
    return true
  }

  #abandon(sql: SqliteStatements, error: unknown): void {
    try {
      sql.rollback.run()
    } catch {
      // The transaction never began, or SQLite has rolled it back already.
    }
    if (!isBusy(error)) this.close()
  }

  #checkBoot(boot: string): void {
    const { path, machine } = this.#context
    if (mayBeSameBoot(boot, machine.boot)) return
    // A boot cannot end while this process runs: another kernel opened the file and deleted all our leases as expired.
    // Opening the file anew would delete its leases in turn, so this connection stays unusable.
    this.#sharedError = new StoreUnavailableError(
      `${path} is in use by another machine or virtual machine, and its times mean nothing here: every machine needs a file of its own`,
    )
    throw this.#sharedError
  }

  #ready(): { file: OpenFile; sql: SqliteStatements } {
    if (this.#open) this.#closeIfReplaced(this.#open.file)
    if (this.#open) return this.#open
    if (this.#sharedError) throw this.#sharedError
    const { path, driver, machine } = this.#context
    const file = openFile(path, driver, machine)
    this.#open = { file, sql: prepareStatements(file.db) }
    this.#checkedAt = machine.now()
    return this.#open
  }

  /** A file that was deleted or moved still works for processes that have it open: they would exclude only each other. */
  #closeIfReplaced(file: OpenFile): void {
    const now = this.#context.machine.now()
    if (now - this.#checkedAt < REPLACED_CHECK_MS) return
    this.#checkedAt = now
    if (identify(this.#context.path) === file.identity) return
    this.close()
    this.#context.onReplaced()
  }
}

function addressed(notification: PendingNotification, sql: SqliteStatements): AddressedNotification {
  if (notification.subscriber !== undefined) return { ...notification, subscribers: [notification.subscriber] }
  const key = notification.event.type === 'revoked' ? REVOCATIONS : notification.key
  const rows = sql.subscribersOf.all(key) as { subscriber: string }[]
  return { ...notification, subscribers: rows.map(({ subscriber }) => subscriber) }
}

/**
 * Deletes expired rows of keys that are not used any more, a range of keys at a time, so that no call pays for a large table.
 * The end of the range is kept in the file: processes that live for three calls continue there.
 * Returns the subscribers that expired.
 */
function sweep(sql: SqliteStatements, leases: LeaseTable, rows: number): string[] {
  const { sweptTo } = sql.state.get() as { sweptTo: string }
  const end = (sql.sweepEnd.get(sweptTo, rows) as { key: string | null }).key
  const upTo = end ?? LAST_KEY
  for (const { key, announce } of sql.sweepHolders.all(sweptTo, upTo, leases.now) as {
    key: string
    announce: number
  }[]) {
    if (announce) leases.notifications.push({ key, event: { type: 'changed' }, subscriber: undefined })
  }
  sql.sweepWaiters.run(sweptTo, upTo, leases.now)
  sql.sweepMeters.run(sweptTo, upTo, leases.now)
  if ((end ?? '') !== sweptTo) sql.setSweptTo.run(end ?? '')
  const dead = (sql.expireSubscribers.all(leases.now) as { id: string }[]).map(({ id }) => id)
  for (const id of dead) sql.unsubscribeAll.run(id)
  return dead
}
