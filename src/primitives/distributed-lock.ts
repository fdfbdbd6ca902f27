import { driftOf } from '../core/deadline.js'
import { type Lock, leaseOf } from '../core/lock.js'
import { type AcquireOptions, flagFrom, SHORTEST_TTL } from '../core/options.js'
import { InvalidOptionError, LockLostError, LockTimeoutError } from '../errors.js'
import { createLocks, type Locks } from '../locks.js'
import type { Store } from '../store.js'
import { memory } from '../stores/memory/index.js'
import { knownOptions } from '../util/options.js'
import { realWorld } from '../util/world.js'

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

/** REMAINS_MS: how much longer than the drift of its clock the store may keep a lock, such as for a slow request. */
const REMAINS_MS = 1_000

/** In the global registry: two copies of this package in one process find the same store under it. */
const SHARED = Symbol.for('leasehold.shared-memory-store')

/** One store per process for all instances made without one, also across two copies of this package. */
function sharedStore(): Store {
  const home = globalThis as { [SHARED]?: Store }
  home[SHARED] ??= memory()
  return home[SHARED]
}

/** What one call of `acquire` or `withLock` asks for. */
interface Terms {
  ttl: number
  waitMs: number
  autoRenew: boolean
  metadata: Record<string, unknown> | undefined
}

/** What this instance holds under one name, and how many `withLock` calls are inside. */
interface InstanceHold {
  lock: Lock
  inside: number
  /** `acquire` was called: it stays until `release` is. */
  kept: boolean
}

/** One attempt to take a lock, from its call on. */
interface Attempt {
  /** `release` was called meanwhile: it must not take effect any more. */
  unwanted: boolean
  /** It was granted all the same, and released. */
  released: boolean
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
  readonly #held = new Map<string, InstanceHold>()
  /** The last attempt of each name: they run one after the other, so that two at once do not both ask the store. No wait is among them. */
  readonly #lastCalls = new Map<string, Promise<unknown>>()
  readonly #attempts = new Map<string, Set<Attempt>>()
  /** Of each name, the calls that wait for another instance to release it. */
  readonly #waits = new Map<string, Set<AbortController>>()

  /** Without a store, all instances of this process share one in memory. */
  constructor(store: Store = sharedStore()) {
    this.#locks = createLocks(store)
    this.#store = store
  }

  /** The id under which other instances see this one. */
  get holderId(): string {
    return this.#locks.clientId
  }

