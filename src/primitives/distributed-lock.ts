import { type Lock, leaseOf } from '../core/lock.js'
import { flagFrom, SHORTEST_TTL } from '../core/options.js'
import { InvalidOptionError, LockLostError, LockTimeoutError } from '../errors.js'
import { createLocks, type Locks } from '../locks.js'
import type { Store } from '../store.js'
import { memory } from '../stores/memory/index.js'
import { knownOptions } from '../util/options.js'
import { InstanceHolds, type TakeTerms } from './instance-holds.js'

/** The holder of a lock, and until when. */
export interface LockInfo {
  lockName: string
  holderId: string
  acquiredAt: Date
  expiresAt: Date
  metadata?: Record<string, unknown>
}

/** Options of `DistributedLock.acquire` and `withLock`. */
export interface LockOptions {
  /** How long it is held unless extended. Default 30. */
  timeoutSeconds?: number | undefined
  /** Wait for it. Default false. */
  blocking?: boolean | undefined
  /** How long to wait. Default 10. */
  blockingTimeoutSeconds?: number | undefined
  metadata?: Record<string, unknown>
}

/** Busy is a value, not an error. */
export interface LockResult {
  acquired: boolean
  lock?: LockInfo
  error?: string
}

/** SHORTEST_SECONDS: the shortest ttl of a lock. LONGEST_SECONDS: a year, anything longer is a mistake. */
const SHORTEST_SECONDS = SHORTEST_TTL / 1_000
const LONGEST_SECONDS = 86_400 * 366
const OPTIONS = ['timeoutSeconds', 'blocking', 'blockingTimeoutSeconds', 'metadata']

/** In the global registry: two copies of this package in one process find the same store under it. */
const SHARED = Symbol.for('leasehold.shared-memory-store')

/** One store per process for all instances made without one, also across two copies of this package. */
function sharedStore(): Store {
  const home = globalThis as { [SHARED]?: Store }
  home[SHARED] ??= memory()
  return home[SHARED]
}

/**
 * Named locks with one holder ID per instance: acquiring again extends. `acquire` does not renew by itself,
 * `withLock` does.
 *
 * @example
 * ```ts
 * const lock = new DistributedLock()
 * const result = await lock.acquire('process-payment:order-123')
 * if (result.acquired) {
 *   try {
 *     await processPayment('order-123')
 *   } finally {
 *     await lock.release('process-payment:order-123')
 *   }
 * }
 * ```
 */
export class DistributedLock {
  readonly #locks: Locks
  readonly #store: Store
  readonly #holds: InstanceHolds

  /** Without a store, all instances of this process share one in memory. */
  constructor(store: Store = sharedStore()) {
    this.#locks = createLocks(store)
    this.#store = store
    this.#holds = new InstanceHolds(this.#locks)
  }

  /** The id under which other instances see this one. */
  get holderId(): string {
    return this.#locks.clientId
  }

