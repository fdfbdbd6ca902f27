import { getEventListeners } from 'node:events'

/** Those who wait with one signal. */
class Audience {
  readonly #signal: AbortSignal
  readonly #cancels = new Set<() => void>()

  constructor(signal: AbortSignal) {
    this.#signal = signal
    signal.addEventListener('abort', this.#tell, { once: true })
  }

  add(cancel: () => void): void {
    this.#cancels.add(cancel)
  }

  remove(cancel: () => void): void {
    this.#cancels.delete(cancel)
    if (this.#cancels.size > 0) return
    // The signal may live as long as the program.
    this.#signal.removeEventListener('abort', this.#tell)
    if (audiences.get(this.#signal) === this) audiences.delete(this.#signal)
  }

  readonly #tell = (): void => {
    for (const cancel of [...this.#cancels]) cancel()
  }
}

const audiences = new WeakMap<AbortSignal, Audience>()

/**
 * Calls `cancel` when the signal aborts. Returns how to stop listening. One listener per signal, however many wait with
 * it: Node warns about more than ten, and each would cost more than the last.
 */
export function onAbort(signal: AbortSignal, cancel: () => void): () => void {
  let audience = audiences.get(signal)
  if (!audience) audiences.set(signal, (audience = new Audience(signal)))
  const joined = audience
  joined.add(cancel)
  return () => joined.remove(cancel)
}

/**
 * Whether anybody would be told if this signal aborted: a listener, or a signal made of it by `AbortSignal.any`, which Node
 * keeps in a private field. Asked before a signal may be garbage-collected, because nobody could be told then.
 */
export function isObserved(signal: AbortSignal): boolean {
  if (getEventListeners(signal, 'abort').length > 0 || signal.onabort) return true
  const symbol = Object.getOwnPropertySymbols(signal).find(({ description }) => description === 'kDependantSignals')
  const dependants =
    symbol && (signal as unknown as Record<symbol, Iterable<WeakRef<object>> | null | undefined>)[symbol]
  for (const each of dependants ?? []) if (each.deref() !== undefined) return true
  return false
}
