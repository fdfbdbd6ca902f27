import type { World } from '../kit/world.js'
import type { Lease } from '../store.js'
import type { Courier } from './courier.js'

/** A release that was not answered is tried this often: afterwards the lease runs out by itself. */
const TRIES = 5
const FIRST_PAUSE_MS = 100

/**
 * Takes back what may be ours in the store: in the background, with its own time, never with the caller's signal, which
 * may be why we clean up. Closing waits for it.
 */
export class CleanUp {
  readonly #courier: Courier
  readonly #world: World
  readonly #underWay = new Set<Promise<unknown>>()
  readonly #pauses = new Set<() => void>()
  #hurried = false

  constructor(courier: Courier, world: World) {
    this.#courier = courier
    this.#world = world
  }

  letGo(lease: Lease): Promise<void> {
    return this.lookAfter(this.#release(lease))
  }

  /** Something else that has to end before the instance is closed. */
  lookAfter<T>(work: Promise<T>): Promise<T> {
    const looking = work.finally(() => this.#underWay.delete(looking))
    this.#underWay.add(looking)
    return looking
  }

  /** From now on nothing is tried again. Settles when nothing is under way any more, what begins meanwhile included. */
  async finish(): Promise<void> {
    this.#hurried = true
    for (const end of this.#pauses) end()
    while (this.#underWay.size > 0) await Promise.all(this.#underWay)
  }

  async #release({ key, owner }: Lease): Promise<void> {
    for (let tries = 0; tries < TRIES; tries++) {
      const { outcome } = await this.#courier.release({ key, owner })
      if (outcome !== 'unknown' || this.#hurried) return
      await this.#pause(FIRST_PAUSE_MS * 2 ** tries * (0.5 + this.#world.random() / 2))
    }
  }

  async #pause(ms: number): Promise<void> {
    let end: (() => void) | undefined
    await new Promise<void>((resolve) => {
      const cancel = this.#world.after(ms, resolve)
      end = () => (cancel(), resolve())
      this.#pauses.add(end)
    })
    this.#pauses.delete(end as unknown as () => void)
  }
}