  /** Takes the lock, or extends it if this instance holds it already. */
  async acquire(lockName: string, options: LockOptions = {}): Promise<LockResult> {
    const terms = this.#terms(options, false)
    try {
      const held = await this.#holds.take(lockName, terms)
      held.kept = true
      await this.#holds.leave(lockName, held)
      // Another part of the program may have called `release` in the meantime.
      if (leaseOf(held.lock).released) throw new LockLostError(lockName, 'released')
      return { acquired: true, lock: this.#info(held.lock) }
    } catch (error) {
      if (error instanceof LockLostError) return { acquired: false, error: 'Released before it was acquired' }
      if (!(error instanceof LockTimeoutError)) throw error
      const { heldBy } = error
      if (options.blocking) return { acquired: false, error: 'Timeout waiting for lock' }
      return { acquired: false, error: `Lock held by ${heldBy === undefined ? 'another' : instanceOf(heldBy)}` }
    }
  }

  /** True if this instance held it until now. What an `acquire` on its way would get is released too. */
  async release(lockName: string): Promise<boolean> {
    return this.#holds.release(lockName)
  }

  /** Holds it for so much longer from now on. False if this instance does not hold it any more. */
  async extend(lockName: string, additionalSeconds: number): Promise<boolean> {
    const ttl = this.#ttl('additionalSeconds', additionalSeconds)
    const held = await this.#holds.find(lockName)
    if (!held) return false
    try {
      await held.lock.extend(ttl)
      return true
    } catch (error) {
      if (error instanceof LockLostError) return false
      throw error
    }
  }

  /** Runs `fn` while holding the lock, renewed meanwhile. Rejects if it is busy, or if it was lost. */
  async withLock<T>(lockName: string, fn: () => Promise<T>, options: LockOptions = {}): Promise<T> {
    if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run under the lock')
    const held = await this.#holds.take(lockName, this.#terms(options, true)).catch((error: unknown) => {
      if (!(error instanceof LockTimeoutError)) throw error
      throw new Error(`Failed to acquire lock: ${lockName}`, { cause: error })
    })
    const lease = leaseOf(held.lock)
    let result: T
    try {
      if (lease.released) throw new LockLostError(lockName, 'released')
      result = await fn()
      // Checked also if `acquire` keeps the lock: the event loop may have been blocked past the deadline, before any timer could run.
      lease.noticeDeadline()
      // Another part of the program released it meanwhile: another process may have held it since.
      if (lease.released) throw lease.takenBack ?? new LockLostError(lockName, 'released')
    } finally {
      await this.#holds.leave(lockName, held)
    }
    if (lease.loss ?? lease.takenBack) throw lease.loss ?? lease.takenBack
    return result
  }

  /** Releases everything this instance holds. */
  async releaseAll(): Promise<void> {
    await Promise.all([...this.#holds.names()].map((lockName) => this.release(lockName)))
  }

  /** Releases everything, and removes what this instance added to its store. The store is yours to close. */
  async close(): Promise<void> {
    await this.releaseAll()
    await this.#locks.close({ grace: 0 })
  }

  #terms(options: LockOptions, autoRenew: boolean): TakeTerms {
    const {
      timeoutSeconds = 30,
      blocking = false,
      blockingTimeoutSeconds = 10,
      metadata,
    } = knownOptions(options, OPTIONS)
    const ttl = this.#ttl('timeoutSeconds', timeoutSeconds)
    const longest = seconds('blockingTimeoutSeconds', blockingTimeoutSeconds)
    if (metadata !== undefined && (typeof metadata !== 'object' || metadata === null || Array.isArray(metadata)))
      throw new InvalidOptionError('metadata', metadata, 'an object')
    return { ttl, waitMs: flagFrom('blocking', blocking) ? longest : 0, autoRenew, metadata }
  }

  #ttl(option: string, value: unknown): number {
    return seconds(option, value, SHORTEST_SECONDS, (this.#store.maxTtlMs ?? LONGEST_SECONDS * 1_000) / 1_000)
  }

  #info(lock: Lock): LockInfo {
    const { name, acquiredAt, expiresAt, metadata } = lock
    const info: LockInfo = { lockName: name, holderId: this.holderId, acquiredAt, expiresAt }
    if (metadata !== undefined) info.metadata = metadata as Record<string, unknown>
    return info
  }
}

/** Our own holder IDs end in the number of the acquisition. */
function instanceOf(holder: string): string {
  return holder.replace(/\/\d+$/, '')
}

function seconds(option: string, value: unknown, min = 0, max = LONGEST_SECONDS): number {
  if (typeof value === 'number' && value >= min && value <= max) return value * 1_000
  throw new InvalidOptionError(option, value, `a number of seconds from ${min} to ${max}`)
}

let instance: DistributedLock | undefined

/** One instance for this process, made when first asked for. */
export function getDistributedLock(): DistributedLock {
  instance ??= new DistributedLock()
  return instance
}
