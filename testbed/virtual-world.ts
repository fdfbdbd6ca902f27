/** Virtual time for tests of the core and of properties. */
import { randomBytes } from 'node:crypto'
import type { World } from '../src/util/world.js'

interface Timer {
  at: number
  run: () => void
}

/** Time that passes only on demand, and random numbers that repeat. */
export class VirtualWorld implements World {
  #now: number
  readonly #timers = new Set<Timer>()
  #state: number
  readonly #turns: number
  #cpuMs = 0

  /** `turns`: how many turns of the event loop the work needs that follows a timer. */
  constructor(seed: number, { start = 1_700_000_000_000, turns = 2 }: { start?: number; turns?: number } = {}) {
    this.#state = (seed >>> 0) % 2_147_483_646
    this.#now = start
    this.#turns = turns
  }

  readonly now = (): number => this.#now
  readonly date = (): number => this.#now
  readonly bytes = (): Uint8Array => randomBytes(16)
  readonly cpu = (): number => this.#cpuMs

  /** Whole numbers modulo a prime: the same seed gives the same sequence. */
  readonly random: () => number = () => {
    this.#state = ((this.#state + 1) * 48_271) % 2_147_483_647
    return this.#state / 2_147_483_647
  }

  readonly after = (ms: number, run: () => void): (() => void) => {
    // Never 0: code that is called a little too early and waits for the rest would be called for ever.
    const timer = { at: this.#now + Math.max(ms, 0.01), run }
    this.#timers.add(timer)
    return () => this.#timers.delete(timer)
  }

  /** As a process that is frozen: time passes, and no timer runs before the next `pass`. */
  freeze(ms: number): void {
    this.#now += ms
  }

  /** Runs everything that is due until then, in order. */
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

  /** Synchronous code runs for this long: time passes, and no timer fires. */
  block(ms: number): void {
    this.#now += ms
    this.#cpuMs += ms
  }

  /** Lets pending work that needs no time finish. */
  async settle(): Promise<void> {
    for (let i = 0; i < this.#turns; i++) await new Promise((resolve) => setImmediate(resolve))
  }
}
