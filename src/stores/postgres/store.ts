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
import type { Database } from './database.js'
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
  /** What goes before each question. */
  readonly #preamble: string
  readonly #functions: string
  readonly #migrate: boolean
  readonly #close: () => Promise<void>
  readonly #bell: Bell | undefined
  readonly #doubters = new Set<() => void>()
  readonly #releasing = new Map<string, Promise<Released[]>>()
  readonly #unhook: () => void
  #checked: Promise<void> | true | undefined
  /** A connection broke; the next answer shows that there is a new one. */
  #shaken = false

  constructor(database: Database, options: PostgresOptions, files: Sources, close: () => Promise<void>) {
    const { schema = 'public', timeout = '2s', migrate = false, listen = true } = options
    this.timeoutMs = milliseconds('timeout', timeout, { min: 50, max: 3_600_000 })
    this.#database = database
    this.#names = namesOf(schema)
    this.#files = files
    const limits = { timeoutMs: Math.ceil(this.timeoutMs), lockTimeoutMs: Math.ceil(this.timeoutMs / 2) }
    this.#preamble = this.#names.fill(files.call.replace(/^--.*\n/gm, ''), { ...limits, question: '' })
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

  async renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
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
    return this.#ask(
      'renew',
      sqlJson(renewals.map(({ key, owner, ttlMs, value }) => ({ key, owner, ttl: ttlMs, value }))),
    )
  }

  /**
   * Two releases of one lease may be under way at once: the holder's own, and one that takes back what a late answer
   * told of. On two connections the second could overtake the first, whose caller would then hear that it had lost the
   * lock. So they go one after the other.
   */
  async release(leases: readonly Lease[]): Promise<Released[]> {
    const ids = leases.map(({ key, owner }) => `${owner} ${key}`)
    const before = ids.map((id) => this.#releasing.get(id)).filter((call) => call !== undefined)
    const call = before.length > 0 ? Promise.allSettled(before).then(() => this.#end(leases)) : this.#end(leases)
    for (const id of ids) this.#releasing.set(id, call)
    try {
      return await call
    } finally {
      for (const id of ids) if (this.#releasing.get(id) === call) this.#releasing.delete(id)
    }
  }

  async #end(leases: readonly Lease[]): Promise<Released[]> {
    const [first] = leases
    const answers =
      leases.length === 1 && first
        ? [await this.#ask<number>('release_one', sqlText(first.key), sqlText(first.owner))]
        : await this.#ask<number[]>('release', sqlJson(leases.map(({ key, owner }) => ({ key, owner }))))
    return answers.map((answer, i) => {
      if (answer === 2) return { outcome: 'unknown', error: stuck((leases[i] as Lease).key) }
      return { outcome: answer ? 'released' : 'gone' }
    })
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

  async close(): Promise<void> {
    this.#unhook()
    await this.#bell?.close()
    await this.#close()
  }

  /** Where those who wait by this store are told that they were let in. */
  get #ear(): string | null {
    return this.#bell?.ear ?? null
  }

  #answerOf(answer: AcquireAnswer, { key, owner }: Claim): Answer {
    if (answer[0] === 1) return { granted: true, owner, token: BigInt(answer[1]), ttlMs: answer[2] }
    if (answer[0] === 2) return { granted: 'unknown', error: stuck(key) }
    const [, ahead, holder, ttlMs, token, value] = answer
    if (typeof holder !== 'string') return { granted: false, ahead }
    return { granted: false, ahead, blocker: { owner: holder, ttlMs, token: BigInt(token), value: value ?? undefined } }
  }

  /** Calls leasehold_<name>. */
  async #ask<T>(name: string, ...args: string[]): Promise<T> {
    return JSON.parse(await this.#run(`${this.#functions}${name}(${args.join(', ')})::pg_catalog.text`)) as T
  }

  async #run(question: string): Promise<string> {
    try {
      if (this.#checked !== true) await this.#check()
      const answer = await this.#database.run(this.#preamble + question, this.timeoutMs)
      if (this.#shaken) this.#doubt()
      return answer as string
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
