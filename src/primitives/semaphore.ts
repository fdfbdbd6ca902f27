import type { Ask } from '../core/ask.js'
import type { Engine } from '../core/engine.js'
import type { Lock } from '../core/lock.js'
import type { AcquireOptions, Defaults } from '../core/options.js'
import { InvalidOptionError, LockTimeoutError, UnsupportedError } from '../errors.js'
import { ALL } from '../store.js'
import { runUnder } from './lock.js'

/** A semaphore has no modes; a claim has a weight instead. */
export interface SemaphoreCall extends Omit<AcquireOptions, 'mode'> {
  /** How many permits to take at once. Default 1. */
  weight?: number
}

/**
 * At most `permits` at once across all processes, first come, first served.
 *
 * @example
 * ```ts
 * const api = locks.semaphore('payment-api', 5)
 * await api.use(async (lock) => call({ signal: lock.signal }))
 * ```
 */
export class Semaphore {
  readonly #engine: Engine
  readonly #defaults: Defaults
  readonly #name: string
  readonly permits: number

  /** @internal */
  constructor(engine: Engine, defaults: Defaults, name: string, permits: number) {
    if (!Number.isInteger(permits) || permits < 1 || permits > ALL) {
      throw new InvalidOptionError('permits', permits, `a whole number from 1 to ${ALL}`)
    }
    defaults.key('semaphore', name)
    this.#engine = engine
    this.#defaults = defaults
    this.#name = name
    this.permits = permits
  }

  /** Waits for its permits and holds them until `release()`. */
  async acquire(options?: SemaphoreCall): Promise<Lock> {
    const ask = this.#ask(options)
    return this.#counts ? this.#engine.acquire(ask) : this.#acquireSlot(ask)
  }

  /** One attempt. Null when there are not enough permits, or others wait already. */
  async tryAcquire(options?: Omit<SemaphoreCall, 'wait'>): Promise<Lock | null> {
    const ask = this.#ask(options)
    return this.#counts ? this.#engine.tryAcquire(ask) : this.#trySlots(ask)
  }

  /** Runs `fn` while holding permits. Rejects with `LockLostError` if they were lost meanwhile. */
  async use<T>(fn: (lock: Lock) => T | Promise<T>, options?: SemaphoreCall): Promise<T> {
    if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run with a permit')
    const lock = await this.acquire(options)
    return runUnder(lock, async () => fn(lock))
  }

  get #counts(): boolean {
    return this.#engine.store.features.counting
  }

  #ask(options: SemaphoreCall | undefined): Ask {
    const weight = options?.weight ?? 1
    if (!Number.isInteger(weight) || weight < 1 || weight > this.permits) {
      throw new InvalidOptionError('weight', weight, `a whole number from 1 to ${this.permits}, the number of permits`)
    }
    if (weight > 1 && !this.#counts) {
      throw new UnsupportedError(
        `the ${this.#engine.store.name} store cannot count, so a semaphore there is made of single slots: weight must be 1`,
      )
    }
    return { ...this.#defaults.ask('semaphore', this.#name, options), weight, capacity: this.permits }
  }

  /**
   * On a store that cannot count, each permit is a lock of its own: counting by majority would admit too many, and a
   * session lock knows only one holder. There is no common line, so who waits longest is not always served first.
   */
  async #trySlots(ask: Ask): Promise<Lock | null> {
    const first = Math.floor(this.#engine.world.random() * this.permits)
    for (let i = 0; i < this.permits; i++) {
      const lock = await this.#engine.tryAcquire(this.#slot(ask, (first + i) % this.permits))
      if (lock) return lock
    }
    return null
  }

  async #acquireSlot(ask: Ask): Promise<Lock> {
    const { world } = this.#engine
    const since = world.now()
    let heldBy: string | undefined
    for (;;) {
      const lock = await this.#trySlots(ask)
      if (lock) return lock
      const left = since + ask.waitMs - world.now()
      if (left <= 0) throw new LockTimeoutError(ask.name, { waitedMs: world.now() - since, heldBy })
      // Stand before one slot for a while: whoever frees that one wakes us, and after a while we look at all again.
      const waitMs = Math.min(left, 250 + world.random() * 250)
      try {
        return await this.#engine.acquire({ ...this.#slot(ask, Math.floor(world.random() * this.permits)), waitMs })
      } catch (error) {
        if (!(error instanceof LockTimeoutError)) throw error
        heldBy = error.heldBy
      }
    }
  }

  #slot(ask: Ask, index: number): Ask {
    return { ...ask, key: `${ask.key}#${index}`, weight: ALL, capacity: ALL }
  }
}
