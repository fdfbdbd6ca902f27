import { InvalidOptionError, StoreUnavailableError } from '../../errors.js'
import { type Duration, milliseconds } from '../../kit/duration.js'
import type {
  Answer,
  Claim,
  Failure,
  HolderView,
  Lease,
  Released,
  Renewal,
  Renewed,
  Store,
  StoreEvent,
  TakeAnswer,
  TakeRequest,
  WaiterView,
  Watch,
} from '../../store.js'
import { Bell } from './bell.js'
import { Coalescer } from './coalescer.js'
import type { Database } from './database.js'
import { type Dedicated, NotConnectedError } from './dedicated.js'
import { explain, isBroken } from './explain.js'
import { sqlBoolean, sqlInteger, sqlJson, sqlNumber, sqlText } from './literals.js'
import { checkSchema, migrateDatabase, type Names, namesOf, type Sources, sources } from './migrate.js'

export interface PostgresOptions {
  /** The schema that holds the tables and functions. Stores with different ones do not know each other. */
  schema?: string
  /** How long one call may take before its outcome counts as unknown. Replaces the role's `statement_timeout` for these calls. */
  timeout?: Duration
  /** Create or update the schema at the first call. Without it `leasehold migrate`, or `migrate(pool)`, has to have run. */
  migrate?: boolean
  /** Keep one connection that listens, to be woken when a lock is handed over. Without it whoever waits asks again and again. */
  listen?: boolean
}

/**
 * For how long a call on our own connection waits for a lock of somebody who is deciding. Longer, and heartbeats behind it
 * would be late; calls usually take a few milliseconds.
 */
const PATIENCE_APART_MS = 250

/** What the server's B-tree takes of a key, with room to spare. */
const MOST_BYTES_OF_A_KEY = 2_000

/** A lease table in PostgreSQL. `files`: other SQL than ours only in experiments. */
export function createPostgresStore(
  database: Database,
  options: PostgresOptions = {},
  files: Sources = sources,
  close: () => Promise<void> = async () => {},
): Store {
  return new Postgres(database, options, files, close)
}

class Postgres implements Store {
  readonly name = 'postgres'
  readonly expiry = 'timed'
  readonly features = { line: true, counting: true, atomic: true, values: true }
  readonly timeoutMs: number
  /** Each key of a batch takes a slot of the server's lock table, which has 64 per connection. */
  readonly maxBatch = 100
  readonly watch?: (key: string, listener: (event: StoreEvent) => void) => Watch

  readonly #database: Database
  readonly #names: Names
  readonly #files: Sources
  /** What goes before each call. */
  readonly #preamble: string
  readonly #preambleApart: string
  readonly #dedicated: Dedicated
  readonly #renewals: Coalescer<Renewal, Renewed>
  readonly #releases: Coalescer<Lease, Released>
  readonly #functions: string
  readonly #migrate: boolean
  readonly #close: () => Promise<void>
  readonly #bell: Bell | undefined
  readonly #doubters = new Set<() => void>()
  readonly #unhook: () => void
  #checked: Promise<void> | true | undefined
  #closing: Promise<void> | undefined
  /** A connection broke; the next answer shows that there is a new one. */
  #shaken = false

