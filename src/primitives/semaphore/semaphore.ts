import type { AcquireRequest } from '../../core/request.js'
import type { Engine } from '../../core/engine.js'
import type { Lock } from '../../core/lock.js'
import type { AcquireOptions, Defaults } from '../../core/options.js'
import { InvalidOptionError, UnsupportedError } from '../../errors.js'
import { ALL } from '../../store.js'
import { runUnder } from '../lock.js'
import { Slots } from './slots.js'
import { SUPPORTED_BY } from '../supported-by.js'

const TRY_OPTIONS = ['ttl', 'signal', 'metadata', 'autoRenew', 'maxHold', 'weight']
const OPTIONS = [...TRY_OPTIONS, 'wait']

/** A semaphore has no modes; a claim has a weight instead. */
export interface SemaphoreCall extends Omit<AcquireOptions, 'mode'> {
  /** How many permits to take at once. Default 1. */
  weight?: number | undefined
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
  /** Used where the store cannot count. */
  readonly #slots: Slots | undefined
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
    this.#slots = engine.store.features.counting ? undefined : new Slots(engine, permits)
  }

  /** Waits for its permits and holds them until `release()`. */
  async acquire(options?: SemaphoreCall): Promise<Lock> {
    const request = this.#buildRequest(options)
    return this.#slots ? this.#slots.acquire(request) : this.#engine.acquire(request)
  }

  /** One attempt. Null when there are not enough permits, or others wait already. */
  async tryAcquire(options?: Omit<SemaphoreCall, 'wait'>): Promise<Lock | null> {
    const request = this.#buildRequest(options, TRY_OPTIONS)
    return this.#slots ? this.#slots.tryAcquire(request) : this.#engine.tryAcquire(request)
  }

  /** Runs `fn` while holding permits. Rejects with `LockLostError` if they were lost meanwhile. */
  async use<T>(fn: (lock: Lock) => T | Promise<T>, options?: SemaphoreCall): Promise<T> {
    if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run with a permit')
    const lock = await this.acquire(options)
    return runUnder(lock, async () => fn(lock))
  }

  #buildRequest(options: SemaphoreCall | undefined, known: readonly string[] = OPTIONS): AcquireRequest {
    const weight = options?.weight ?? 1
    if (!Number.isInteger(weight) || weight < 1 || weight > this.permits) {
      throw new InvalidOptionError('weight', weight, `a whole number from 1 to ${this.permits}, the number of permits`)
    }
    if (weight > 1 && this.#slots) {
      throw new UnsupportedError(
        `the ${this.#engine.store.name} store cannot count, so a semaphore there is made of single slots and weight must be 1: use ${SUPPORTED_BY.weights} for weights`,
      )
    }
    const { mode } = (options ?? {}) as AcquireOptions
    if (mode !== undefined) throw new InvalidOptionError('mode', mode, 'no value in a semaphore, which has weights')
    const request = this.#defaults.buildRequest('semaphore', this.#name, options, known)
    return { ...request, weight, capacity: this.permits }
  }
}
