import type { Engine } from '../../core/engine.js'

/** By how much two good clocks differ in speed at most, as a share. */
const DRIFT = 0.000_5

/**
 * The store's time without a request each time: the last answer plus what passed on the local clock since. Never ahead of the
 * store: the time is counted from the arrival of the answer, as if the store had read its clock only then.
 */
export class StoreClock {
  readonly #engine: Engine
  /** By the clock of this machine, on a store without one. */
  readonly #isLocal: boolean
  #stored = 0
  #askedAt = Number.NEGATIVE_INFINITY

  constructor(engine: Engine, isLocal = false) {
    this.#engine = engine
    this.#isLocal = isLocal
  }

  /** Asks if the last answer is older than this. Rejects when the store does not answer. */
  async now(oldest: number): Promise<number> {
    const { world } = this.#engine
    if (!this.#isLocal && world.now(true) - this.#askedAt > oldest) {
      const stored = await this.#engine.read('the time of the store', (store) => store.now?.())
      this.#stored = stored
      this.#askedAt = world.now(true)
    }
    return this.last
  }

  /** By the last answer, however old. By the local clock if there was none, or none is asked for. */
  get last(): number {
    const { world } = this.#engine
    if (this.#askedAt === Number.NEGATIVE_INFINITY) return world.date()
    return this.#stored + (world.now(true) - this.#askedAt) * (1 - DRIFT)
  }
}
