import type { LeaseholdError, LockLostError } from '../errors.js'

/** What every event about a lock carries. */
export interface LockFacts {
  /** As the caller named it, without the namespace. */
  name: string
  /** `lock`, `semaphore`, `election`, … */
  kind: string
  holder: string
  mode: 'exclusive' | 'shared'
  fencingToken: bigint
  /** Until when the holder may trust it, unless renewed. */
  expiresAt: Date
}

/** The events of `locks.on(…)`, each with its facts. */
export interface LockEvents {
  acquired: LockFacts & { waitedMs: number }
  released: LockFacts & { heldMs: number }
  renewed: LockFacts
  lost: LockFacts & { heldMs: number; error: LockLostError }
  /** Garbage-collected without release: nobody can release it any more, so it is no longer renewed. */
  abandoned: LockFacts
  timeout: { name: string; kind: string; waitedMs: number; heldBy: string | undefined }
  /** Something failed in the background, and will be tried again or runs out by itself. */
  error: { name: string; kind: string; doing: 'acquire' | 'renew' | 'release'; error: LeaseholdError | Error }
}

type Listener<E extends keyof LockEvents> = (facts: LockEvents[E]) => void

/** Events without listeners cost nothing, and an `error` without listener does nothing. */
export class Events {
  readonly #listeners = new Map<keyof LockEvents, Set<(facts: never) => void>>()

  on<E extends keyof LockEvents>(event: E, listener: Listener<E>): void {
    let listeners = this.#listeners.get(event)
    if (!listeners) this.#listeners.set(event, (listeners = new Set()))
    listeners.add(listener)
  }

  off<E extends keyof LockEvents>(event: E, listener: Listener<E>): void {
    const listeners = this.#listeners.get(event)
    listeners?.delete(listener)
    if (listeners?.size === 0) this.#listeners.delete(event)
  }

  has(event: keyof LockEvents): boolean {
    return this.#listeners.size > 0 && this.#listeners.has(event)
  }

  /** Facts are only put together when somebody listens. */
  emit<E extends keyof LockEvents>(event: E, facts: () => LockEvents[E]): void {
    if (!this.has(event)) return
    const told = facts()
    for (const listener of [...(this.#listeners.get(event) as Set<Listener<E>>)]) {
      try {
        listener(told)
      } catch (error) {
        // A listener's own mistake must not end a heartbeat.
        process.emitWarning(error instanceof Error ? error : String(error), 'LeaseholdListenerWarning')
      }
    }
  }
}
