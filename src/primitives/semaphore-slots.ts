import type { Ask } from '../core/ask.js'
import { onAbort } from '../core/cancel.js'
import type { Engine } from '../core/engine.js'
import type { Lock } from '../core/lock.js'
import { LockTimeoutError, StoreUnavailableError } from '../errors.js'
import type { World } from '../kit/world.js'
import { ALL, type Refusal } from '../store.js'

/** Stands before one slot for about this long, then looks at all of them again. */
const STAND_MS = 250

/** Why a wait of ours ended that the caller did not end. */
const TIME_IS_UP = new Error('time is up')

/**
 * A semaphore on a store that cannot count: each permit is a lock of its own, because counting by majority would admit
 * too many, and a session lock knows only one holder. There is no common line, so who waits longest is not always served
 * first.
 */
export class Slots {
  readonly #engine: Engine
  readonly #permits: number

  constructor(engine: Engine, permits: number) {
    this.#engine = engine
    this.#permits = permits
  }

  /** One attempt at each, from a random one on: null when all are taken. */
  async tryAcquire(given: Ask): Promise<Lock | null> {
    const first = this.#any()
    const ask = { ...given, since: given.since ?? this.#engine.world.now() }
    for (let i = 0; i < this.#permits; i++) {
      const lock = await this.#engine.tryAcquire(this.#slot(ask, (first + i) % this.#permits))
      if (lock) return lock
    }
    return null
  }

  async acquire(ask: Ask): Promise<Lock> {
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
        const lock = await this.#lookAtAll({ ...ask, since, onRefusal }, since)
        if (lock) return lock
        failure = undefined
      } catch (error) {
        if (!(error instanceof StoreUnavailableError)) throw error
        failure = error
      }
      const waitedMs = world.now() - since
      if (waitedMs >= ask.waitMs) throw this.#gaveUp(ask, waitedMs, refusal, failure)
      const lock = await this.#standBeforeOne({ ...ask, since, onRefusal }, ask.waitMs - waitedMs)
      if (lock) return lock
    }
  }

  async #lookAtAll(ask: Ask, since: number): Promise<Lock | null | undefined> {
    // One attempt has the time that the store gives it.
    if (ask.waitMs === 0) return this.tryAcquire(ask)
    const { world } = this.#engine
    const left = since + ask.waitMs - world.now()
    return within(world, left, ask.signal, (signal) => this.tryAcquire({ ...ask, signal }))
  }

  /** Whoever frees it wakes us. In an outage this is also the pause between two looks. */
  async #standBeforeOne(ask: Ask, left: number): Promise<Lock | undefined> {
    const { world } = this.#engine
    const slot = this.#slot(ask, this.#any())
    return within(world, Math.min(left, STAND_MS * (1 + world.random())), ask.signal, (signal) =>
      this.#engine.acquire({ ...slot, waitMs: Number.POSITIVE_INFINITY, signal }),
    )
  }

  #gaveUp(ask: Ask, waitedMs: number, refusal: Refusal | undefined, failure: Error | undefined): Error {
    const { name, kind } = ask
    if (failure || !refusal) {
      const reason = failure?.message ?? `${this.#engine.store.name} did not answer in time`
      return new StoreUnavailableError(`"${name}" could not be acquired: ${reason}`, { cause: failure })
    }
    const heldBy = refusal.blocker?.owner
    this.#engine.events.emit('timeout', () => ({ name, kind, waitedMs, heldBy }))
    return new LockTimeoutError(name, { waitedMs, heldBy })
  }

  #any(): number {
    return Math.floor(this.#engine.world.random() * this.#permits)
  }

  #slot(ask: Ask, index: number): Ask {
    return { ...ask, key: `${slotPrefix(ask.key)}${index}`, weight: ALL, capacity: ALL }
  }
}

/** All slots of a semaphore have keys that begin like this. */
export function slotPrefix(key: string): string {
  return `${key}#`
}

/** Whether this is one of its slots, and not a slot of another semaphore whose name has a number sign in it. */
export function isSlotOf(key: string, slot: string): boolean {
  return slot.startsWith(slotPrefix(key)) && /^\d+$/.test(slot.slice(slotPrefix(key).length))
}

/** What `ask` answers, or undefined when `ms` have passed. The caller's own signal ends it too, with its own reason. */
async function within<T>(
  world: World,
  ms: number,
  signal: AbortSignal | undefined,
  ask: (signal: AbortSignal) => Promise<T>,
): Promise<T | undefined> {
  if (signal?.aborted) throw signal.reason
  const limit = new AbortController()
  const cancel = Number.isFinite(ms) ? world.after(ms, () => limit.abort(TIME_IS_UP), true) : undefined
  const stopListening = signal && onAbort(signal, () => limit.abort(signal.reason))
  try {
    return await ask(limit.signal)
  } catch (error) {
    if (error === TIME_IS_UP) return undefined
    throw error
  } finally {
    cancel?.()
    stopListening?.()
  }
}
