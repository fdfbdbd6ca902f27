/**
 * Waiting for one's turn at a file that others write to as well, without holding up the event loop.
 *
 * @module
 */
import { ClosedError } from '../../errors.js'
import type { World } from '../../kit/world.js'
import type { Awaitable } from '../../store.js'
import { explain, isBusy, stillLocked } from './trouble.js'

/** A transaction of another process takes about 50 µs: blocking for it, 0.2 ms at a time, is cheaper than a timer. */
const BLOCKING_TRIES = 20
/** A file that stays locked for this long counts as unavailable. Well below `timeoutMs`, so that the caller hears why. */
export const GIVE_UP_MS = 1_000
/** How long to keep the event loop for the calls that queued up, once the file is free again. */
const SLICE_MS = 10

interface Waiting {
  work: () => unknown
  since: number
  resolve: (result: never) => void
  reject: (error: unknown) => void
}

/** For Atomics.wait: nobody ever wakes it. */
const nobody = new Int32Array(new SharedArrayBuffer(4))

export class Turnstile {
  readonly #path: string
  readonly #world: World
  /** First come, first served within this process too: a release must not overtake the question it cleans up after. */
  #queue: Waiting[] = []
  #closed = false

  constructor(path: string, world: World) {
    this.#path = path
    this.#world = world
  }

  /** Runs the work now if the file is free, and answers without a promise; else as soon as it is. Never throws. */
  run<T>(work: () => T): Awaitable<T> {
    if (this.#closed) return Promise.reject(this.#closedError())
    if (this.#queue.length === 0) {
      try {
        return work()
      } catch (error) {
        if (!isBusy(error)) return Promise.reject(explain(this.#path, error))
      }
      try {
        return this.#standStill(work)
      } catch (error) {
        if (!isBusy(error)) return Promise.reject(explain(this.#path, error))
      }
    }
    return new Promise((resolve, reject) => {
      this.#queue.push({ work, since: this.#world.now(), resolve, reject })
      if (this.#queue.length === 1) this.#retry(1)
    })
  }

  close(): void {
    this.#closed = true
    for (const waiting of this.#queue.splice(0)) waiting.reject(this.#closedError())
  }

  #standStill<T>(work: () => T): T {
    for (let tries = 1; ; tries++) {
      Atomics.wait(nobody, 0, 0, 0.05 + this.#world.random() * 0.3)
      try {
        return work()
      } catch (error) {
        if (!isBusy(error) || tries === BLOCKING_TRIES) throw error
      }
    }
  }

  #retry(attempt: number): void {
    // Keeps the process alive: whoever awaits a call must get its answer. It ends by itself after GIVE_UP_MS.
    this.#world.after(this.#world.random() * Math.min(2 ** attempt, 20), () => this.#serve(attempt), true)
  }

  #serve(attempt: number): void {
    const sliceEnd = this.#world.now() + SLICE_MS
    while (this.#queue.length > 0) {
      const waiting = this.#queue[0] as Waiting
      try {
        const result = waiting.work()
        this.#queue.shift()
        waiting.resolve(result as never)
        attempt = 0
      } catch (error) {
        if (isBusy(error)) {
          this.#giveUpOn(error)
          break
        }
        this.#queue.shift()
        waiting.reject(explain(this.#path, error))
      }
      if (this.#world.now() > sliceEnd) break
    }
    if (this.#queue.length > 0) this.#retry(attempt + 1)
  }

  #giveUpOn(error: unknown): void {
    const now = this.#world.now()
    while (this.#queue.length > 0) {
      const waiting = this.#queue[0] as Waiting
      if (now - waiting.since < GIVE_UP_MS) return
      this.#queue.shift()
      waiting.reject(stillLocked(this.#path, now - waiting.since, error))
    }
  }

  #closedError(): ClosedError {
    return new ClosedError(`the SQLite store ${this.#path} has been closed`)
  }
}
