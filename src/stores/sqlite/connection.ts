/**
 * One open database file and the transactions on it: each short, synchronous, and all or nothing.
 *
 * @module
 */
import { StoreUnavailableError } from '../../errors.js'
import type { Claim, Grant, Lease } from '../../store.js'
import { Books, type BooksFacts, type Letter, comparable } from './books.js'
import type { Driver } from './driver.js'
import { type OpenFile, identify, openFile } from './file.js'
import { type Machine, mayBeSameBoot } from './machine.js'
import { type Statements, prepareStatements } from './statements.js'
import { sweep } from './sweep.js'
import { isBusy } from './trouble.js'

/** How often to look whether the file under our name is still the one we opened. */
const LOOK_EVERY_MS = 200
/** A sweep is due after so many rows may have been added, or so many transactions were made. */
const SWEEP_EVERY = 64
/** A sweep looks at so many rows for each that may have been added: with 1 or less, rows of unused keys would pile up. */
const SWEPT_PER_ROW = 4

/** What a transaction was asked to do, and whom to tell about it now that it is done. */
export interface Done<T> {
  result: T
  letters: readonly AddressedLetter[]
  /** Bells of processes that have been silent for so long that they must be dead. */
  deadBells: readonly string[]
}

export interface AddressedLetter extends Letter {
  bells: readonly string[]
}

export interface ConnectionFacts {
  path: string
  driver: Driver
  machine: Machine
  wallMicros: () => number
  bellFor: (key: string) => string | null
  /** Another file has taken the place of the one we had open. */
  onReplaced: () => void
}

/** What a process watches that wants to be told of every revocation. No key is empty: each begins with its kind. */
export const REVOCATIONS = ''

const NOBODY: readonly never[] = []

export class Connection {
  readonly #facts: ConnectionFacts
  readonly #booksFacts: BooksFacts
  #open: { file: OpenFile; sql: Statements } | undefined
  /** Set once another machine was seen to use the file. */
  #shared: StoreUnavailableError | undefined
  #lastToken = 0
  #lookedAt = 0
  /** Rows that may have been added since the last sweep. The first transaction sweeps: a process may live for no more. */
  #unswept = SWEEP_EVERY

  constructor(facts: ConnectionFacts) {
    this.#facts = facts
    const { wallMicros, bellFor } = facts
    this.#booksFacts = { wallMicros, bellFor, checkBoot: (boot) => this.#checkBoot(boot) }
  }

  /**
   * Throws what SQLite throws; after anything but "busy" the file is opened anew next time. `rows`: how many this may add.
   */
  write<T>(work: (books: Books, sql: Statements) => T, rows = 1): Done<T> {
    return this.#transaction('begin', (sql, now) => {
      const books = new Books(sql, now, this.#booksFacts)
      const result = work(books, sql)
      if (books.lastToken === undefined) this.#checkBoot((sql.state.get() as { boot: string }).boot)
      else this.#lastToken = books.lastToken
      this.#unswept += rows
      const deadBells = this.#unswept > SWEEP_EVERY ? sweep(sql, books, this.#unswept * SWEPT_PER_ROW) : NOBODY
      if (this.#unswept > SWEEP_EVERY) this.#unswept = 0
      const letters = books.letters.length === 0 ? NOBODY : books.letters.map((letter) => addressed(letter, sql))
      return { result, letters, deadBells }
    })
  }

  /**
   * Grants what nobody holds and nobody waits for, in one statement: half the price of a transaction with several.
   * Undefined: it has to be looked at more closely.
   */
  takeVacant({ key, owner, weight, capacity, ttlMs, value }: Claim): Grant | undefined {
    const { machine, wallMicros } = this.#facts
    const token = Math.max(this.#lastToken + 1, wallMicros())
    const taken = this.#alone((sql) => {
      const now = machine.now()
      const end = now + ttlMs
      const { boot } = machine
      return sql.takeVacant.run(key, owner, weight, capacity, end, ttlMs, now, token, value ?? null, boot)
    })
    if (!taken) return undefined
    this.#lastToken = token
    return { granted: true, owner, token: BigInt(token), ttlMs }
  }

  /** Ends a lease that nobody waits for, likewise. */
  letGo({ key, owner, token }: Lease): boolean {
    const { boot, now } = this.#facts.machine
    return this.#alone((sql) => sql.letGo.run(key, owner, now(), boot, comparable(token)))
  }

  /** A look at one moment of the books. Never waits for those who write. */
  read<T>(work: (sql: Statements, now: number) => T): T {
    return this.#transaction('beginReading', (sql, now) => {
      this.#checkBoot((sql.state.get() as { boot: string }).boot)
      return work(sql, now)
    })
  }

  /** Epoch milliseconds by the machine. Touches no table, so that nobody is waited for. */
  wallTime(): number {
    return (this.#ready().sql.wallTime.get() as { ms: number }).ms
  }

  /** Where the bells lie. */
  bellsDirectory(): string {
    return `${(this.#open ?? this.#ready()).file.path}-bells`
  }

  close(): void {
    this.#open?.file.db.close()
    this.#open = undefined
  }

  #transaction<T>(begin: 'begin' | 'beginReading', work: (sql: Statements, now: number) => T): T {
    const { sql } = this.#ready()
    try {
      sql[begin].run()
      // Only now: waiting for our turn took time.
      const result = work(sql, this.#facts.machine.now())
      sql.commit.run()
      return result
    } catch (error) {
      this.#abandon(sql, error)
      throw error
    }
  }

  /** One statement by itself. Now and then it is left to a transaction, which also sweeps. */
  #alone(work: (sql: Statements) => { changes: number | bigint }): boolean {
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

  #abandon(sql: Statements, error: unknown): void {
    try {
      sql.rollback.run()
    } catch {
      // It never began, or SQLite has rolled it back already.
    }
    if (!isBusy(error)) this.close()
  }

  #checkBoot(boot: string): void {
    const { path, machine } = this.#facts
    if (mayBeSameBoot(boot, machine.boot)) return
    // A boot cannot end while we run: another kernel opened the file, and has taken all our leases for dead. Opening it
    // anew would do the same to theirs, so this is the end of it.
    this.#shared = new StoreUnavailableError(
      `${path} is in use by another machine or virtual machine, and its times mean nothing here: every machine needs a file of its own`,
    )
    throw this.#shared
  }

  #ready(): { file: OpenFile; sql: Statements } {
    if (this.#open) this.#lookWhetherReplaced(this.#open.file)
    if (this.#open) return this.#open
    if (this.#shared) throw this.#shared
    const { path, driver, machine } = this.#facts
    const file = openFile(path, driver, machine)
    this.#open = { file, sql: prepareStatements(file.db) }
    this.#lookedAt = machine.now()
    return this.#open
  }

  /** A file that was deleted or moved goes on working for those who have it open: they would exclude only each other. */
  #lookWhetherReplaced(file: OpenFile): void {
    const now = this.#facts.machine.now()
    if (now - this.#lookedAt < LOOK_EVERY_MS) return
    this.#lookedAt = now
    if (identify(this.#facts.path) === file.identity) return
    this.close()
    this.#facts.onReplaced()
  }
}

function addressed(letter: Letter, sql: Statements): AddressedLetter {
  if (letter.bell !== undefined) return { ...letter, bells: [letter.bell] }
  const watched = letter.event.type === 'revoked' ? REVOCATIONS : letter.key
  return { ...letter, bells: (sql.watchersOf.all(watched) as { bell: string }[]).map(({ bell }) => bell) }
}
