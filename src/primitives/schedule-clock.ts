import type { Engine } from '../core/engine.js'

/** Two good clocks differ in speed by less than this. */
const DRIFT = 0.000_5

/**
 * The store's time, without asking each time: the local clock tells how much passed since it was last asked. Never
 * ahead of the store: counted from when the answer came, as if the store had said it only then.
 */
export class StoreClock {
  readonly #engine: Engine
  #stored = 0
  #askedAt = Number.NEGATIVE_INFINITY

  constructor(engine: Engine) {
    this.#engine = engine
  }

  /** Asks if the last answer is older than this. Rejects when the store does not answer. */
  async now(oldest: number): Promise<number> {
    const { world } = this.#engine
    if (world.now(true) - this.#askedAt > oldest) {
      const stored = await this.#engine.look('the time of the store', (store) => store.now?.())
      this.#stored = stored
      this.#askedAt = world.now(true)
    }
    return this.last
  }

  /** By the last answer, however old. By the local clock if there was none. */
  get last(): number {
    const { world } = this.#engine
    if (this.#askedAt === Number.NEGATIVE_INFINITY) return world.date()
    return this.#stored + (world.now(true) - this.#askedAt) * (1 - DRIFT)
  }
}
