import type { Failure, TakeAnswer } from '../../store.js'
import { TransientMap } from '../../util/transient-map.js'

type TakeOutcome = TakeAnswer | Failure

interface PendingTake {
  cost: number
  resolve: (outcome: TakeOutcome) => void
}

/** The takes of one key that have not been sent yet. */
interface TakeLane {
  key: string
  takes: PendingTake[]
}

/**
 * Sends takes of one key together: those of one turn of the event loop, and those that are made while a request for the
 * key is in flight. They happen at the same moment, so taking the sum is the same as taking them one after the other, as
 * long as the sum fits; otherwise those that fit are taken. However many callers there are, a key costs the store one request
 * at a time.
 */
export class TakeCoalescer {
  readonly #takeFromStore: (key: string, cost: number) => Promise<TakeOutcome>
  /** The largest cost that can be taken at once. */
  readonly #most: number
  /** One for every key with a request in flight, or due in this turn of the event loop. */
  readonly #lanes = new TransientMap<string, TakeLane>()
  #due: TakeLane[] = []

  constructor(takeFromStore: (key: string, cost: number) => Promise<TakeOutcome>, most: number) {
    this.#takeFromStore = takeFromStore
    this.#most = most
  }

  take(key: string, cost: number): Promise<TakeOutcome> {
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

  /**
   * Flush on the next tick: when the running callback has returned or, if it is a microtask, when all microtasks have
   * run. Takes that are made until then travel in the same flush.
   */
  #schedule(lane: TakeLane): void {
    if (this.#due.push(lane) === 1) process.nextTick(this.#flush)
  }

  readonly #flush = (): void => {
    const due = this.#due
    this.#due = []
    for (const lane of due) this.#send(lane)
  }

  /** By callback: a take that is alone, as nearly all are if there are many keys, costs no promise more than its request. */
  #send(lane: TakeLane): void {
    const { key, takes } = lane
    lane.takes = []
    if (takes.length > 1) return void this.#takeSum(key, takes, this.#most).then((failure) => this.#over(lane, failure))
    const only = takes[0] as PendingTake
    void this.#takeFromStore(key, only.cost).then((outcome) => {
      only.resolve(outcome)
      this.#over(lane, 'granted' in outcome ? outcome : undefined)
    })
  }

  /** The request for this key is answered. */
  #over(lane: TakeLane, failure: Failure | undefined): void {
    if (failure) {
      // The takes that waited for this request would have failed with it.
      for (const { resolve } of lane.takes) resolve(failure)
      lane.takes = []
    }
    if (lane.takes.length > 0) this.#schedule(lane)
    else this.#lanes.delete(lane.key)
  }

  async #takeOne(key: string, take: PendingTake): Promise<TakeOutcome> {
    const outcome = await this.#takeFromStore(key, take.cost)
    take.resolve(outcome)
    return outcome
  }

  /** `room`: how much is likely to fit. Each round settles at least one take. Returns the failure, if the store failed. */
  async #takeSum(key: string, takes: readonly PendingTake[], room: number): Promise<Failure | undefined> {
    let sum = 0
    let fit = 0
    for (const { cost } of takes) {
      if (sum + cost > room) break
      sum += cost
      fit++
    }
    const [next, ...rest] = takes.slice(fit)
    const failures = await Promise.all([
      fit > 0 ? this.#takeFitting(key, takes.slice(0, fit), sum) : undefined,
      next ? this.#takeRest(key, next, rest) : undefined,
    ])
    return failures[0] ?? failures[1]
  }

  async #takeFitting(key: string, takes: readonly PendingTake[], sum: number): Promise<Failure | undefined> {
    const outcome = await this.#takeFromStore(key, sum)
    if ('granted' in outcome) {
      for (const { resolve } of takes) resolve(outcome)
      return outcome
    }
    if (!outcome.allowed && takes.length > 1) {
      return this.#takeSum(key, takes, outcome.remaining < sum ? outcome.remaining : 0)
    }
    let later = outcome.allowed ? sum : 0
    for (const { cost, resolve } of takes) {
      if (outcome.allowed) later -= cost
      const limits = outcome.limits?.map((state) => ({ ...state, remaining: state.remaining + later }))
      resolve({ ...outcome, remaining: outcome.remaining + later, ...(limits ? { limits } : {}) })
    }
    return undefined
  }

  /** The first take that probably does not fit, and those after it: one request decides for all that cost as much or more. */
  async #takeRest(key: string, next: PendingTake, rest: readonly PendingTake[]): Promise<Failure | undefined> {
    const outcome = await this.#takeOne(key, next)
    const failed = 'granted' in outcome
    const same = (take: PendingTake): boolean => failed || (!outcome.allowed && take.cost >= next.cost)
    for (const take of rest) if (same(take)) take.resolve(outcome)
    if (failed) return outcome
    const others = rest.filter((take) => !same(take))
    return others.length > 0 ? this.#takeSum(key, others, outcome.remaining) : undefined
  }
}
