import { onAbort } from '../core/cancel.js'
import type { World } from '../kit/world.js'

interface Waiter<T> {
  cost: number
  resolve: (answer: T) => void
  reject: (error: unknown) => void
  leave: () => void
}

interface Answer {
  allowed: boolean
  remaining: number
  retryAfterMs: number
}

/** A timer is not exact below this, and a refusal that ends sooner must not become a busy loop. */
const SHORTEST_PAUSE_MS = 1

/** Those in this process who wait for one key of a limiter: first come, first served, and only the first of them asks. */
export class WaitingLine<T extends Answer> {
  readonly #world: World
  readonly #take: (cost: number) => Promise<T>
  readonly #onEmpty: () => void
  readonly #waiters = new Set<Waiter<T>>()
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
        // The next one may want less, and pass sooner.
        if (first) this.#wake?.()
      }
      const waiter: Waiter<T> = {
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
        // All of them would have asked at this moment, had they not waited for each other.
        for (const waiter of [...this.#waiters]) {
          waiter.leave()
          waiter.reject(error)
        }
      }
    }
    this.#asking = false
    this.#onEmpty()
  }

  /** What the first costs, and as many after it as there was room for a moment ago. */
  #front(room: number): { first: Waiter<T>; cost: number; many: boolean } {
    const first = this.#waiters.values().next().value as Waiter<T>
    let cost = 0
    let count = 0
    for (const waiter of this.#waiters) {
      if (count > 0 && cost + waiter.cost > room) break
      cost += waiter.cost
      count++
    }
    return { first, cost, many: count > 1 }
  }

  /** Who left while we asked leaves what was taken for him to those behind. */
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
