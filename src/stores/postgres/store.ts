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
import { knownOptions } from '../../util/options.js'
import { Calls } from './calls.js'
import { Coalescer } from './coalescer.js'
import {
  type AcquireAnswer,
  answerOf,
  claimJson,
  type HolderRow,
  holderOf,
  type RenewAnswer,
  refusal,
  renewedOf,
  singly,
  stuck,
  type TakeRow,
  takenOf,
  unknownAnswer,
  unknownOutcome,
  type WaiterRow,
  waiterOf,
} from './codec.js'
import type { Database } from './database.js'
import { sqlBigint, sqlBoolean, sqlInteger, sqlJson, sqlNumber, sqlText } from './literals.js'
import { namesOf, type Sources, sources } from './migrate.js'
import { Wakeups } from './wakeups.js'

export interface PostgresOptions {
  /** The schema that holds the tables and functions. Stores with different ones do not know each other. */
  schema?: string | undefined
  /** How long one call may take before its outcome counts as unknown. Replaces the role's `statement_timeout` for these calls. */
  timeout?: Duration | undefined
  /** Create or update the schema at the first call. Without it `leasehold migrate`, or `migrate(pool)`, has to have run. */
  migrate?: boolean | undefined
  /** Keep one connection that listens, to be woken when a lock is handed over. Without it whoever waits asks again and again. */
  listen?: boolean | undefined
}

const OPTIONS = ['schema', 'timeout', 'migrate', 'listen']

/**
 * So many calls with claims are out at once before further claims travel together. A lone caller is not held up, and many
 * instances on one store object do not take all of the user's connections.
 */
const CLAIM_LANES = 2

