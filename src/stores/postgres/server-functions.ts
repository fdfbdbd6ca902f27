import type { PostgresDriver } from '../../clients/postgres/driver.js'
import { type OwnConnection, NotConnectedError } from '../../clients/postgres/own-connection.js'
import { explainError, isBroken } from './errors.js'
import { checkSchema, migrateWith } from './migrate.js'
import type { SchemaNames, SqlFiles } from './schema.js'

/**
 * Bounds how long a call on leasehold's own connection waits for the lock of a key that another transaction is deciding about, or
 * for that of NOTIFY, in milliseconds. Longer, and heartbeats behind it would be late; calls usually take a few milliseconds.
 */
const OWN_LOCK_TIMEOUT_MS = 250

export interface ServerFunctionOptions {
  timeoutMs: number
  /** Create or update the schema before the first call. */
  migrate: boolean
  /** Called when a connection broke and the server answers again: notifications may have been missed. */
  onBack: () => void
}

/** Calls the functions of the schema, on the user's connections or on leasehold's own. */
export class ServerFunctions {
  readonly #driver: PostgresDriver
  readonly #own: OwnConnection
  /** False while the store is idle: leasehold's own connection is closed then. */
  #usesOwn = true
  /** Settles when leasehold's own connection has ended. */
  #rested: Promise<void> = Promise.resolve()
  #closed = false
  readonly #names: SchemaNames
  readonly #files: SqlFiles
  readonly #options: ServerFunctionOptions
  /** Goes before each call on a connection of the user's pool. */
  readonly #preamble: string
  /** Goes before each call on leasehold's own connection. */
  readonly #ownPreamble: string
  readonly #functions: string
  readonly #flush: string
  /** Undefined while the store is idle: the pool is the user's, and keeps no listener of ours then. */
  #unwatch: (() => void) | undefined
  #checked: Promise<void> | true | undefined
  /** A connection broke; the next answer shows that there is a new one. */
  #broke = false
  /** The last error of a connection, until there is an answer again. */
  outage: unknown

  constructor(driver: PostgresDriver, names: SchemaNames, files: SqlFiles, options: ServerFunctionOptions) {
    const { timeoutMs } = options
    this.#driver = driver
    this.#names = names
    this.#files = files
    this.#options = options
    const preamble = (lockMs: number): string =>
      names.fill(files.call, { timeoutMs: Math.ceil(timeoutMs), lockTimeoutMs: Math.ceil(lockMs) })
    this.#preamble = preamble(timeoutMs / 2)
    const ownLockMs = Math.min(timeoutMs / 2, OWN_LOCK_TIMEOUT_MS)
    this.#ownPreamble = preamble(ownLockMs)
    this.#functions = names.fill('{schema}.leasehold_')
    // NOTIFY waits for a lock of the whole server, which another session may keep for as long as its commit waits. The condition
    // spares the release that nobody waits for the call.
    this.#flush =
      `SELECT pg_catalog.set_config('lock_timeout', '${Math.ceil(ownLockMs)}', true), ${this.#functions}flush() ` +
      `WHERE pg_catalog.current_setting('leasehold.deferred', true) OPERATOR(pg_catalog.<>) ''`
    this.#own = driver.ownConnection(timeoutMs)
    this.attend()
  }

  /** The store is used: a listener is on the pool, and leasehold's own connection is opened when it is needed. */
  attend(): void {
    this.#unwatch ??= this.#driver.onConnectionLost(() => {
      this.#broke = true
    })
    if (this.#usesOwn || this.#closed) return
    this.#usesOwn = true
    this.#own.use()
  }

  /** Takes the listener off the pool and ends leasehold's own connection, until `attend()`. */
  rest(): void {
    this.#unwatch?.()
    this.#unwatch = undefined
    if (!this.#usesOwn) return
    this.#usesOwn = false
    this.#rested = this.#own.close()
  }

  /** Calls leasehold_<name> on a connection of the user's pool. */
  call<T>(name: string, ...args: string[]): Promise<T> {
    return this.#run(() => this.#inPool(name, args.join(', ')))
  }

  /**
   * Calls leasehold_<name> on leasehold's own connection: the user's may all be busy with the work that the locks protect. The
   * user's pool serves only if that connection cannot be opened, for lack of connections perhaps.
   */
  callApart<T>(name: string, args: string, urgent: boolean): Promise<T> {
    return this.#run(() => this.#apart(name, args, { urgent }).catch(orElse(() => this.#inPool(name, args))))
  }

  /**
   * The same for releases. Their notifications are sent by a second transaction of the same message, which does not wait for the
   * disk. In the pool the release sends them itself: the pool's driver would take an error of the second for one of the first.
   */
  release<T>(name: string, args: (defer: boolean) => string): Promise<T> {
    return this.#run(() =>
      this.#apart(name, args(true), { afterwards: this.#flush }).catch(orElse(() => this.#inPool(name, args(false)))),
    )
  }

  /** Opens leasehold's own connection, so that the first release need not wait for it. */
  warm(): void {
    if (this.#usesOwn) this.#own.warm()
  }

  async close(): Promise<void> {
    this.#closed = true
    this.rest()
    await this.#rested
  }

  #inPool(name: string, args: string): Promise<string | undefined> {
    return this.#driver.run(this.#preamble + this.#call(name, args), this.#options.timeoutMs)
  }

  /** What is asked of an idle store comes late, and opens no connection that nobody would end. */
  #apart(name: string, args: string, options: { urgent?: boolean; afterwards?: string }): Promise<string | undefined> {
    if (!this.#usesOwn) return Promise.reject(new NotConnectedError('the store is idle'))
    return this.#own.run(this.#ownPreamble + this.#call(name, args), this.#options.timeoutMs, options)
  }

  #call(name: string, args: string): string {
    return `pg_catalog.to_json(${this.#functions}${name}(${args}))::pg_catalog.text`
  }

  async #run<T>(call: () => Promise<string | undefined>): Promise<T> {
    try {
      if (this.#checked !== true) await this.#check()
      const answer = await call()
      this.outage = undefined
      if (this.#broke) {
        this.#broke = false
        this.#options.onBack()
      }
      return JSON.parse(answer ?? 'null') as T
    } catch (error) {
      const explained = explainError(error, this.#names.schema)
      if (isBroken(error)) {
        this.#broke = true
        this.outage = explained
      }
      throw explained
    }
  }

  /** The first call checks the schema for all. An outage meanwhile proves nothing, so the next call checks again. */
  async #check(): Promise<void> {
    this.#checked ??= (async () => {
      try {
        const { schema } = this.#names
        if (this.#options.migrate) await migrateWith(this.#driver, { schema }, this.#files)
        await checkSchema(this.#driver, this.#names)
        this.#checked = true
      } catch (error) {
        this.#checked = undefined
        throw error
      }
    })()
    await this.#checked
  }
}

/** Runs the second call if nothing of the first was sent; otherwise its outcome is unknown, and a repetition could act twice. */
function orElse<T>(other: () => Promise<T>): (error: unknown) => Promise<T> {
  return (error) => (error instanceof NotConnectedError ? other() : Promise.reject(error))
}
