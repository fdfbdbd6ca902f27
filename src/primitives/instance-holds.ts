import { driftOf } from '../core/deadline.js'
import { type Lock, leaseOf } from '../core/lock.js'
import type { AcquireOptions } from '../core/options.js'
import { LockLostError, LockTimeoutError, StoreUnavailableError } from '../errors.js'
import type { Locks } from '../locks.js'
import { realWorld } from '../util/world.js'

/** What one call of `acquire` or `withLock` asks for. */
export interface TakeTerms {
  ttl: number
  waitMs: number
  autoRenew: boolean
  metadata: Record<string, unknown> | undefined
}

/** What this instance holds under one name, and how many `withLock` calls are inside. */
export interface InstanceHold {
  lock: Lock
  inside: number
  /** `acquire` was called: it stays until `release` is. */
  kept: boolean
}

/** One attempt to take a lock, from its call on. */
interface TakeAttempt {
  /** `release` was called meanwhile: it must not take effect any more. */
  unwanted: boolean
  /** It was granted all the same, and released. */
  released: boolean
}

/** REMAINS_MS: how much longer than the drift of its clock the store may keep a lock, such as for a slow request. */
const REMAINS_MS = 1_000

function refuseUnwanted(lockName: string, { unwanted }: TakeAttempt): void {
  if (unwanted) throw new LockLostError(lockName, 'released')
}

/** The locks of one `DistributedLock`, which is one holder: whatever call gets a lock, all calls have it. */
export class InstanceHolds {
  readonly #locks: Locks
  readonly #held = new Map<string, InstanceHold>()
  /** The last attempt of each name: they run one after the other, so that two at once do not both ask the store. No wait is among them. */
  readonly #lastCalls = new Map<string, Promise<unknown>>()
  readonly #attempts = new Map<string, Set<TakeAttempt>>()
  /** Of each name, the calls that wait for another instance to release it. */
  readonly #waits = new Map<string, Set<AbortController>>()

  constructor(locks: Locks) {
    this.#locks = locks
  }

  /** The returned hold counts this caller already: no other call may release it before the caller gets it. */
  async take(lockName: string, terms: TakeTerms): Promise<InstanceHold> {
    const until = realWorld.now() + terms.waitMs
    for (;;) {
      const taken = await this.#attempt(lockName, terms).catch((error: unknown) => {
        // A wait goes on through an outage.
        if (terms.waitMs > 0 && error instanceof StoreUnavailableError) return error
        throw error
      })
      if (!(taken instanceof LockTimeoutError || taken instanceof StoreUnavailableError)) return taken
      const leftMs = until - realWorld.now()
      if (leftMs <= 0) throw taken
      const granted = await this.#wait(lockName, terms, leftMs)
      if (granted) return granted
    }
  }

  /** Returns the refusal if another instance holds it. Rejects with `LockLostError` if `release` was called meanwhile. */
  async #attempt(lockName: string, terms: TakeTerms): Promise<InstanceHold | LockTimeoutError> {
    const attempt: TakeAttempt = { unwanted: false, released: false }
    const attempts = this.#attempts.get(lockName) ?? new Set()
    this.#attempts.set(lockName, attempts.add(attempt))
    try {
      return await this.#serially(lockName, () => this.#takeOnce(lockName, terms, attempt))
    } finally {
      attempts.delete(attempt)
      if (attempts.size === 0) this.#attempts.delete(lockName)
    }
  }

  async #takeOnce(lockName: string, terms: TakeTerms, attempt: TakeAttempt): Promise<InstanceHold | LockTimeoutError> {
    refuseUnwanted(lockName, attempt)
    const joined = await this.#join(lockName, terms)
    if (joined) return joined
    await this.#clearRemains(lockName)
    refuseUnwanted(lockName, attempt)
    try {
      const lock = await this.#locks.acquire(lockName, this.#request(terms, 0))
      if (!attempt.unwanted) return this.#begin(lockName, lock)
      attempt.released = await lock.release()
      throw new LockLostError(lockName, 'released')
    } catch (error) {
      if (!(error instanceof LockTimeoutError)) throw error
      refuseUnwanted(lockName, attempt)
      // A call of this instance that waited was granted it meanwhile.
      return (await this.#join(lockName, terms)) ?? error
    }
  }

  /** What this instance holds already, for at least as long as is asked for now. */
  async #join(lockName: string, { ttl, autoRenew }: TakeTerms): Promise<InstanceHold | undefined> {
    const mine = this.#holding(lockName)
    if (!mine) return undefined
    mine.inside++
    try {
      // Never shorter: another part of the program may count on what it was given.
      if (ttl - driftOf(ttl) > mine.lock.remainingMs) await mine.lock.extend(ttl)
      if (autoRenew) leaseOf(mine.lock).renewals.begin()
      return mine
    } catch (error) {
      await this.leave(lockName, mine)
      // A lock that is gone without notice is acquired anew, as if the loss had been known before.
      if (error instanceof LockLostError) return undefined
      throw error
    }
  }

  /** Waits until another instance has released it. Undefined: another call of this instance got it, and this one joins that. */
  async #wait(lockName: string, terms: TakeTerms, waitMs: number): Promise<InstanceHold | undefined> {
    // Another call of this instance may have been granted the lock since the last attempt: nobody would end this wait.
    if (this.#holding(lockName)) return undefined
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

  #request({ ttl, autoRenew, metadata }: TakeTerms, wait: number): AcquireOptions {
    return { ttl, wait, autoRenew, metadata }
  }

  /** What is held under this name, behind an attempt that is under way and may be granted it. */
  async find(lockName: string): Promise<InstanceHold | undefined> {
    if (!this.#holding(lockName)) await this.#lastCalls.get(lockName)
    return this.#holding(lockName)
  }

  /** What is held, or may be in a moment. */
  names(): Set<string> {
    return new Set([...this.#held.keys(), ...this.#attempts.keys()])
  }

  /** True if it was held until now, or was just about to be: what attempts on their way get is released too. */
  async release(lockName: string): Promise<boolean> {
    const attempts = [...(this.#attempts.get(lockName) ?? [])]
    for (const attempt of attempts) attempt.unwanted = true
    const held = this.#held.get(lockName)
    const wasHeld = held !== undefined && (await this.#end(lockName, held))
    if (attempts.length > 0) await this.#lastCalls.get(lockName)
    return wasHeld || attempts.some(({ released }) => released)
  }

  /** One `withLock` is over. The last one to leave releases the lock, or stops renewing what `acquire` has taken. */
  async leave(lockName: string, held: InstanceHold): Promise<void> {
    if (--held.inside > 0) return
    if (held.kept && leaseOf(held.lock).loss) this.#lost(lockName, held)
    else if (held.kept) leaseOf(held.lock).renewals.stop()
    else if (this.#held.get(lockName) === held) await this.#end(lockName, held)
  }

  #end(lockName: string, held: InstanceHold): Promise<boolean> {
    this.#held.delete(lockName)
    return held.lock.release()
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
}
