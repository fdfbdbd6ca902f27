import type { Engine } from '../../core/engine.js'
import { type LeaseholdError, StoreUnavailableError } from '../../errors.js'
import type { Limit, Store, TakeAnswer } from '../../store.js'
import { memory } from '../../stores/memory/index.js'
import { shareOf, type StoreErrorPolicy } from './options.js'

/** During an outage, one request per this time probes the store. Other callers do not wait for it. */
const PROBE_EVERY_MS = 1_000

/** Decides for a limiter while its store does not answer. */
export class StoreFallback {
  readonly #engine: Engine
  readonly #limits: readonly Limit[]
  readonly #policy: StoreErrorPolicy
  #error: LeaseholdError | undefined
  #probeAt = 0
  #local: Store | undefined

  constructor(engine: Engine, limits: readonly Limit[], policy: StoreErrorPolicy) {
    this.#engine = engine
    this.#limits = limits
    this.#policy = policy
  }

  /**
   * The error of the outage, if this take is to be decided without the store; undefined: ask the store. During an
   * outage one read per PROBE_EVERY_MS returns undefined: its caller is the one that probes.
   */
  get pending(): LeaseholdError | undefined {
    if (this.#error === undefined || this.#policy === 'throw') return undefined
    const now = this.#engine.world.now()
    if (now < this.#probeAt) return this.#error
    this.#probeAt = now + PROBE_EVERY_MS
    return undefined
  }

  over(): void {
    this.#error = undefined
  }

  /** Bad input is thrown whatever the policy: only an outage is for it to decide. */
  began(error: unknown): asserts error is LeaseholdError {
    if (!(error instanceof StoreUnavailableError)) throw error
    this.#error = error
    this.#probeAt = this.#engine.world.now() + PROBE_EVERY_MS
  }

  decide(key: string, cost: number, error: LeaseholdError): TakeAnswer & { storeError: LeaseholdError } {
    const policy = this.#policy
    if (policy === 'throw') throw error
    if (policy === 'allow') return { allowed: true, remaining: 0, retryAfterMs: 0, resetMs: 0, storeError: error }
    if (policy === 'deny') {
      const again = Math.max(this.#probeAt - this.#engine.world.now(), 1)
      return { allowed: false, remaining: 0, retryAfterMs: again, resetMs: again, storeError: error }
    }
    this.#local ??= memory({ world: this.#engine.world })
    const limits = this.#limits.map((limit) => shareOf(limit, policy.local))
    const [answer] = (this.#local.take as NonNullable<Store['take']>)([{ key, cost, limits }]) as TakeAnswer[]
    return { ...(answer as TakeAnswer), storeError: error }
  }
}
