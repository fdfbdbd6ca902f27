/**
 * The store contract on a SQLite file.
 *
 * @module
 */
import type {
  Answer,
  Awaitable,
  Claim,
  Failure,
  Grant,
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
import { type World, realWorld } from '../../util/world.js'
import type { Machine } from './boot-clock.js'
import { SqliteConnection } from './connection.js'
import type { SqliteDriver } from './driver.js'
import { holdersOf, holdersUnder, waitersOf } from './inspect.js'
import { callWithStorable, isStorable, unstorableKey } from './keys.js'
import type { LeaseTable } from './lease-table.js'
import { take } from './rate-limits.js'
import type { SqliteStatements } from './statements.js'
import { SqliteWakeups } from './wakeups.js'
import { WriteRetry } from './write-retry.js'

export class SqliteStore implements Store {
  readonly name = 'sqlite'
  readonly expiry = 'timed'
  readonly features = { queue: true, counting: true, atomic: true, values: true }
  /** Milliseconds. Above the second after which a locked file is reported, so that the caller gets that error. */
  readonly timeoutMs = 2_000
  /** Items in one transaction, during which all other processes wait: a few milliseconds for this many. */
  readonly maxBatch = 500

  readonly #world: World
  readonly #retry: WriteRetry
  readonly #connection: SqliteConnection
  readonly #wakeups: SqliteWakeups
  readonly #lossListeners = new Set<(affected?: (key: string) => boolean) => void>()
  #closed = false

  constructor(path: string, driver: SqliteDriver, machine: Machine, world: World) {
    this.#world = world
    this.#retry = new WriteRetry(path, world)
    this.#connection = new SqliteConnection({
      path,
      driver,
      machine,
      wallMicros: () => Math.floor(world.date() * 1_000),
      subscriberFor: (key) => this.#wakeups.subscriberFor(key),
      // In a microtask, because the connection is in the middle of opening the other file.
      onReplaced: () => queueMicrotask(() => this.#startOver()),
    })
    this.#wakeups = new SqliteWakeups(this.#connection, (work) => this.#retry.run(work), world)
  }

  /** One file, one partition. */
  partition(key: string): number {
    if (!isStorable(key)) throw unstorableKey(key)
    return 0
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Awaitable<Answer[]> {
    if (options?.atomic === true && claims.length > 1) return this.#acquireAtomically(claims)
    return callWithStorable<Claim, Answer>(claims, unknownGrant, (storable) =>
      this.#retry.run(() => {
        const grant = storable.length === 1 ? this.#acquireFree(storable[0] as Claim) : undefined
        return grant ? [grant] : this.#writeNow((leases) => leases.acquireEach(storable), storable.length)
      }),
    )
  }

  #acquireAtomically(claims: readonly Claim[]): Awaitable<Answer[]> {
    const unstorable = claims.find(({ key }) => !isStorable(key))
    if (unstorable) return claims.map(() => unknownGrant(unstorableKey(unstorable.key)))
    return this.#write((leases) => leases.acquireAtomically(claims), claims.length)
  }

  renew(renewals: readonly Renewal[]): Awaitable<Renewed[]> {
    return callWithStorable<Renewal, Renewed>(renewals, unknownOutcome, (storable) =>
      this.#write((leases) => storable.map((renewal) => leases.renew(renewal))),
    )
  }

  release(leaseIds: readonly LeaseId[]): Awaitable<Released[]> {
    return callWithStorable<LeaseId, Released>(leaseIds, unknownOutcome, (storable) =>
      this.#retry.run(() => {
        if (storable.length === 1 && this.#releaseUncontended(storable[0] as LeaseId)) return [{ outcome: 'released' }]
        return this.#writeNow((leases) => storable.map((lease) => leases.release(lease)))
      }),
    )
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#wakeups.watch(key, listener)
  }

  watchRevoked(listener: (lease: LeaseId) => void): Watch {
    return this.#wakeups.watchRevoked(listener)
  }

  onPossibleLoss(listener: (affected?: (key: string) => boolean) => void): () => void {
    this.#lossListeners.add(listener)
    return () => this.#lossListeners.delete(listener)
  }

  holders(prefix: string): Awaitable<HolderView[]> {
    return this.#read((sql, now) => holdersUnder(sql, prefix, now))
  }

  inspect(key: string): Awaitable<{ holders: HolderView[]; waiters: WaiterView[] }> {
    return this.#read((sql, now) => ({ holders: holdersOf(sql, key, now), waiters: waitersOf(sql, key, now) }))
  }

  revoke(key: string): Awaitable<HolderView[]> {
    return this.#write((leases, sql) => {
      const revoked = holdersOf(sql, key, leases.now)
      leases.revoke(key)
      return revoked
    })
  }

  take(requests: readonly TakeRequest[]): Awaitable<(TakeAnswer | Failure)[]> {
    return callWithStorable<TakeRequest, TakeAnswer | Failure>(requests, unknownGrant, (storable) =>
      this.#write((leases, sql) => storable.map((request) => take(sql, request, leases.now)), storable.length),
    )
  }

  /** SQLite's own reading of the machine's clock: the Date of this process may be mocked, and ticks would run early. */
  now(): Awaitable<number> {
    if (this.#world !== realWorld) return this.#world.date()
    return this.#retry.run(() => this.#connection.wallTime())
  }

  outage(): unknown {
    return this.#retry.outage
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    this.#retry.close()
    this.#wakeups.close()
    this.#connection.close()
    this.#lossListeners.clear()
  }

  /** Not tried for a key that this process subscribes to: it has met other owners there, so the statement would mostly fail. */
  #acquireFree(claim: Claim): Grant | undefined {
    if (claim.steal || claim.announce || claim.tokens || this.#wakeups.subscriberFor(claim.key) !== null)
      return undefined
    return this.#connection.acquireFree(claim)
  }

  /** Not tried for a key that this process subscribes to, likewise. */
  #releaseUncontended(lease: LeaseId): boolean {
    return this.#wakeups.subscriberFor(lease.key) === null && this.#connection.releaseUncontended(lease)
  }

  #write<T>(work: (leases: LeaseTable, sql: SqliteStatements) => T, rows?: number): Awaitable<T> {
    return this.#retry.run(() => this.#writeNow(work, rows))
  }

  #writeNow<T>(work: (leases: LeaseTable, sql: SqliteStatements) => T, rows?: number): T {
    const written = this.#connection.write(work, rows)
    if (written.notifications.length > 0 || written.deadSubscribers.length > 0) this.#wakeups.deliver(written)
    return written.result
  }

  #read<T>(work: (sql: SqliteStatements, now: number) => T): Awaitable<T> {
    return this.#retry.run(() => this.#connection.read(work))
  }

  /** Another file took the place of ours, and our leases are not in it. */
  #startOver(): void {
    if (this.#closed) return
    this.#wakeups.startOver()
    for (const listener of [...this.#lossListeners]) listener()
  }
}

const unknownGrant = (error: unknown): Failure => ({ granted: 'unknown', error })
const unknownOutcome = (error: unknown): { outcome: 'unknown'; error: unknown } => ({ outcome: 'unknown', error })
