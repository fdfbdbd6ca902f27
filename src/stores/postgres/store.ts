import { type Duration, milliseconds } from '../../util/duration.js'
import type {
  Answer,
  Claim,
  Failure,
  HolderView,
  LeaseId,
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
import { ServerFunctions } from './server-functions.js'
import { LaneBatcher } from './lane-batcher.js'
import {
  type AcquireAnswer,
  answerOf,
  claimsJson,
  type EntryAnswer,
  entryCalls,
  entryOf,
  leasesJson,
  type PostgresHolderRow,
  holderOf,
  refusal,
  renewalsJson,
  renewedOf,
  singly,
  sqlBigint,
  sqlBoolean,
  sqlInteger,
  sqlJson,
  sqlNumber,
  sqlText,
  stuck,
  type TakeRow,
  takenOf,
  unknownAnswer,
  unknownOutcome,
  type PostgresWaiterRow,
  waiterOf,
} from './codec.js'
import type { PostgresDriver } from '../../clients/postgres/driver.js'
import { schemaNames, type SqlFiles, sqlFiles } from './schema.js'
import { PostgresWakeups } from './wakeups.js'

export interface PostgresOptions {
  /** The schema that holds the tables and functions. Stores with different ones do not know each other. */
  schema?: string | undefined
  /** How long one call may take before its outcome counts as unknown. Replaces the role's `statement_timeout` for these calls. */
  timeout?: Duration | undefined
  /** Create or update the schema at the first call. Without it `leasehold migrate` or `migrate(pool)` has to have run. */
  migrate?: boolean | undefined
  /** Keep one connection that listens, to be woken when a lock is handed off. Without it waiters poll. */
  listen?: boolean | undefined
}

const OPTIONS = ['schema', 'timeout', 'migrate', 'listen']

/**
 * Bounds the calls with claims that are under way at once; further claims share the next call. A lone caller is not held up,
 * and many instances on one store object do not take all of the user's connections.
 */
const CLAIM_LANES = 2

/** A call with claims that takes longer than this many milliseconds no longer holds up the claims behind it. */
const SLOW_CLAIM_MS = 50

/** A lease table in PostgreSQL. `files`: other SQL than leasehold's only in experiments. */
export function createPostgresStore(
  driver: PostgresDriver,
  options: PostgresOptions = {},
  files: SqlFiles = sqlFiles,
  close: () => Promise<void> = async () => {},
): Store {
  return new Postgres(driver, options, files, close)
}

class Postgres implements Store {
  readonly name = 'postgres'
  readonly expiry = 'timed'
  readonly features = { queue: true, counting: true, atomic: true, values: true }
  readonly timeoutMs: number
  /** Each key of a batch takes a slot of the server's lock table, which has 64 per connection by default. */
  readonly maxBatch = 100
  readonly watch?: (key: string, listener: (event: StoreEvent) => void) => Watch
  readonly watchRevoked?: (listener: (lease: LeaseId) => void) => Watch

  readonly #calls: ServerFunctions
  readonly #wakeups: PostgresWakeups | undefined
  readonly #claims: LaneBatcher<Claim, Answer>
  readonly #renewals: LaneBatcher<Renewal, Renewed>
  readonly #releases: LaneBatcher<LeaseId, Released>
  readonly #possibleLossListeners = new Set<() => void>()
  readonly #close: () => Promise<void>
  #closing: Promise<void> | undefined

  constructor(driver: PostgresDriver, options: PostgresOptions, files: SqlFiles, close: () => Promise<void>) {
    const { schema = 'public', timeout = '2s', migrate = false, listen = true } = knownOptions(options, OPTIONS)
    this.timeoutMs = milliseconds('timeout', timeout, { min: 50, max: 3_600_000 })
    const names = schemaNames(schema)
    this.#calls = new ServerFunctions(driver, names, files, {
      timeoutMs: this.timeoutMs,
      migrate,
      onBack: () => this.#onPossibleLoss(),
    })
    this.#claims = new LaneBatcher((claims) => this.#acquire(claims), this.maxBatch, CLAIM_LANES, SLOW_CLAIM_MS)
    this.#renewals = new LaneBatcher((renewals) => this.#renew(renewals), this.maxBatch)
    this.#releases = new LaneBatcher((leases) => this.#release(leases), this.maxBatch)
    this.#close = close
    if (listen) {
      const wakeups = new PostgresWakeups(driver, names.channel, this.timeoutMs, {
        channelOf: (subscriber) => this.#calls.call('channel', sqlText(subscriber)),
        probe: (subscriber, n) => this.#calls.callApart('probe', `${sqlText(subscriber)}, ${sqlInteger(n)}`, true),
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
    // The connection for releases opens now, so that the first release need not wait for it.
    if (answers.some(({ granted }) => granted === true)) this.#calls.warm()
    return answers
  }

  async #acquire(claims: readonly Claim[]): Promise<Answer[]> {
    const [claim] = claims
    if (claims.length !== 1 || !claim) {
      const answers = await this.#calls.call<AcquireAnswer[]>('acquire', claimsJson(claims), sqlText(this.#subscriber))
      return answers.map((answer, i) => answerOf(answer, claims[i] as Claim))
    }
    const { key, owner, weight, capacity, ttlMs, value, queueMs, announce = false, steal = false } = claim
    const answer = await this.#calls.call<AcquireAnswer>(
      'acquire_one',
      sqlText(key),
      sqlText(owner),
      sqlInteger(weight),
      sqlInteger(capacity),
      sqlNumber(ttlMs),
      sqlText(value),
      sqlNumber(queueMs),
      sqlBoolean(announce),
      sqlBoolean(steal),
      sqlText(this.#subscriber),
    )
    return [answerOf(answer, claim)]
  }

  async #acquireAll(claims: readonly Claim[]): Promise<Answer[]> {
    const error = claims.map(refusal).find((found) => found !== undefined)
    if (error) return claims.map(() => unknownAnswer(error))
    const answers = await this.#calls.call<AcquireAnswer[]>(
      'acquire_all',
      claimsJson(claims),
      sqlText(this.#subscriber),
    )
    return answers.map((answer, i) => answerOf(answer, claims[i] as Claim))
  }

  renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    return singly<Renewal, Renewed>(renewals, unknownOutcome, (carried) => this.#renewals.ask(carried))
  }

  async #renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    const leases = renewals.filter(({ queued }) => !queued)
    if (leases.length === renewals.length) return this.#renewLeases(leases)
    const entries = renewals.filter(({ queued }) => queued)
    if (entries.length === renewals.length) return this.#renewEntries(entries)
    // Calls of their own: one that fails leaves the other's answers known.
    const failed = (items: readonly Renewal[]) => (error: unknown) => items.map(() => unknownOutcome(error))
    const [ofLeases, ofEntries] = await Promise.all([
      this.#renewLeases(leases).catch(failed(leases)),
      this.#renewEntries(entries).catch(failed(entries)),
    ])
    let [lease, entry] = [0, 0]
    return renewals.map(({ queued }) => (queued ? ofEntries[entry++] : ofLeases[lease++]) as Renewed)
  }

  async #renewLeases(leases: readonly Renewal[]): Promise<Renewed[]> {
    const answers = await this.#extend(leases)
    const renewed: Renewed[] = []
    for (const [i, lease] of leases.entries()) {
      // Another transaction was writing to its row. A batch does not wait for rows; a renewal that is alone may.
      renewed.push(
        answers[i] === 2
          ? await this.#extend([lease]).then(([answer]) => renewedOf(answer, lease), unknownOutcome)
          : renewedOf(answers[i], lease),
      )
    }
    return renewed
  }

  #extend(leases: readonly Renewal[]): Promise<number[]> {
    return this.#calls.callApart('renew', renewalsJson(leases), true)
  }

  async #renewEntries(entries: readonly Renewal[]): Promise<Renewed[]> {
    const renewed = entries.map((): Renewed => ({ outcome: 'waiting', ahead: 1 }))
    for (const call of entryCalls(entries)) {
      const answers = await this.#calls.callApart<EntryAnswer[]>('renew_entries', call.args, true)
      for (const [n, state] of answers) renewed[call.places[n - 1] as number] = entryOf(state)
    }
    return renewed
  }

  /**
   * One call at a time for all callers: of two releases of one lease under way at once (the holder's own, and the clean-up of a
   * grant that was answered late) the second could otherwise overtake the first, whose caller would then be told that it had
   * lost the lock.
   */
  release(leases: readonly LeaseId[]): Promise<Released[]> {
    return singly<LeaseId, Released>(leases, unknownOutcome, (carried) => this.#releases.ask(carried))
  }

  async #release(leases: readonly LeaseId[]): Promise<Released[]> {
    const answers = await this.#end(leases, (name, args) => this.#calls.release(name, args))
    const undecided = leases.filter((_, i) => answers[i] === 2)
    if (undecided.length > 0) {
      // Again in the user's pool: to wait for a key on leasehold's own connection would hold up heartbeats.
      const retried = await this.#end(undecided, (name, args) => this.#calls.call(name, args(false))).catch(() => [])
      for (const [i, lease] of undecided.entries()) answers[leases.indexOf(lease)] = retried[i] ?? 2
    }
    return answers.map((answer, i) => {
      if (answer === 2) return unknownOutcome(stuck((leases[i] as LeaseId).key))
      return { outcome: answer ? 'released' : 'gone' }
    })
  }

  async #end(
    leases: readonly LeaseId[],
    ask: <T>(name: string, args: (defer: boolean) => string) => Promise<T>,
  ): Promise<number[]> {
    const [first] = leases
    if (leases.length === 1 && first) {
      const one = `${sqlText(first.key)}, ${sqlText(first.owner)}, ${sqlBigint(first.token)}`
      return [await ask<number>('release_one', (defer) => `${one}, ${sqlBoolean(defer)}`)]
    }
    const all = leasesJson(leases)
    return ask('release', (defer) => `${all}, ${sqlBoolean(defer)}`)
  }

  onPossibleLoss(listener: () => void): () => void {
    this.#calls.attend()
    this.#possibleLossListeners.add(listener)
    return () => this.#possibleLossListeners.delete(listener)
  }

  async holders(prefix: string): Promise<HolderView[]> {
    // The byte order of UTF-8 is the order of code points, and U+10FFFF is the last of them.
    const end = `${prefix}${'\u{10ffff}'.repeat(8)}`
    return (await this.#calls.call<PostgresHolderRow[]>('holders', sqlText(prefix), sqlText(end))).map(holderOf)
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    const [holders, waiters] = await this.#calls.call<[PostgresHolderRow[], PostgresWaiterRow[]]>(
      'inspect',
      sqlText(key),
    )
    return { holders: holders.map(holderOf), waiters: waiters.map(waiterOf) }
  }

  async revoke(key: string): Promise<HolderView[]> {
    return (await this.#calls.call<PostgresHolderRow[]>('revoke', sqlText(key))).map(holderOf)
  }

  take(requests: readonly TakeRequest[]): Promise<(TakeAnswer | Failure)[]> {
    return singly<TakeRequest, TakeAnswer | Failure>(requests, unknownAnswer, async (carried) => {
      const answers = await this.#calls.call<TakeRow[]>('take', sqlJson(carried), sqlNumber(undefined))
      return answers.map((answer, i) => takenOf(answer, carried[i] as TakeRequest))
    })
  }

  now(): Promise<number> {
    return this.#calls.call<number>('now')
  }

  idle(): void {
    this.#wakeups?.rest()
    this.#calls.rest()
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

  /** Written into leases and queue entries, so that the releasing process knows where to send the grant. */
  get #subscriber(): string | undefined {
    return this.#wakeups?.subscriber
  }

  #onPossibleLoss(): void {
    for (const listener of [...this.#possibleLossListeners]) listener()
  }
}
