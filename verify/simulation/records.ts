import type { Actor, Operation } from './actor.js'

type Accuse = (rule: string, text: string) => void

/** What the results of `runOnce` have to be: one per key. */
export class Results {
  readonly #accuse: Accuse
  readonly #returned = new Map<string, string>()

  constructor(accuse: Accuse) {
    this.#accuse = accuse
  }

  /** A caller got a result of this key. */
  has(key: string): boolean {
    return this.#returned.has(key)
  }

  /** A run begins. */
  runs({ id }: Operation, key: string): void {
    const recorded = this.#returned.get(key)
    if (recorded !== undefined) this.#accuse('runs again', `"${key}": #${id} runs after "${recorded}" was returned`)
  }

  /** A caller got this result. */
  returned({ id }: Operation, key: string, result: string): void {
    const recorded = this.#returned.get(key)
    if (recorded === undefined) this.#returned.set(key, result)
    else if (recorded !== result) this.#accuse('two results', `"${key}": #${id} gets "${result}" after "${recorded}"`)
  }
}

/** The events of each tick of a schedule. */
export class TickBook {
  readonly #accuse: Accuse
  readonly #ticks = new Map<number, Map<string, number>>()
  /** The last event of each instance about a tick. */
  readonly #last = new Map<string, string>()

  constructor(accuse: Accuse) {
    this.#accuse = accuse
  }

  report(actor: Actor, event: string, tick: number, first: number = tick): void {
    const events = this.#of(tick)
    events.set(event, (events.get(event) ?? 0) + 1)
    this.#last.set(`${tick} ${actor.label}`, event)
    // Every tick from the first to the last one was missed.
    if (event === 'missed') for (let at = first; at < tick; at += 1_000) this.#of(at).set('missed', 1)
    if (event === 'started' && events.get('started') !== 1) {
      this.#accuse('tick twice', `${actor.label} starts ${new Date(tick).toISOString()} again`)
    }
  }

  /** Ticks until then: an instance that says that a tick ran elsewhere must be right. */
  finish(until: number): void {
    for (const [tick, events] of this.#ticks) {
      if (tick > until || !events.has('elsewhere')) continue
      // An instance that had claimed it and could not run it says so last.
      const failed = [...this.#last].some(([key, event]) => key.startsWith(`${tick} `) && event === 'error')
      if (!failed && !events.has('started') && !events.has('skipped') && !events.has('missed')) {
        this.#accuse(
          'tick nobody ran',
          `${new Date(tick).toISOString()} is said to have run elsewhere, and nobody ran it`,
        )
      }
    }
  }

  #of(tick: number): Map<string, number> {
    let events = this.#ticks.get(tick)
    if (!events) this.#ticks.set(tick, (events = new Map()))
    return events
  }
}

/** What limiters allowed. */
export class Allowances {
  readonly #accuse: Accuse
  readonly #allowed = new Map<string, { from: number; sum: number }>()

  constructor(accuse: Accuse) {
    this.#accuse = accuse
  }

  /**
   * The allowance of a key counts from the first request of anybody: what a caller took and did not wait for is passed on
   * to the next one of its process.
   */
  asked(key: string, at: number): void {
    if (!this.#allowed.has(key)) this.#allowed.set(key, { from: at, sum: 0 })
  }

  /** `asked` and `now` in true time; clocks may run 1 % faster. */
  took(
    key: string,
    cost: number,
    rule: { limit: number; per: number; burst: number },
    asked: number,
    now: number,
  ): void {
    let allowed = this.#allowed.get(key)
    if (!allowed) this.#allowed.set(key, (allowed = { from: asked, sum: 0 }))
    allowed.from = Math.min(allowed.from, asked)
    allowed.sum += cost
    const most = rule.burst + (rule.limit / rule.per) * (now - allowed.from) * 1.01 + 0.001
    if (allowed.sum > most) this.#accuse('rate', `"${key}": ${allowed.sum} were allowed instead of ${most.toFixed(1)}`)
  }
}
