/**
 * Repeating a transaction while another process writes to the file, without blocking the event loop for long.
 *
 * @module
 */
import { ClosedError } from '../../errors.js'
import type { World } from '../../util/world.js'
import type { Awaitable } from '../../store.js'
import { explain, isBusy, stillLocked } from './errors.js'

/**
 * Tries that block the event loop, about 0.2 ms apart, so 4 ms in all. A transaction of another process takes about 50 µs:
 * blocking for it is cheaper than a timer.
 */
const BLOCKING_TRIES = 20
/** Bounds of one blocking pause, in milliseconds. At random in between: processes in step would collide again and again. */
const SHORTEST_PAUSE_MS = 0.05
const PAUSE_SPREAD_MS = 0.3
/** Longest pause between tries that do not block, in milliseconds: a file that becomes free is noticed within it. */
const LONGEST_RETRY_MS = 20
/** Milliseconds after which a locked file counts as unavailable. Well below `timeoutMs`, so that the caller is told why. */
const GIVE_UP_MS = 1_000
/** Milliseconds for which the calls that queued up may keep the event loop, once the file is free again. */
const SLICE_MS = 10

interface QueuedCall {
  work: () => unknown
  since: number
  resolve: (result: never) => void
  reject: (error: unknown) => void
}

/** A cell that nothing ever notifies: Atomics.wait on it is a pause. */
const pauseCell = new Int32Array(new SharedArrayBuffer(4))

export class WriteRetry {
  readonly #path: string
  readonly #world: World
  /** First come, first served: a release that cleans up after an acquire must not overtake it. */
  #queue: QueuedCall[] = []
  #closed = false

  constructor(path: string, world: World) {
    this.#path = path
    this.#world = world
  }

  /** Runs the work now if the file is free, and returns its result without a promise; else as soon as it is. Never throws. */
  run<T>(work: () => T): Awaitable<T> {
    if (this.#closed) return Promise.reject(this.#closedError())
    if (this.#queue.length === 0) {
      try {
        return work()
      } catch (error) {
        if (!isBusy(error)) return Promise.reject(explain(this.#path, error))
      }
      try {
        return this.#runBlocking(work)
      } catch (error) {
        if (!isBusy(error)) return Promise.reject(explain(this.#path, error))
      }
    }
    return new Promise((resolve, reject) => {
      this.#queue.push({ work, since: this.#world.now(), resolve, reject })
      if (this.#queue.length === 1) this.#retry(1)
    })
  }

  /** Why calls are not answered right now; undefined: they are. */
  get outage(): unknown {
    const [first] = this.#queue
    return first && stillLocked(this.#path, this.#world.now() - first.since, undefined)
  }

  close(): void {
    this.#closed = true
    for (const call of this.#queue.splice(0)) call.reject(this.#closedError())
  }

  #runBlocking<T>(work: () => T): T {
    for (let tries = 1; ; tries++) {
      Atomics.wait(pauseCell, 0, 0, SHORTEST_PAUSE_MS + this.#world.random() * PAUSE_SPREAD_MS)
      try {
        return work()
      } catch (error) {
        if (!isBusy(error) || tries === BLOCKING_TRIES) throw error
      }
    }
  }

  #retry(attempt: number): void {
    // The timer keeps the process alive, because its callers await an answer. Calls are rejected after GIVE_UP_MS at the latest.
    const pauseMs = this.#world.random() * Math.min(2 ** attempt, LONGEST_RETRY_MS)
    this.#world.after(pauseMs, () => this.#runQueued(attempt), true)
  }

  #runQueued(attempt: number): void {
    const sliceEnd = this.#world.now() + SLICE_MS
    while (this.#queue.length > 0) {
      const call = this.#queue[0] as QueuedCall
      try {
        const result = call.work()
        this.#queue.shift()
        call.resolve(result as never)
        attempt = 0
      } catch (error) {
        if (isBusy(error)) {
          this.#rejectOverdue(error)
          break
        }
        this.#queue.shift()
        call.reject(explain(this.#path, error))
      }
      if (this.#world.now() > sliceEnd) break
    }
    if (this.#queue.length > 0) this.#retry(attempt + 1)
  }

  #rejectOverdue(error: unknown): void {
    const now = this.#world.now()
    while (this.#queue.length > 0) {
      const call = this.#queue[0] as QueuedCall
      if (now - call.since < GIVE_UP_MS) return
      this.#queue.shift()
      call.reject(stillLocked(this.#path, now - call.since, error))
    }
  }

  #closedError(): ClosedError {
    return new ClosedError(`the SQLite store ${this.#path} has been closed`)
  }
}
