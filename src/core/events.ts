import type { LeaseholdError, LockLostError } from '../errors.js'
import { checkListener } from '../util/options.js'

/** What every event about a lock carries. */
export interface LockFacts {
  /** As the caller named it, without the namespace. */
  name: string
  /** Of the instance, if it has one. */
  namespace?: string | undefined
  /** `lock`, `semaphore`, `election`, … */
  kind: string
  holder: string
  mode: 'exclusive' | 'shared'
  fencingToken: bigint
  /** Until when the holder may trust it, unless renewed. */
  expiresAt: Date
  /** What the holder gave along. */
  metadata: unknown
}

/** The events of `locks.on(…)`, each with its facts. */
export interface LockEvents {
  acquired: LockFacts & { waitedMs: number }
  released: LockFacts & { heldMs: number }
  renewed: LockFacts
  lost: LockFacts & { heldMs: number; error: LockLostError }
  /** Garbage-collected without release: nobody can release it any more, so it is no longer renewed. */
  abandoned: LockFacts
  timeout: { name: string; namespace?: string | undefined; kind: string; waitedMs: number; heldBy: string | undefined }
  /** Something failed in the background, and will be tried again or runs out by itself. */
  error: {
    name: string
    namespace?: string | undefined
    kind: string
    doing: 'acquire' | 'renew' | 'release'
    error: LeaseholdError | Error
  }
}

/** All there are: `on` refuses anything else. */
const EVENTS: Record<keyof LockEvents, true> = {
  acquired: true,
  released: true,
  renewed: true,
  lost: true,
  abandoned: true,
  timeout: true,
  error: true,
}

type Listener<E extends keyof LockEvents> = (facts: LockEvents[E]) => void

/** Events without listeners cost nothing, and an `error` without listener does nothing. */
export class Events {
  readonly #listeners = new Map<keyof LockEvents, Set<(facts: never) => void>>()
  /** Of the instance: part of the facts of every event. */
  namespace: string | undefined = undefined

  on<E extends keyof LockEvents>(event: E, listener: Listener<E>): void {
    checkListener(event, listener, Object.keys(EVENTS))
    let listeners = this.#listeners.get(event)
    if (!listeners) this.#listeners.set(event, (listeners = new Set()))
    listeners.add(listener)
  }

  off<E extends keyof LockEvents>(event: E, listener: Listener<E>): void {
    checkListener(event, listener, Object.keys(EVENTS))
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
    const told = this.namespace === undefined ? facts() : { namespace: this.namespace, ...facts() }
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