/** A call with claims that takes longer holds up no others. */
const SLOW_CLAIM_MS = 50

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
  readonly watchRevoked?: (listener: (lease: Lease) => void) => Watch

  readonly #calls: Calls
  readonly #wakeups: Wakeups | undefined
  readonly #claims: Coalescer<Claim, Answer>
  readonly #renewals: Coalescer<Renewal, Renewed>
  readonly #releases: Coalescer<Lease, Released>
  readonly #possibleLossListeners = new Set<() => void>()
  readonly #close: () => Promise<void>
  #closing: Promise<void> | undefined

  constructor(database: Database, options: PostgresOptions, files: Sources, close: () => Promise<void>) {
    const { schema = 'public', timeout = '2s', migrate = false, listen = true } = knownOptions(options, OPTIONS)
    this.timeoutMs = milliseconds('timeout', timeout, { min: 50, max: 3_600_000 })
    const names = namesOf(schema)
    this.#calls = new Calls(database, names, files, {
      timeoutMs: this.timeoutMs,
      migrate,
      onBack: () => this.#onPossibleLoss(),
    })
    this.#claims = new Coalescer((claims) => this.#acquire(claims), this.maxBatch, CLAIM_LANES, SLOW_CLAIM_MS)
    this.#renewals = new Coalescer((renewals) => this.#renew(renewals), this.maxBatch)
    this.#releases = new Coalescer((leases) => this.#release(leases), this.maxBatch)
    this.#close = close
    if (listen) {
      const wakeups = new Wakeups(database, names.channel, this.timeoutMs, {
        channelOf: (subscriber) => this.#calls.ask('channel', sqlText(subscriber)),
        hello: (subscriber, n) => this.#calls.askApart('hello', `${sqlText(subscriber)}, ${sqlInteger(n)}`, true),
        onBack: () => this.#onPossibleLoss(),
      })
      this.#wakeups = wakeups
      this.watch = (key, listener) => wakeups.watch(key, listener)
      this.watchRevoked = (listener) => wakeups.watchRevoked(listener)
    }
  }

  partition(key: string): number {
    const error = refusal({ key })
    if (error) throw error
    return 0
  }

  async acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    const answers = options?.atomic
      ? await this.#acquireAll(claims)
      : await singly<Claim, Answer>(claims, unknownAnswer, (carried) => this.#claims.ask(carried))
    // The first release need not wait for its connection.
    if (answers.some(({ granted }) => granted === true)) this.#calls.warm()
    return answers
  }

  async #acquire(claims: readonly Claim[]): Promise<Answer[]> {
    const [claim] = claims
    if (claims.length !== 1 || !claim) {
      const calls = sqlJson(claims.map(claimJson))
      const answers = await this.#calls.ask<AcquireAnswer[]>('acquire', calls, sqlText(this.#subscriber))
      return answers.map((answer, i) => answerOf(answer, claims[i] as Claim))
    }
    const { key, owner, weight, capacity, ttlMs, value, placeMs, announce = false, steal = false } = claim
    const answer = await this.#calls.ask<AcquireAnswer>(
      'acquire_one',
      sqlText(key),
      sqlText(owner),
      sqlInteger(weight),
      sqlInteger(capacity),
      sqlNumber(ttlMs),
      sqlText(value),
      sqlNumber(placeMs),
      sqlBoolean(announce),
      sqlBoolean(steal),
      sqlText(this.#subscriber),
    )
    return [answerOf(answer, claim)]
  }

  async #acquireAll(claims: readonly Claim[]): Promise<Answer[]> {
    const error = claims.map(refusal).find((found) => found !== undefined)
    if (error) return claims.map(() => unknownAnswer(error))
    const calls = claims.map(claimJson)
    const answers = await this.#calls.ask<AcquireAnswer[]>('acquire_all', sqlJson(calls), sqlText(this.#subscriber))
    return answers.map((answer, i) => answerOf(answer, claims[i] as Claim))
  }

  renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    return singly<Renewal, Renewed>(renewals, unknownOutcome, (carried) => this.#renewals.ask(carried))
  }

  async #renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    const answers = await this.#extend(renewals)
    const renewed: Renewed[] = []
    for (const [i, renewal] of renewals.entries()) {
      // Somebody was writing to its row. A batch does not wait for rows; a renewal that is alone may.
      renewed.push(
        answers[i] === 2
          ? await this.#extend([renewal]).then(([answer]) => renewedOf(answer, renewal), unknownOutcome)
          : renewedOf(answers[i], renewal),
      )
    }
    return renewed
  }

  #extend(renewals: readonly Renewal[]): Promise<RenewAnswer[]> {
    const items = renewals.map(({ key, owner, token, ttlMs, value, queued }) => ({
      key,
      owner,
      token: token?.toString(),
      ttl: ttlMs,
      value,
      queued,
    }))
    return this.#calls.askApart('renew', sqlJson(items), true)
  }

  /**
   * One call at a time, whoever asks: of two releases of one lease under way at once (the holder's own, and one that takes
   * back what a late answer told of) the second could otherwise overtake the first, whose caller would then hear that it
   * had lost the lock.
   */
  release(leases: readonly Lease[]): Promise<Released[]> {
    return singly<Lease, Released>(leases, unknownOutcome, (carried) => this.#releases.ask(carried))
  }

  async #release(leases: readonly Lease[]): Promise<Released[]> {
    const answers = await this.#end(leases, (name, args) => this.#calls.release(name, args))
    const stuckOnes = leases.filter((_, i) => answers[i] === 2)
    if (stuckOnes.length > 0) {
      // Waiting for a key there would hold up heartbeats.
      const retried = await this.#end(stuckOnes, (name, args) => this.#calls.ask(name, args(false))).catch(() => [])
      for (const [i, lease] of stuckOnes.entries()) answers[leases.indexOf(lease)] = retried[i] ?? 2
    }
    return answers.map((answer, i) => {
      if (answer === 2) return unknownOutcome(stuck((leases[i] as Lease).key))
      return { outcome: answer ? 'released' : 'gone' }
    })
  }

  async #end(
    leases: readonly Lease[],
    ask: <T>(name: string, args: (defer: boolean) => string) => Promise<T>,
  ): Promise<number[]> {
    const [first] = leases
    if (leases.length === 1 && first) {
      const one = `${sqlText(first.key)}, ${sqlText(first.owner)}, ${sqlBigint(first.token)}`
      return [await ask<number>('release_one', (defer) => `${one}, ${sqlBoolean(defer)}`)]
    }
    const all = sqlJson(leases.map(({ key, owner, token }) => ({ key, owner, token: token?.toString() })))
    return ask('release', (defer) => `${all}, ${sqlBoolean(defer)}`)
  }

  onDoubt(listener: () => void): () => void {
    this.#calls.hook()
    this.#possibleLossListeners.add(listener)
    return () => this.#possibleLossListeners.delete(listener)
  }

  async holders(prefix: string): Promise<HolderView[]> {
    // Byte order of UTF-8 is the order of code points, and this is the last of them.
    const end = `${prefix}${'\u{10ffff}'.repeat(8)}`
    return (await this.#calls.ask<HolderRow[]>('views', sqlText(prefix), sqlText(end))).map(holderOf)
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    const [holders, waiters] = await this.#calls.ask<[HolderRow[], WaiterRow[]]>('inspect', sqlText(key))
    return { holders: holders.map(holderOf), waiters: waiters.map(waiterOf) }
  }

  async revoke(key: string): Promise<HolderView[]> {
    return (await this.#calls.ask<HolderRow[]>('revoke', sqlText(key))).map(holderOf)
  }

  take(requests: readonly TakeRequest[]): Promise<(TakeAnswer | Failure)[]> {
    return singly<TakeRequest, TakeAnswer | Failure>(requests, unknownAnswer, async (carried) => {
      const answers = await this.#calls.ask<TakeRow[]>('take', sqlJson(carried), sqlNumber(undefined))
      return answers.map((answer, i) => takenOf(answer, carried[i] as TakeRequest))
    })
  }

  now(): Promise<number> {
    return this.#calls.ask<number>('now')
  }

  idle(): void {
    this.#calls.unhook()
  }

  outage(): unknown {
    return this.#calls.outage
  }

  close(): Promise<void> {
    this.#closing ??= (async () => {
      await Promise.all([this.#wakeups?.close(), this.#calls.close()])
      await this.#close()
    })()
    return this.#closing
  }

  /** Whose leases and queue entries these are, for those who tell. */
  get #subscriber(): string | undefined {
    return this.#wakeups?.subscriber
  }

  #onPossibleLoss(): void {
    for (const listener of [...this.#possibleLossListeners]) listener()
  }
}
