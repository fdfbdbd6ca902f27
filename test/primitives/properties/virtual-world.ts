import { randomBytes } from 'node:crypto'
import type { World } from '../../../src/kit/world.js'

interface Timer {
  at: number
  run: () => void
}

/** Time that passes only when told to, and chance that repeats itself. */
export class VirtualWorld implements World {
  #now = 1_700_000_000_000
  readonly #timers = new Set<Timer>()
  #state: number

  constructor(seed: number) {
    this.#state = (seed >>> 0) % 2_147_483_646
  }

  readonly now = (): number => this.#now
  readonly date = (): number => this.#now
  readonly bytes = (): Uint8Array => randomBytes(16)

  /** Whole numbers modulo a prime: the same seed gives the same chance. */
  readonly random = (): number => {
    this.#state = ((this.#state + 1) * 48_271) % 2_147_483_647
    return this.#state / 2_147_483_647
  }

  readonly after = (ms: number, run: () => void): (() => void) => {
    // Never nothing at all: whoever is called a hair too early and asks for the rest would be called for ever.
    const timer = { at: this.#now + Math.max(ms, 0.01), run }
    this.#timers.add(timer)
    return () => this.#timers.delete(timer)
  }

  /** Everything that is due until then happens, in order. */
  async pass(ms: number): Promise<void> {
    const end = this.#now + ms
    for (;;) {
      let next: Timer | undefined
      for (const timer of this.#timers) if (timer.at <= end && (!next || timer.at < next.at)) next = timer
      if (!next) break
      this.#timers.delete(next)
      this.#now = Math.max(this.#now, next.at)
      next.run()
      await this.settle()
    }
    this.#now = end
    await this.settle()
  }

  /** What is under way without waiting for time. */
  async settle(): Promise<void> {
    for (let i = 0; i < 2; i++) await new Promise((resolve) => setImmediate(resolve))
  }
}
