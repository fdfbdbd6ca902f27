import type { Failure, TakeAnswer } from '../store.js'

type Outcome = TakeAnswer | Failure

interface Take {
  cost: number
  resolve: (outcome: Outcome) => void
}

/** The takes of one key that have not been sent yet. */
interface Lane {
  key: string
  takes: Take[]
}

/**
 * Takes of one key travel together: those of one turn of the event loop, and those that come while a question about the
 * key is under way. They happen at the same moment, so taking the sum is the same as taking them one after the other, as
 * long as all of it fits; if it does not, those that fit do. However many ask, a key costs the store one question at a time.
 */
export class Turn {
  readonly #ask: (key: string, cost: number) => Promise<Outcome>
  /** More than this can never be taken at once. */
  readonly #most: number
  /** Of every key that is asked about, or will be in this turn. */
  readonly #lanes = new Map<string, Lane>()
  #due: Lane[] = []

  constructor(ask: (key: string, cost: number) => Promise<Outcome>, most: number) {
    this.#ask = ask
    this.#most = most
  }

  take(key: string, cost: number): Promise<Outcome> {
    return new Promise((resolve) => {
      const lane = this.#lanes.get(key)
      if (lane) lane.takes.push({ cost, resolve })
      else {
        const opened = { key, takes: [{ cost, resolve }] }
        this.#lanes.set(key, opened)
        this.#schedule(opened)
      }
    })
  }

  /** After what this turn still has to do: whoever else was just answered gets aboard. */
  #schedule(lane: Lane): void {
    if (this.#due.push(lane) === 1) process.nextTick(this.#flush)
  }

  readonly #flush = (): void => {
    const due = this.#due
    this.#due = []
    for (const lane of due) void this.#drive(lane)
  }

  async #drive(lane: Lane): Promise<void> {
    const { key, takes } = lane
    lane.takes = []
    const only = takes.length === 1 ? (takes[0] as Take) : undefined
    const failure = await (only ? this.#alone(key, only) : this.#together(key, takes, this.#most))
    if (failure && 'granted' in failure) {
      // They would have failed with it, had they not waited.
      for (const { resolve } of lane.takes) resolve(failure)
      lane.takes = []
    }
    if (lane.takes.length > 0) this.#schedule(lane)
    else this.#lanes.delete(key)
  }

  async #alone(key: string, take: Take): Promise<Outcome> {
    const outcome = await this.#ask(key, take.cost)
    take.resolve(outcome)
    return outcome
  }

  /** `room`: how much of it is likely to fit. Each round settles at least one of them. Returns what failed. */
  async #together(key: string, takes: readonly Take[], room: number): Promise<Failure | undefined> {
    let sum = 0
    let fit = 0
    for (const { cost } of takes) {
      if (sum + cost > room) break
      sum += cost
      fit++
    }
    const [next, ...rest] = takes.slice(fit)
    const failures = await Promise.all([
      fit > 0 ? this.#front(key, takes.slice(0, fit), sum) : undefined,
      next ? this.#behind(key, next, rest) : undefined,
    ])
    return failures[0] ?? failures[1]
  }

  async #front(key: string, takes: readonly Take[], sum: number): Promise<Failure | undefined> {
    const outcome = await this.#ask(key, sum)
    if ('granted' in outcome) {
      for (const { resolve } of takes) resolve(outcome)
      return outcome
    }
    if (!outcome.allowed && takes.length > 1) {
      return this.#together(key, takes, outcome.remaining < sum ? outcome.remaining : 0)
    }
    let later = outcome.allowed ? sum : 0
    for (const { cost, resolve } of takes) {
      if (outcome.allowed) later -= cost
      const limits = outcome.limits?.map((state) => ({ ...state, remaining: state.remaining + later }))
      resolve({ ...outcome, remaining: outcome.remaining + later, ...(limits ? { limits } : {}) })
    }
    return undefined
  }

  /** The first that probably does not fit, and those after it: they need not all ask to be told the same. */
  async #behind(key: string, next: Take, rest: readonly Take[]): Promise<Failure | undefined> {
    const outcome = await this.#alone(key, next)
    const failed = 'granted' in outcome
    const same = (take: Take): boolean => failed || (!outcome.allowed && take.cost >= next.cost)
    for (const take of rest) if (same(take)) take.resolve(outcome)
    if (failed) return outcome
    const others = rest.filter((take) => !same(take))
    return others.length > 0 ? this.#together(key, others, outcome.remaining) : undefined
  }
}
