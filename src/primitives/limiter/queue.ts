import { onAbort } from '../../core/abort-fanout.js'
import type { World } from '../../util/world.js'

interface LimiterWaiter<T> {
  cost: number
  resolve: (answer: T) => void
  reject: (error: unknown) => void
  leave: () => void
}

interface LimiterAnswer {
  allowed: boolean
  remaining: number
  retryAfterMs: number
}

/** Shortest pause after a refusal, in milliseconds. Timers are not exact below it, and a shorter one would become a busy loop. */
const SHORTEST_PAUSE_MS = 1

/** The waiters of this process for one key of a limiter: first come, first served, and only the first of them asks the store. */
export class LimiterQueue<T extends LimiterAnswer> {
  readonly #world: World
  readonly #take: (cost: number) => Promise<T>
  readonly #onEmpty: () => void
  readonly #waiters = new Set<LimiterWaiter<T>>()
  #asking = false
  #wake: (() => void) | undefined

  constructor(world: World, take: (cost: number) => Promise<T>, onEmpty: () => void) {
    this.#world = world
    this.#take = take
    this.#onEmpty = onEmpty
  }

  wait(cost: number, signals: readonly AbortSignal[]): Promise<T> {
    return new Promise((resolve, reject) => {
      const cancel = (signal: AbortSignal): void => {
        const first = this.#waiters.values().next().value === waiter
        waiter.leave()
        reject(signal.reason)
        // The next waiter may cost less, and pass sooner.
        if (first) this.#wake?.()
      }
      const waiter: LimiterWaiter<T> = {
        cost,
        resolve,
        reject,
        leave: () => {
          this.#waiters.delete(waiter)
          for (const unsubscribe of subscriptions) unsubscribe()
        },
      }
      const subscriptions = signals.map((signal) => onAbort(signal, () => cancel(signal)))
      this.#waiters.add(waiter)
      if (!this.#asking) void this.#serve()
    })
  }

  async #serve(): Promise<void> {
    this.#asking = true
    let room = 0
    while (this.#waiters.size > 0) {
      const { first, cost, many } = this.#front(room)
      room = 0
      try {
        const answer = await this.#take(cost)
        if (answer.allowed) {
          this.#admit(cost, answer)
          room = answer.remaining
        } else if (!many && this.#waiters.has(first)) await this.#pause(answer.retryAfterMs)
      } catch (error) {
        // Without the queue all waiters would have asked at this moment, and failed.
        for (const waiter of [...this.#waiters]) {
          waiter.leave()
          waiter.reject(error)
        }
      }
    }
    this.#asking = false
    this.#onEmpty()
  }

  /** The cost of the first waiter, and of as many after it as there was room for at the last answer. */
  #front(room: number): { first: LimiterWaiter<T>; cost: number; many: boolean } {
    const first = this.#waiters.values().next().value as LimiterWaiter<T>
    let cost = 0
    let count = 0
    for (const waiter of this.#waiters) {
      if (count > 0 && cost + waiter.cost > room) break
      cost += waiter.cost
      count++
    }
    return { first, cost, many: count > 1 }
  }

  /** What was taken for a waiter that left meanwhile goes to the waiters behind it. */
  #admit(cost: number, answer: T): void {
    let left = cost
    for (const waiter of [...this.#waiters]) {
      if (waiter.cost > left) return
      left -= waiter.cost
      waiter.leave()
      waiter.resolve(answer)
    }
  }

  async #pause(ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const cancel = this.#world.after(Math.max(ms, SHORTEST_PAUSE_MS), resolve, true)
      this.#wake = () => {
        cancel()
        resolve()
      }
    })
    this.#wake = undefined
  }
}
