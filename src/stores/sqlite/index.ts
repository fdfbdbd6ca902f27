/**
 * Leases in a SQLite file: for several processes of one machine, with no server.
 *
 * @module
 */
import { resolve } from 'node:path'
import { InvalidOptionError } from '../../errors.js'
import { type World, realWorld } from '../../kit/world.js'
import type {
  Answer,
  Awaitable,
  Claim,
  Failure,
  Grant,
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
import type { Books } from './books.js'
import { cannotCarry, carriedOnly, isCarried } from './carried.js'
import { Connection } from './connection.js'
import { type Driver, loadDriver } from './driver.js'
import { type Machine, thisMachine } from './machine.js'
import { take } from './meters.js'
import type { Statements } from './statements.js'
import { Turnstile } from './turnstile.js'
import { Watching } from './watching.js'

export interface SqliteOptions {
  /** Time, timers and chance, for tests. Leases expire by the clock of `machine`. */
  world?: World | undefined
  /** The boot and the clock that all processes share, for tests. Leases of another boot have expired. */
  machine?: Machine | undefined
}

export type { Machine }

/**
 * A store in a file, which is created if it is missing. Everybody who opens the same file of the same machine excludes
 * each other. The file is opened when it is first needed; a relative path is resolved now.
 */
export function sqlite(path: string, options: SqliteOptions = {}): Store {
  return new Sqlite(checkPath(path), loadDriver(), knownOptions(options, ['world', 'machine']))
}

class Sqlite implements Store {
  readonly name = 'sqlite'
  readonly expiry = 'timed'
  readonly features = { line: true, counting: true, atomic: true, values: true }
  readonly timeoutMs = 2_000
  /** A batch is one transaction, and everybody else waits until it is over: a few milliseconds for this many. */
  readonly maxBatch = 500

  readonly #world: World
  readonly #turnstile: Turnstile
  readonly #connection: Connection
  readonly #watching: Watching
  readonly #doubters = new Set<(affected?: (key: string) => boolean) => void>()
  #closed = false

  constructor(path: string, driver: Driver, { world = realWorld, machine = thisMachine() }: SqliteOptions) {
    this.#world = world
    this.#turnstile = new Turnstile(path, world)
    this.#connection = new Connection({
      path,
      driver,
      machine,
      wallMicros: () => Math.floor(world.date() * 1_000),
      bellFor: (key) => this.#watching.bellFor(key),
      // Later: we are in the middle of opening the other file.
      onReplaced: () => queueMicrotask(() => this.#beginAnew()),
    })
    this.#watching = new Watching(this.#connection, (work) => this.#turnstile.run(work), world)
  }

  /** One file, one partition. */
  partition(key: string): number {
    if (!isCarried(key)) throw cannotCarry(key)
    return 0
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Awaitable<Answer[]> {
    if (options?.atomic === true && claims.length > 1) return this.#acquireAll(claims)
    return carriedOnly<Claim, Answer>(claims, unknownGrant, (carried) =>
      this.#turnstile.run(() => {
        const grant = carried.length === 1 ? this.#askAlone(carried[0] as Claim) : undefined
        return grant ? [grant] : this.#writeNow((books) => books.askAll(carried), carried.length)
      }),
    )
  }

  #acquireAll(claims: readonly Claim[]): Awaitable<Answer[]> {
    const odd = claims.find(({ key }) => !isCarried(key))
    if (odd) return claims.map(() => unknownGrant(cannotCarry(odd.key)))
    return this.#write((books) => books.askAtomically(claims), claims.length)
  }

  renew(renewals: readonly Renewal[]): Awaitable<Renewed[]> {
    return carriedOnly<Renewal, Renewed>(renewals, unknownOutcome, (carried) =>
      this.#write((books) => carried.map((renewal) => books.renew(renewal))),
    )
  }

  release(leases: readonly Lease[]): Awaitable<Released[]> {
    return carriedOnly<Lease, Released>(leases, unknownOutcome, (carried) =>
      this.#turnstile.run(() => {
        if (carried.length === 1 && this.#connection.letGo(carried[0] as Lease)) return [{ outcome: 'released' }]
        return this.#writeNow((books) => carried.map((lease) => books.end(lease)))
      }),
    )
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#watching.watch(key, listener)
  }

  watchRevoked(listener: (lease: Lease) => void): Watch {
    return this.#watching.watchRevoked(listener)
  }

  onDoubt(listener: (affected?: (key: string) => boolean) => void): () => void {
    this.#doubters.add(listener)
    return () => this.#doubters.delete(listener)
  }

  holders(prefix: string): Awaitable<HolderView[]> {
    return this.#read((sql, now) =>
      (sql.holdersUnder.all(prefix, now) as HolderRow[]).map((row) => holderView(row, now)),
    )
  }

  inspect(key: string): Awaitable<{ holders: HolderView[]; waiters: WaiterView[] }> {
    return this.#read((sql, now) => ({ holders: holdersOf(sql, key, now), waiters: waitersOf(sql, key, now) }))
  }

  revoke(key: string): Awaitable<HolderView[]> {
    return this.#write((books, sql) => {
      const cut = holdersOf(sql, key, books.now)
      books.revoke(key)
      return cut
    })
  }

  take(requests: readonly TakeRequest[]): Awaitable<(TakeAnswer | Failure)[]> {
    return carriedOnly<TakeRequest, TakeAnswer | Failure>(requests, unknownGrant, (carried) =>
      this.#write((books, sql) => carried.map((request) => take(sql, request, books.now)), carried.length),
    )
  }

  /** SQLite's own reading of the machine's clock: the Date of this process may be mocked, and ticks would run early. */
  now(): Awaitable<number> {
    if (this.#world !== realWorld) return this.#world.date()
    return this.#turnstile.run(() => this.#connection.wallTime())
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    this.#turnstile.close()
    this.#watching.close()
    this.#connection.close()
    this.#doubters.clear()
  }

  /** If it is likely to be so simple: whoever watches the key has met somebody else there. */
  #askAlone(claim: Claim): Grant | undefined {
    if (claim.steal || claim.announce || this.#watching.bellFor(claim.key) !== null) return undefined
    return this.#connection.takeVacant(claim)
  }

  #write<T>(work: (books: Books, sql: Statements) => T, rows?: number): Awaitable<T> {
    return this.#turnstile.run(() => this.#writeNow(work, rows))
  }

  #writeNow<T>(work: (books: Books, sql: Statements) => T, rows?: number): T {
    const done = this.#connection.write(work, rows)
    if (done.letters.length > 0 || done.deadBells.length > 0) this.#watching.deliver(done)
    return done.result
  }

  #read<T>(work: (sql: Statements, now: number) => T): Awaitable<T> {
    return this.#turnstile.run(() => this.#connection.read(work))
  }

  /** Somebody put another file in the place of ours: what we held is not in it. */
  #beginAnew(): void {
    if (this.#closed) return
    this.#watching.startOver()
    for (const doubt of [...this.#doubters]) doubt()
  }
}

const unknownGrant = (error: unknown): Failure => ({ granted: 'unknown', error })
const unknownOutcome = (error: unknown): { outcome: 'unknown'; error: unknown } => ({ outcome: 'unknown', error })

interface HolderRow {
  key: string
  owner: string
  weight: number
  capacity: number
  token: number
  value: string | null
  expiresAt: number
  since: number
  waiting: number
}

function holdersOf(sql: Statements, key: string, now: number): HolderView[] {
  return (sql.holdersOf.all(key, now) as HolderRow[]).map((row) => holderView(row, now))
}

function holderView(
  { key, owner, weight, capacity, token, value, expiresAt, since, waiting }: HolderRow,
  now: number,
): HolderView {
  return {
    key,
    owner,
    weight,
    capacity,
    token: BigInt(token),
    value: value ?? undefined,
    ttlMs: expiresAt - now,
    heldMs: now - since,
    waiting,
  }
}

function waitersOf(sql: Statements, key: string, now: number): WaiterView[] {
  const rows = sql.placesOf.all(key, now) as (Omit<WaiterView, 'value'> & { since: number; value: string | null })[]
  return rows.map(({ owner, weight, capacity, since, value }) => ({
    key,
    owner,
    weight,
    capacity,
    waitedMs: now - since,
    value: value ?? undefined,
  }))
}

function checkPath(path: unknown): string {
  const takes = 'the path of a file'
  if (typeof path !== 'string' || path === '' || path.includes('\0')) throw new InvalidOptionError('path', path, takes)
  if (path.startsWith(':memory:')) throw new InvalidOptionError('path', path, `${takes}; for memory use memory()`)
  if (/^(sqlite|file):|^[a-z][a-z0-9+.-]*:\/\//i.test(path))
    throw new InvalidOptionError('path', path, `${takes}, not a URL; for a URL use openStore()`)
  return resolve(path)
}
