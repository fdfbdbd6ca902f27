import { onAbort } from '../../core/abort-fanout.js'
import type { Engine } from '../../core/engine.js'
import type { Lock } from '../../core/lock.js'
import type { AcquireRequest } from '../../core/request.js'
import { StoreUnavailableError } from '../../errors.js'
import type { World } from '../../util/world.js'
import { ALL, type Refusal } from '../../store.js'

/**
 * How long, in milliseconds, a waiter waits for one slot before it tries all of them again: at random between this
 * and twice as long. Longer would miss slots that are freed meanwhile, shorter would send more requests.
 */
const SLOT_WAIT_MS = 250

/** The reason of aborts by `within` itself, to tell them from those of the caller. */
const TIME_IS_UP = new Error('time is up')

/**
 * A semaphore on a store that cannot count: each permit is a lock of its own, because counting by majority would admit
 * too many, and a session lock knows only one holder. There is no common queue, so the longest waiter is not always granted
 * first.
 */
export class Slots {
  readonly #engine: Engine
  readonly #permits: number

  constructor(engine: Engine, permits: number) {
    this.#engine = engine
    this.#permits = permits
  }

  /** One attempt at each slot, from a random one on. Null: all are held. */
  async tryAcquire(given: AcquireRequest): Promise<Lock | null> {
    const first = this.#randomSlot()
    const request = { ...given, since: given.since ?? this.#engine.world.now() }
    for (let i = 0; i < this.#permits; i++) {
      const lock = await this.#engine.tryAcquire(this.#requestFor(request, (first + i) % this.#permits))
      if (lock) return lock
    }
    return null
  }

  async acquire(request: AcquireRequest): Promise<Lock> {
    const { world } = this.#engine
    const since = world.now()
    let refusal: Refusal | undefined
    const onRefusal = (latest: Refusal): boolean => {
      refusal = latest
      return false
    }
    let failure: StoreUnavailableError | undefined
    for (;;) {
      try {
        const lock = await this.#tryAll({ ...request, since, onRefusal }, since)
        if (lock) return lock
        failure = undefined
      } catch (error) {
        if (!(error instanceof StoreUnavailableError)) throw error
        failure = error
      }
      const waitedMs = world.now() - since
      if (waitedMs >= request.waitMs) throw this.#timeoutError(request, waitedMs, refusal, failure)
      const lock = await this.#waitForOne({ ...request, since, onRefusal }, request.waitMs - waitedMs)
      if (lock) return lock
    }
  }

  async #tryAll(request: AcquireRequest, since: number): Promise<Lock | null | undefined> {
    // Without a wait, the store's own time limit bounds the attempt.
    if (request.waitMs === 0) return this.tryAcquire(request)
    const { world } = this.#engine
    const left = since + request.waitMs - world.now()
    return within(world, left, request.signal, (signal) => this.tryAcquire({ ...request, signal }))
  }

  /** Settles when the slot is granted or the time is up. During an outage this is also the pause between two attempts. */
  async #waitForOne(request: AcquireRequest, left: number): Promise<Lock | undefined> {
    const { world } = this.#engine
    const slot = this.#requestFor(request, this.#randomSlot())
    return within(world, Math.min(left, SLOT_WAIT_MS * (1 + world.random())), request.signal, (signal) =>
      this.#engine.acquire({ ...slot, waitMs: Number.POSITIVE_INFINITY, signal }),
    )
  }

  #timeoutError(
    request: AcquireRequest,
    waitedMs: number,
    refusal: Refusal | undefined,
    failure: Error | undefined,
  ): Error {
    const { name } = request
    if (failure || !refusal) {
      const reason = failure?.message ?? `${this.#engine.store.name} did not answer in time`
      return new StoreUnavailableError(`"${name}" could not be acquired: ${reason}`, { cause: failure })
    }
    return this.#engine.timedOut(request, { waitedMs, heldBy: refusal.blocker?.owner })
  }

  #randomSlot(): number {
    return Math.floor(this.#engine.world.random() * this.#permits)
  }

  #requestFor(request: AcquireRequest, index: number): AcquireRequest {
    return { ...request, key: `${slotPrefix(request.key)}${index}`, weight: ALL, capacity: ALL }
  }
}

/** All slots of a semaphore have keys that begin like this. */
export function slotPrefix(key: string): string {
  return `${key}#`
}

/** Whether `slot` is a slot of this semaphore, and not of another one whose name contains a number sign. */
export function isSlotOf(key: string, slot: string): boolean {
  return slot.startsWith(slotPrefix(key)) && /^\d+$/.test(slot.slice(slotPrefix(key).length))
}

/** What `request` resolves to, or undefined when `ms` have passed. An abort of the caller's signal rejects with its reason. */
async function within<T>(
  world: World,
  ms: number,
  signal: AbortSignal | undefined,
  request: (signal: AbortSignal) => Promise<T>,
): Promise<T | undefined> {
  if (signal?.aborted) throw signal.reason
  const limit = new AbortController()
  const cancel = Number.isFinite(ms) ? world.after(ms, () => limit.abort(TIME_IS_UP), true) : undefined
  const stopListening = signal && onAbort(signal, () => limit.abort(signal.reason))
  try {
    return await request(limit.signal)
  } catch (error) {
    if (error === TIME_IS_UP) return undefined
    throw error
  } finally {
    cancel?.()
    stopListening?.()
  }
}
