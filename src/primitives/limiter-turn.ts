import type { Failure, TakeAnswer } from '../store.js'

type Outcome = TakeAnswer | Failure

interface Take {
  cost: number
  resolve: (outcome: Outcome) => void
}

/**
 * Takes of one key in the same turn of the event loop travel as one: they happen at the same moment, so taking the sum
 * is the same as taking them one after the other, as long as all of it fits. If it does not, those that fit do.
 */
export class Turn {
  readonly #ask: (key: string, cost: number) => Promise<Outcome>
  /** More than this can never be taken at once. */
  readonly #most: number
  #takes = new Map<string, Take | Take[]>()

  constructor(ask: (key: string, cost: number) => Promise<Outcome>, most: number) {
    this.#ask = ask
    this.#most = most
  }

  take(key: string, cost: number): Promise<Outcome> {
    return new Promise((resolve) => {
      const take = { cost, resolve }
      const others = this.#takes.get(key)
      if (others === undefined) {
        if (this.#takes.size === 0) process.nextTick(this.#flush)
        this.#takes.set(key, take)
      } else if (Array.isArray(others)) others.push(take)
      else this.#takes.set(key, [others, take])
    })
  }

  readonly #flush = (): void => {
    const takes = this.#takes
    this.#takes = new Map()
    for (const [key, taken] of takes) {
      if (Array.isArray(taken)) void this.#together(key, taken, this.#most)
      else void this.#alone(key, taken)
    }
  }

  async #alone(key: string, take: Take): Promise<Outcome> {
    const outcome = await this.#ask(key, take.cost)
    take.resolve(outcome)
    return outcome
  }

  /** `room`: how much of it is likely to fit. Each round settles at least one of them. */
  async #together(key: string, takes: readonly Take[], room: number): Promise<void> {
    let sum = 0
    let fit = 0
    for (const { cost } of takes) {
      if (sum + cost > room) break
      sum += cost
      fit++
    }
    const [next, ...rest] = takes.slice(fit)
    await Promise.all([
      fit > 0 && this.#front(key, takes.slice(0, fit), sum),
      next !== undefined && this.#behind(key, next, rest),
    ])
  }

  async #front(key: string, takes: readonly Take[], sum: number): Promise<void> {
    if (takes.length === 1) return void (await this.#alone(key, takes[0] as Take))
    const outcome = await this.#ask(key, sum)
    if ('granted' in outcome) for (const { resolve } of takes) resolve(outcome)
    else if (!outcome.allowed) await this.#together(key, takes, outcome.remaining < sum ? outcome.remaining : 0)
    else {
      let later = sum
      for (const { cost, resolve } of takes) {
        later -= cost
        resolve({ ...outcome, remaining: outcome.remaining + later })
      }
    }
  }

  /** The first that probably does not fit, and those after it: they need not all ask to be told the same. */
  async #behind(key: string, next: Take, rest: readonly Take[]): Promise<void> {
    const outcome = await this.#alone(key, next)
    const same = (take: Take): boolean => 'granted' in outcome || (!outcome.allowed && take.cost >= next.cost)
    for (const take of rest) if (same(take)) take.resolve(outcome)
    const others = rest.filter((take) => !same(take))
    if (others.length > 0) await this.#together(key, others, 'granted' in outcome ? 0 : outcome.remaining)
  }
}
