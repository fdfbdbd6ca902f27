import type { Database } from './database.js'
import { type Dedicated, NotConnectedError } from './dedicated.js'
import { explain, isBroken } from './explain.js'
import { checkSchema, migrateDatabase, type Names, type Sources } from './migrate.js'

/**
 * For how long a call on our own connection waits for a lock of somebody who is deciding. Longer, and heartbeats behind it
 * would be late; calls usually take a few milliseconds.
 */
const PATIENCE_APART_MS = 250

export interface CallOptions {
  timeoutMs: number
  /** Create or update the schema before the first call. */
  migrate: boolean
  /** A connection broke, and there is an answer again. */
  onBack: () => void
}

/** Calls the functions of the schema, on the user's connections or on our own. */
export class Calls {
  readonly #database: Database
  readonly #dedicated: Dedicated
  readonly #names: Names
  readonly #files: Sources
  readonly #options: CallOptions
  /** What goes before each call. */
  readonly #preamble: string
  readonly #preambleApart: string
  readonly #functions: string
  readonly #flush: string
  /** Undefined while nobody uses the store: the pool is not ours, and keeps no listener then. */
  #unhook: (() => void) | undefined
  #checked: Promise<void> | true | undefined
  /** A connection broke; the next answer shows that there is a new one. */
  #broke = false
  /** The last error of a connection, until there is an answer again. */
  outage: unknown

  constructor(database: Database, names: Names, files: Sources, options: CallOptions) {
    const { timeoutMs } = options
    this.#database = database
    this.#names = names
    this.#files = files
    this.#options = options
    const call = files.call.replace(/^--.*\n/gm, '')
    const preamble = (lockMs: number): string =>
      names.fill(call, { timeoutMs: Math.ceil(timeoutMs), lockTimeoutMs: Math.ceil(lockMs), question: '' })
    this.#preamble = preamble(timeoutMs / 2)
    this.#preambleApart = preamble(Math.min(timeoutMs / 2, PATIENCE_APART_MS))
    this.#functions = names.fill('{schema}.leasehold_')
    this.#flush = `SELECT ${this.#functions}flush()`
    this.#dedicated = database.dedicated(timeoutMs)
    this.hook()
  }

  hook(): void {
    this.#unhook ??= this.#database.onBroken(() => {
      this.#broke = true
    })
  }

  /** Takes the listener off the pool, until `hook()`. */
  unhook(): void {
    this.#unhook?.()
    this.#unhook = undefined
  }

  /** Calls leasehold_<name> on a connection of the user's pool. */
  ask<T>(name: string, ...args: string[]): Promise<T> {
    return this.#run(() => this.#inPool(name, args.join(', ')))
  }

  /**
   * Calls leasehold_<name> on the connection of our own: the user's may all be busy with work that the locks are for. Only
   * if it cannot be opened, for lack of connections perhaps, the user's pool has to do.
   */
  askApart<T>(name: string, args: string, urgent: boolean): Promise<T> {
    return this.#run(() => this.#apart(name, args, { urgent }).catch(orElse(() => this.#inPool(name, args))))
  }

  /**
   * The same for releases. What they have to tell is sent by a second message behind the first on that connection, so nobody
   * waits for it; in the pool the second might take another connection, and the release tells by itself.
   */
  release<T>(name: string, args: (defer: boolean) => string): Promise<T> {
    return this.#run(() =>
      this.#apart(name, args(true), { afterwards: this.#flush }).catch(orElse(() => this.#inPool(name, args(false)))),
    )
  }

  /** Opens the connection of our own. */
  warm(): void {
    this.#dedicated.warm()
  }

  async close(): Promise<void> {
    this.unhook()
    await this.#dedicated.close()
  }

  #inPool(name: string, args: string): Promise<string | undefined> {
    return this.#database.run(this.#preamble + this.#call(name, args), this.#options.timeoutMs)
  }

  #apart(name: string, args: string, options: { urgent?: boolean; afterwards?: string }): Promise<string | undefined> {
    return this.#dedicated.run(this.#preambleApart + this.#call(name, args), this.#options.timeoutMs, options)
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
      const explained = explain(error, this.#names)
      if (isBroken(error)) {
        this.#broke = true
        this.outage = explained
      }
      throw explained
    }
  }

  /** Once, by whoever comes first; an outage meanwhile proves nothing, and the next call looks again. */
  async #check(): Promise<void> {
    this.#checked ??= (async () => {
      try {
        const { schema } = this.#names
        if (this.#options.migrate) await migrateDatabase(this.#database, { schema }, this.#files)
        await checkSchema(this.#database, this.#names)
        this.#checked = true
      } catch (error) {
        this.#checked = undefined
        throw error
      }
    })()
    await this.#checked
  }
}

/** Another way, if nothing was sent on the first. */
function orElse<T>(other: () => Promise<T>): (error: unknown) => Promise<T> {
  return (error) => (error instanceof NotConnectedError ? other() : Promise.reject(error))
}
