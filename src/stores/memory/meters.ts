import { type Meter, emptyMeter, idleAt, takeFrom } from '../../kit/rate.js'
import type { World } from '../../kit/world.js'
import type { TakeAnswer, TakeRequest } from '../../store.js'

/** Sweep idle meters after this many calls, so that keys seen once do not stay for ever. */
const SWEEP_EVERY = 10_000

interface Account {
  meters: Meter[]
  shape: string
  idleAt: number
}

/** The rate limits of a memory store. */
export class Meters {
  readonly #world: World
  readonly #accounts = new Map<string, Account>()
  #calls = 0

  constructor(world: World) {
    this.#world = world
  }

  take(requests: readonly TakeRequest[]): TakeAnswer[] {
    const now = this.#world.now()
    this.#calls += requests.length
    if (this.#calls >= SWEEP_EVERY) this.#sweep(now)
    return requests.map((request) => {
      const { key, limits } = request
      // Limits that were configured anew begin anew.
      const shape = limits.map((limit) => `${limit.algorithm}/${limit.perMs}`).join()
      let account = this.#accounts.get(key)
      if (account?.shape !== shape) {
        account = { meters: limits.map(emptyMeter), shape, idleAt: 0 }
        this.#accounts.set(key, account)
      }
      const answer = takeFrom(account.meters, request, now)
      account.idleAt = idleAt(account.meters, limits)
      return answer
    })
  }

  #sweep(now: number): void {
    this.#calls = 0
    for (const [key, account] of this.#accounts) if (account.idleAt <= now) this.#accounts.delete(key)
  }
}
