import { LockLostError } from '../errors.js'
import { isObserved } from './abort-fanout.js'

/**
 * Knows whether anybody can still reach a lock: its `Lock` object, its signal, or a listener of that signal. A lock that
 * nobody can reach can never be released, so it must not be renewed for ever.
 *
 * Asked at every heartbeat, and not left to a FinalizationRegistry: in some processes none of these calls back (seen on
 * Node 20, after a collection that a program asked for).
 */
export class HandleTracker {
  /** Strong until the first heartbeat, weak from then on: most locks are released by then and never pay for a WeakRef. */
  #handle: object | undefined
  /** Weak from the first heartbeat on, unless somebody listens: a lock whose signal was read may be forgotten too. */
  #controller: AbortController | WeakRef<AbortController> | undefined = undefined

  constructor(handle: object | undefined) {
    this.#handle = handle
  }

  /** From now on only its users keep the lock reachable. */
  holdWeakly(): void {
    if (this.#handle && !(this.#handle instanceof WeakRef)) this.#handle = new WeakRef(this.#handle)
    const controller = this.#find()
    if (!controller) return
    controllerOf.set(controller.signal, controller)
    this.#controller = isObserved(controller.signal) ? controller : new WeakRef(controller)
  }

  get isForgotten(): boolean {
    if (!(this.#handle instanceof WeakRef) || this.#handle.deref() !== undefined) return false
    return this.#find() === undefined
  }

  /** The signal if somebody has read it already. */
  get signal(): AbortSignal | undefined {
    return this.#find()?.signal
  }

  /** The signal, which is created when it is first read. `reason`: why it has to be aborted then, if it has. */
  signalFor(reason: Error | undefined): AbortSignal {
    const { signal } = this
    if (signal) return signal
    this.#controller = new AbortController()
    if (reason) this.abort(reason)
    return this.#controller.signal
  }

  abort(reason: Error): void {
    this.#find()?.abort(reason)
  }

  drop(): void {
    this.#handle = undefined
  }

  #find(): AbortController | undefined {
    return this.#controller instanceof WeakRef ? this.#controller.deref() : this.#controller
  }
}

/**
 * The signal of a lock that has been released: aborted, so that work which reads it only now does not begin. A signal
 * that was read before the release does not abort: nothing was lost, and its listeners would take that for a loss.
 */
export function releasedSignal(name: string, tracker: HandleTracker | undefined): AbortSignal {
  const taken = tracker?.signal
  return taken?.aborted ? taken : AbortSignal.abort(new LockLostError(name, 'released'))
}

/** A signal keeps its controller: without this a holder that has only the signal would not be told of a loss. */
const controllerOf = new WeakMap<AbortSignal, AbortController>()