  /** Takes the lock, or extends it if this instance holds it already. */
  async acquire(lockName: string, options: LockOptions = {}): Promise<LockResult> {
    const terms = this.#terms(options, false)
    try {
      const held = await this.#take(lockName, terms)
      held.kept = true
      await this.#leave(lockName, held)
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
    const attempts = [...(this.#attempts.get(lockName) ?? [])]
    for (const attempt of attempts) attempt.unwanted = true
    const held = this.#held.get(lockName)
    const wasHeld = held !== undefined && (await this.#end(lockName, held))
    if (attempts.length > 0) await this.#lastCalls.get(lockName)
    return wasHeld || attempts.some(({ released }) => released)
  }

  /** Holds it for so much longer from now on. False if this instance does not hold it any more. */
  async extend(lockName: string, additionalSeconds: number): Promise<boolean> {
    const ttl = this.#ttl('additionalSeconds', additionalSeconds)
    // Behind an attempt that is under way, which may be granted it.
    if (!this.#held.has(lockName)) await this.#lastCalls.get(lockName)
    const held = this.#holding(lockName)
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
    const held = await this.#take(lockName, this.#terms(options, true)).catch((error: unknown) => {
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
      await this.#leave(lockName, held)
    }
    if (lease.loss ?? lease.takenBack) throw lease.loss ?? lease.takenBack
    return result
  }

  /** Releases everything this instance holds. */
  async releaseAll(): Promise<void> {
    const lockNames = new Set([...this.#held.keys(), ...this.#attempts.keys()])
    await Promise.all([...lockNames].map((lockName) => this.release(lockName)))
  }

  /** One `withLock` is over. The last one to leave releases the lock, or stops renewing what `acquire` has taken. */
  async #leave(lockName: string, held: InstanceHold): Promise<void> {
    if (--held.inside > 0) return
    if (held.kept) leaseOf(held.lock).renewals.stop()
    else if (this.#held.get(lockName) === held) await this.#end(lockName, held)
  }

  #end(lockName: string, held: InstanceHold): Promise<boolean> {
    this.#held.delete(lockName)
    return held.lock.release()
  }

  /** Releases everything, and removes what this instance added to its store. The store is yours to close. */
  async close(): Promise<void> {
    await this.releaseAll()
    await this.#locks.close({ grace: 0 })
  }

  /** The returned hold counts this caller already: no other call may release it before the caller gets it. */
  async #take(lockName: string, terms: Terms): Promise<InstanceHold> {
    const until = realWorld.now() + terms.waitMs
    for (;;) {
      const taken = await this.#attempt(lockName, terms)
      if (!(taken instanceof LockTimeoutError)) return taken
      const leftMs = until - realWorld.now()
      if (leftMs <= 0) throw taken
      const granted = await this.#wait(lockName, terms, leftMs)
      if (granted) return granted
    }
  }

  /** Returns the refusal if another instance holds it. Rejects with `LockLostError` if `release` was called meanwhile. */
  async #attempt(lockName: string, terms: Terms): Promise<InstanceHold | LockTimeoutError> {
    const attempt: Attempt = { unwanted: false, released: false }
    const attempts = this.#attempts.get(lockName) ?? new Set()
    this.#attempts.set(lockName, attempts.add(attempt))
    try {
      return await this.#serially(lockName, () => this.#takeOnce(lockName, terms, attempt))
    } finally {
      attempts.delete(attempt)
      if (attempts.size === 0) this.#attempts.delete(lockName)
    }
  }

  async #takeOnce(lockName: string, terms: Terms, attempt: Attempt): Promise<InstanceHold | LockTimeoutError> {
    const joined = await this.#join(lockName, terms)
    if (joined) return joined
    await this.#clearRemains(lockName)
    if (attempt.unwanted) throw new LockLostError(lockName, 'released')
    try {
      const lock = await this.#locks.acquire(lockName, this.#request(terms, 0))
      if (!attempt.unwanted) return this.#begin(lockName, lock)
      attempt.released = await lock.release()
      throw new LockLostError(lockName, 'released')
    } catch (error) {
      if (!(error instanceof LockTimeoutError)) throw error
      // A call of this instance that waited was granted it meanwhile.
      return (await this.#join(lockName, terms)) ?? error
    }
  }

  /** What this instance holds already, for at least as long as is asked for now. */
  async #join(lockName: string, { ttl, autoRenew }: Terms): Promise<InstanceHold | undefined> {
    const mine = this.#holding(lockName)
    if (!mine) return undefined
    mine.inside++
    try {
      // Never shorter: another part of the program may count on what it was given.
      if (ttl - driftOf(ttl) > mine.lock.remainingMs) await mine.lock.extend(ttl)
      if (autoRenew) leaseOf(mine.lock).renewals.begin()
      return mine
    } catch (error) {
      await this.#leave(lockName, mine)
      // A lock that is gone without notice is acquired anew, as if the loss had been known before.
      if (error instanceof LockLostError) return undefined
      throw error
    }
  }

  /** Waits until another instance has released it. Undefined: another call of this instance got it, and this one joins that. */
  async #wait(lockName: string, terms: Terms, waitMs: number): Promise<InstanceHold | undefined> {
    const waiting = new AbortController()
    const waits = this.#waits.get(lockName) ?? new Set()
    this.#waits.set(lockName, waits.add(waiting))
    try {
      const request = { ...this.#request(terms, waitMs), signal: waiting.signal }
      return this.#begin(lockName, await this.#locks.acquire(lockName, request))
    } catch (error) {
      if (waiting.signal.aborted) return undefined
      throw error
    } finally {
      waits.delete(waiting)
      if (waits.size === 0) this.#waits.delete(lockName)
    }
  }

  #begin(lockName: string, lock: Lock): InstanceHold {
    const held: InstanceHold = { lock, inside: 1, kept: false }
    this.#held.set(lockName, held)
    leaseOf(lock).onLoss = () => this.#lost(lockName, held)
    for (const waiting of this.#waits.get(lockName) ?? []) waiting.abort()
    return held
  }

  /**
   * Its time has passed here, a little before it has in the store. It is not released there: other parts of the program may go by the
   * seconds that they asked for. What is left of it is known until then.
   */
  #lost(lockName: string, held: InstanceHold): void {
    const forget = (): void => {
      if (held.inside === 0 && this.#held.get(lockName) === held) this.#held.delete(lockName)
    }
    realWorld.after(driftOf(leaseOf(held.lock).ttlMs) + REMAINS_MS, forget)
  }

  /** What is left in the store of a lock whose time has passed here would refuse this instance, its holder. */
  async #clearRemains(lockName: string): Promise<void> {
    const before = this.#held.get(lockName)
    if (!before || before.inside > 0) return
    this.#held.delete(lockName)
    const { loss, host, key, owner, token } = leaseOf(before.lock)
    if (loss && loss.why !== 'gone' && loss.why !== 'revoked') await host.batcher.release({ key, owner, token })
  }

  #request({ ttl, autoRenew, metadata }: Terms, wait: number): AcquireOptions {
    return { ttl, wait, autoRenew, metadata }
  }

  #terms(options: LockOptions, autoRenew: boolean): Terms {
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

  #holding(lockName: string): InstanceHold | undefined {
    const held = this.#held.get(lockName)
    // No timer runs before the code of a process that was busy or frozen until now.
    if (held) leaseOf(held.lock).noticeDeadline()
    return held?.lock.isHeld ? held : undefined
  }

  async #serially<T>(lockName: string, run: () => Promise<T>): Promise<T> {
    const before = this.#lastCalls.get(lockName) ?? Promise.resolve()
    const call = before.then(run, run)
    const settled = call.catch(() => {})
    this.#lastCalls.set(lockName, settled)
    void settled.then(() => {
      if (this.#lastCalls.get(lockName) === settled) this.#lastCalls.delete(lockName)
    })
    return call
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
