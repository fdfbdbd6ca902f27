import { type Meter, emptyMeter, idleAt, takeFrom } from '../../util/rate.js'
import type { World } from '../../util/world.js'
import type { Limit, TakeAnswer, TakeRequest } from '../../store.js'

/** So many idle keys may stay: most are used again. Keys are swept when they are twice as many as were in use the last time. */
const MOST_IDLE = 20_000

interface KeyMeters {
  meters: Meter[]
  /** As they were last asked for. A limiter passes the same array each time. */
  limits: readonly Limit[]
  /** Changes when the limits are configured anew. */
  shape: string
  idleAt: number
}

export class MemoryRateLimits {
  readonly #world: World
  readonly #byKey = new Map<string, KeyMeters>()
  #sweepAt = MOST_IDLE

  constructor(world: World) {
    this.#world = world
  }

  take(requests: readonly TakeRequest[]): TakeAnswer[] {
    const now = this.#world.now()
    if (this.#byKey.size >= this.#sweepAt) this.#sweep(now)
    return requests.map((request) => {
      const { key, limits } = request
      const before = this.#byKey.get(key)
      const known = before?.limits === limits ? before : this.#configure(key, limits, before)
      const answer = takeFrom(known.meters, request, now)
      known.idleAt = idleAt(known.meters, limits)
      return answer
    })
  }

  /** Meters of limits that have been configured differently since mean nothing: such a key starts with empty ones. */
  #configure(key: string, limits: readonly Limit[], before: KeyMeters | undefined): KeyMeters {
    const shape = limits.map((limit) => `${limit.algorithm}/${limit.perMs}`).join()
    const meters = before?.shape === shape ? before.meters : limits.map(emptyMeter)
    const known = { meters, limits, shape, idleAt: 0 }
    this.#byKey.set(key, known)
    return known
  }

  #sweep(now: number): void {
    for (const [key, known] of this.#byKey) if (known.idleAt <= now) this.#byKey.delete(key)
    this.#sweepAt = MOST_IDLE + 2 * this.#byKey.size
  }
}
