import type { World } from '../util/world.js'
import type { LeaseId } from '../store.js'
import type { Batcher } from './batcher.js'

/** Pause after the first release that was not answered; doubled each time, up to LONGEST_PAUSE_MS. */
const FIRST_PAUSE_MS = 100
const LONGEST_PAUSE_MS = 2_000
/** A release is not tried for longer than this, however long the lease: a process should not talk to a store it left for ever. */
const LONGEST_MS = 300_000

/**
 * Releases what lost answers may have granted: in the background, with a time budget of its own, never with the
 * caller's signal, whose abort may be the reason for the clean-up. Closing waits for it.
 *
 * A release with a token can only end that very grant. One without a token ends whatever its owner has: the caller sees to
 * it that this owner is never used again.
 */
export class Cleanup {
  readonly #batcher: Batcher
  readonly #world: World
  readonly #underWay = new Set<Promise<unknown>>()
  readonly #pauses = new Set<() => void>()
  #hurried = false

  constructor(batcher: Batcher, world: World) {
    this.#batcher = batcher
    this.#world = world
  }

  /** Tries until the store has answered, or until the lease has ended by itself. */
  release(lease: LeaseId, ttlMs: number): Promise<void> {
    const { key, owner, token } = lease
    const until = this.#world.now() + Math.min(ttlMs, LONGEST_MS)
    return this.track(this.#release({ key, owner, token }, until))
  }

  /** Something else that has to end before the instance is closed. */
  track<T>(work: Promise<T>): Promise<T> {
    const tracked = work.finally(() => this.#underWay.delete(tracked))
    this.#underWay.add(tracked)
    return tracked
  }

  /**
   * From now on nothing is tried again. Settles when nothing is under way any more, what begins meanwhile included: the caller may
   * close the client next, and no release would be sent after that.
   */
  async finish(): Promise<void> {
    this.#hurried = true
    for (const end of this.#pauses) end()
    do {
      await Promise.all(this.#underWay)
      // An answer that has just come may have to be released, by code that is some microtasks away.
      await new Promise<void>((resolve) => process.nextTick(resolve))
      // Work that has just ended released its lock itself.
      await this.#batcher.released()
    } while (this.#underWay.size > 0)
  }

  async #release(lease: LeaseId, until: number): Promise<void> {
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS)) {
      const { outcome } = await this.#batcher.release(lease)
      if (outcome !== 'unknown' || this.#hurried || this.#world.now() >= until) return
      await this.#pause(pauseMs * (0.5 + this.#world.random() / 2))
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
