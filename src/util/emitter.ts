import { checkListener } from './options.js'
import { describe } from './redact.js'

/** Listeners by event. An event without listeners costs nothing; a listener that throws becomes a process warning. */
export class Emitter<E extends object> {
  readonly #known: readonly string[]
  readonly #warning: string
  readonly #listeners = new Map<keyof E, Set<(facts: never) => void>>()

  /** `known`: all events there are; `on` and `off` refuse others. `warning`: the name of the warning for a listener that throws. */
  constructor(known: Record<keyof E, true>, warning: string) {
    this.#known = Object.keys(known)
    this.#warning = warning
  }

  on<K extends keyof E>(event: K, listener: (facts: E[K]) => void): void {
    checkListener(event as string, listener, this.#known)
    let listeners = this.#listeners.get(event)
    if (!listeners) this.#listeners.set(event, (listeners = new Set()))
    listeners.add(listener)
  }

  off<K extends keyof E>(event: K, listener: (facts: E[K]) => void): void {
    checkListener(event as string, listener, this.#known)
    const listeners = this.#listeners.get(event)
    listeners?.delete(listener)
    if (listeners?.size === 0) this.#listeners.delete(event)
  }

  has(event: keyof E): boolean {
    return this.#listeners.size > 0 && this.#listeners.has(event)
  }

  notify<K extends keyof E>(event: K, facts: E[K]): void {
    // A copy: a listener may add or remove listeners while it is called.
    for (const listener of [...((this.#listeners.get(event) ?? []) as Set<(facts: E[K]) => void>)]) {
      try {
        listener(facts)
      } catch (error) {
        this.warn(error)
      }
    }
  }

  warn(error: unknown): void {
    process.emitWarning(error instanceof Error ? error : textOf(error), this.#warning)
  }
}

/** A thrown object without a prototype has no text: an error here would end the grant or the job that is being reported. */
function textOf(thrown: unknown): string {
  try {
    return String(thrown)
  } catch {
    return describe(thrown)
  }
}
