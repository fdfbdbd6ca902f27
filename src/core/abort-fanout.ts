import { getEventListeners } from 'node:events'

/** One abort listener for all waits that share a signal. */
class AbortFanout {
  readonly #signal: AbortSignal
  readonly #cancels = new Set<() => void>()

  constructor(signal: AbortSignal) {
    this.#signal = signal
    signal.addEventListener('abort', this.#abort, { once: true })
  }

  add(cancel: () => void): void {
    this.#cancels.add(cancel)
  }

  remove(cancel: () => void): void {
    this.#cancels.delete(cancel)
    if (this.#cancels.size > 0) return
    // The signal may live as long as the program.
    this.#signal.removeEventListener('abort', this.#abort)
    if (fanouts.get(this.#signal) === this) fanouts.delete(this.#signal)
  }

  readonly #abort = (): void => {
    for (const cancel of [...this.#cancels]) cancel()
  }
}

const fanouts = new WeakMap<AbortSignal, AbortFanout>()

/**
 * Calls `cancel` when the signal aborts. Returns how to stop listening. One listener per signal, however many wait with
 * it: Node warns about more than ten, and each would cost more than the last.
 */
export function onAbort(signal: AbortSignal, cancel: () => void): () => void {
  let fanout = fanouts.get(signal)
  if (!fanout) fanouts.set(signal, (fanout = new AbortFanout(signal)))
  const joined = fanout
  joined.add(cancel)
  return () => joined.remove(cancel)
}

/**
 * Whether an abort of this signal would reach anybody: a listener, or a signal made of it by `AbortSignal.any`, which Node
 * keeps in a private field. Asked before a signal may be garbage-collected: its abort would reach nobody then.
 */
export function isObserved(signal: AbortSignal): boolean {
  if (getEventListeners(signal, 'abort').length > 0 || signal.onabort) return true
  const symbol = Object.getOwnPropertySymbols(signal).find(({ description }) => description === 'kDependantSignals')
  const dependants =
    symbol && (signal as unknown as Record<symbol, Iterable<WeakRef<object>> | null | undefined>)[symbol]
  for (const each of dependants ?? []) if (each.deref() !== undefined) return true
  return false
}
