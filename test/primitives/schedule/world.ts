import { realWorld, type World } from '../../../src/kit/world.js'

interface Timer {
  at: number
  run: () => void
}

/** Time that passes only when told to, so that a night takes a moment. */
export class VirtualWorld implements World {
  readonly random = (): number => 0.5
  readonly bytes: World['bytes'] = realWorld.bytes
  #now: number
  #timers = new Set<Timer>()

  constructor(start: string) {
    this.#now = Date.parse(start)
  }

  readonly now = (): number => this.#now
  readonly date = (): number => this.#now

  readonly after = (ms: number, run: () => void): (() => void) => {
    const timer = { at: this.#now + Math.max(ms, 0), run }
    this.#timers.add(timer)
    return () => this.#timers.delete(timer)
  }

  /** Everything due until then happens, in order. */
  async advanceTo(time: string | number): Promise<void> {
    const target = typeof time === 'number' ? time : Date.parse(time)
    await this.settle()
    for (;;) {
      let next: Timer | undefined
      for (const timer of this.#timers) if (timer.at <= target && (!next || timer.at < next.at)) next = timer
      if (!next) break
      this.#timers.delete(next)
      this.#now = Math.max(this.#now, next.at)
      next.run()
      await this.settle()
    }
    this.#now = Math.max(this.#now, target)
    await this.settle()
  }

  /** The machine sleeps: time passes, and no timer runs until it wakes. */
  async sleepTo(time: string): Promise<void> {
    this.#now = Date.parse(time)
    await this.advanceTo(this.#now)
  }

  /** What is under way without waiting for time. */
  async settle(): Promise<void> {
    for (let i = 0; i < 20; i++) await new Promise((resolve) => setImmediate(resolve))
  }

  /** The same time, on a clock that is wrong by so much. */
  skewed(ms: number): World {
    const { after, random, bytes } = this
    return { after, random, bytes, now: () => this.#now + ms, date: () => this.#now + ms }
  }
}