  constructor(database: Database, options: PostgresOptions, files: Sources, close: () => Promise<void>) {
    const { schema = 'public', timeout = '2s', migrate = false, listen = true } = options
    this.timeoutMs = milliseconds('timeout', timeout, { min: 50, max: 3_600_000 })
    this.#database = database
    this.#names = namesOf(schema)
    this.#files = files
    const call = files.call.replace(/^--.*\n/gm, '')
    const timeoutMs = Math.ceil(this.timeoutMs)
    const preamble = (lockMs: number): string =>
      this.#names.fill(call, { timeoutMs, lockTimeoutMs: Math.ceil(lockMs), question: '' })
    this.#preamble = preamble(this.timeoutMs / 2)
    this.#preambleApart = preamble(Math.min(this.timeoutMs / 2, PATIENCE_APART_MS))
    this.#dedicated = database.dedicated(this.timeoutMs)
    this.#renewals = new Coalescer((renewals) => this.#renew(renewals), this.maxBatch)
    this.#releases = new Coalescer((leases) => this.#release(leases), this.maxBatch)
    this.#functions = this.#names.fill('{schema}.leasehold_')
    this.#migrate = migrate
    this.#close = close
    this.#unhook = database.onBroken(() => {
      this.#shaken = true
    })
    if (listen) {
      const bell = new Bell(database, this.#names.channel, this.timeoutMs, () => this.#doubt())
      this.#bell = bell
      this.watch = (key, listener) => bell.watch(key, listener)
    }
  }

  partition(key: string): number {
    if (key.includes('\0') || !key.isWellFormed() || Buffer.byteLength(key) > MOST_BYTES_OF_A_KEY) {
      throw new InvalidOptionError(
        'name',
        key,
        `well-formed text without NUL, at most ${MOST_BYTES_OF_A_KEY} bytes of UTF-8`,
      )
    }
    return 0
  }

  async acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    if (claims.length === 1) {
      const claim = claims[0] as Claim
      const { key, owner, weight, capacity, ttlMs, value, placeMs, announce = false, steal = false } = claim
      const one = [
        sqlText(key),
        sqlText(owner),
        sqlInteger(weight),
        sqlInteger(capacity),
        sqlNumber(ttlMs),
        sqlText(value),
        sqlNumber(placeMs),
        sqlBoolean(announce),
        sqlBoolean(steal),
        sqlText(this.#ear),
      ]
      return [this.#answerOf(await this.#ask<AcquireAnswer>('acquire_one', ...one), claim)]
    }
    const asked = claims.map(({ key, owner, weight, capacity, ttlMs, value, placeMs, announce, steal }) => ({
      key,
      owner,
      weight,
      capacity,
      ttl: ttlMs,
      value,
      place: placeMs,
      announce,
      steal,
    }))
    const answers = options?.atomic
      ? await this.#ask<AcquireAnswer[]>('acquire_all', sqlJson(asked))
      : await this.#ask<AcquireAnswer[]>('acquire', sqlJson(asked), sqlText(this.#ear))
    return answers.map((answer, i) => this.#answerOf(answer, claims[i] as Claim))
  }

  renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    return this.#renewals.ask(renewals)
  }

  async #renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    const answers = await this.#extend(renewals)
    const renewed: Renewed[] = []
    for (const [i, renewal] of renewals.entries()) {
      // Somebody was writing to its row. A batch does not wait for rows; a renewal that is alone may.
      renewed.push(
        answers[i] === 2
          ? await this.#extend([renewal]).then(
              ([answer]) => renewedOf(answer, renewal),
              (error: unknown) => ({ outcome: 'unknown', error }),
            )
          : renewedOf(answers[i], renewal),
      )
    }
    return renewed
  }

  #extend(renewals: readonly Renewal[]): Promise<number[]> {
    const items = renewals.map(({ key, owner, ttlMs, value }) => ({ key, owner, ttl: ttlMs, value }))
    return this.#askApart(true, 'renew', sqlJson(items))
  }

  /**
   * One call at a time, whoever asks: of two releases of one lease under way at once (the holder's own, and one that takes
   * back what a late answer told of) the second could otherwise overtake the first, whose caller would then hear that it
   * had lost the lock.
   */
  release(leases: readonly Lease[]): Promise<Released[]> {
    return this.#releases.ask(leases)
  }

  async #release(leases: readonly Lease[]): Promise<Released[]> {
    const answers = await this.#end(leases, (name, args) => this.#askApart(false, name, args))
    const stuckOnes = leases.filter((_, i) => answers[i] === 2)
    if (stuckOnes.length > 0) {
      // Waiting for a key there would hold up heartbeats.
      const retried = await this.#end(stuckOnes, (name, args) => this.#ask(name, args)).catch(() => [])
      for (const [i, lease] of stuckOnes.entries()) answers[leases.indexOf(lease)] = retried[i] ?? 2
    }
    return answers.map((answer, i) => {
      if (answer === 2) return { outcome: 'unknown', error: stuck((leases[i] as Lease).key) }
      return { outcome: answer ? 'released' : 'gone' }
    })
  }

  async #end(leases: readonly Lease[], ask: <T>(name: string, args: string) => Promise<T>): Promise<number[]> {
    const [first] = leases
    if (leases.length === 1 && first)
      return [await ask<number>('release_one', `${sqlText(first.key)}, ${sqlText(first.owner)}`)]
    return ask('release', sqlJson(leases.map(({ key, owner }) => ({ key, owner }))))
  }

  onDoubt(listener: () => void): () => void {
    this.#doubters.add(listener)
    return () => this.#doubters.delete(listener)
  }

  async holders(prefix: string): Promise<HolderView[]> {
    // Byte order of UTF-8 is the order of code points, and this is the last of them.
    const views = await this.#ask<View[]>(
      'views',
      sqlText(prefix),
      sqlText(`${prefix}${'\u{10ffff}'.repeat(8)}`),
      sqlBoolean(false),
    )
    return views.map(holderOf)
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    const [holders, waiters] = await this.#ask<[View[], View[]]>('inspect', sqlText(key))
    return { holders: holders.map(holderOf), waiters: waiters.map(waiterOf) }
  }

  async revoke(key: string): Promise<HolderView[]> {
    return (await this.#ask<View[]>('revoke', sqlText(key))).map(holderOf)
  }

  async take(requests: readonly TakeRequest[]): Promise<(TakeAnswer | Failure)[]> {
    const answers = await this.#ask<[number, number, number | null, number][]>(
      'take',
      sqlJson(requests),
      sqlNumber(undefined),
    )
    return answers.map(([allowed, remaining, retryAfterMs, resetMs], i) => {
      if (allowed === 2) return { granted: 'unknown', error: stuck((requests[i] as TakeRequest).key) }
      return { allowed: allowed === 1, remaining, retryAfterMs: retryAfterMs ?? Number.POSITIVE_INFINITY, resetMs }
    })
  }

  async now(): Promise<number> {
    return this.#ask<number>('now')
  }

  close(): Promise<void> {
    this.#closing ??= (async () => {
      this.#unhook()
      await Promise.all([this.#bell?.close(), this.#dedicated.close()])
      await this.#close()
    })()
    return this.#closing
  }

  /** Where those who wait by this store are told that they were let in. */
  get #ear(): string | null {
    return this.#bell?.ear ?? null
  }

  #answerOf(answer: AcquireAnswer, { key, owner }: Claim): Answer {
    if (answer[0] === 1) {
      this.#dedicated.warm()
      return { granted: true, owner, token: BigInt(answer[1]), ttlMs: answer[2] }
    }
    if (answer[0] === 2) return { granted: 'unknown', error: stuck(key) }
    const [, ahead, holder, ttlMs, token, value] = answer
    if (typeof holder !== 'string') return { granted: false, ahead }
    return { granted: false, ahead, blocker: { owner: holder, ttlMs, token: BigInt(token), value: value ?? undefined } }
  }

  /** Calls leasehold_<name> on a connection of the user's pool. */
  #ask<T>(name: string, ...args: string[]): Promise<T> {
    return this.#run(name, args.join(', '), (call) => this.#database.run(this.#preamble + call, this.timeoutMs))
  }

  /**
   * Calls leasehold_<name> on the connection of our own: the user's may all be busy with work that the locks are for. Only
   * if it cannot be opened, for lack of connections perhaps, the user's pool has to do.
   */
  #askApart<T>(urgent: boolean, name: string, args: string): Promise<T> {
    return this.#run(name, args, (call) =>
      this.#dedicated.run(this.#preambleApart + call, this.timeoutMs, { urgent }).catch((error: unknown) => {
        if (!(error instanceof NotConnectedError)) throw error
        return this.#database.run(this.#preamble + call, this.timeoutMs)
      }),
    )
  }

  async #run<T>(name: string, args: string, run: (call: string) => Promise<string | undefined>): Promise<T> {
    try {
      if (this.#checked !== true) await this.#check()
      const answer = await run(`${this.#functions}${name}(${args})::pg_catalog.text`)
      if (this.#shaken) this.#doubt()
      return JSON.parse(answer as string) as T
    } catch (error) {
      if (isBroken(error)) this.#shaken = true
      throw explain(error, this.#names)
    }
  }

  /** Once, by whoever comes first; an outage meanwhile proves nothing, and the next call looks again. */
  async #check(): Promise<void> {
    this.#checked ??= (async () => {
      try {
        if (this.#migrate) await migrateDatabase(this.#database, { schema: this.#names.schema }, this.#files)
        await checkSchema(this.#database, this.#names)
        this.#checked = true
      } catch (error) {
        this.#checked = undefined
        throw error
      }
    })()
    await this.#checked
  }

  #doubt(): void {
    this.#shaken = false
    for (const listener of [...this.#doubters]) listener()
  }
}

type AcquireAnswer =
  | [granted: 1, token: string, ttlMs: number]
  | [refused: 0, ahead: number, owner: string | null, ttlMs: number, token: string, value: string | null]
  | [stuck: 2]

type View = [string, string, number, number, string, number, number, string | null, number]

function holderOf([key, owner, weight, capacity, token, ttlMs, heldMs, value, waiting]: View): HolderView {
  return { key, owner, weight, capacity, token: BigInt(token), ttlMs, heldMs, value: value ?? undefined, waiting }
}

function waiterOf([key, owner, weight, capacity, , , waitedMs, value]: View): WaiterView {
  return { key, owner, weight, capacity, waitedMs, value: value ?? undefined }
}

function renewedOf(answer: number | undefined, { ttlMs }: Renewal): Renewed {
  return answer ? { outcome: 'ours', ttlMs } : { outcome: 'gone' }
}

function stuck(key: string): StoreUnavailableError {
  return new StoreUnavailableError(
    `postgres is unavailable for "${key}": a transaction that decides about it stays open (acquire_lock() belongs in a transaction of its own)`,
  )
}
