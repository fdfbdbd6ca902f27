import { checkListener } from '../util/options.js'
import { guarded, warn } from './guarded.js'

/** Listeners by event. An event without listeners costs nothing; a listener that throws or rejects becomes a process warning. */
export class Emitter<E extends object> {
  readonly #known: readonly string[]
  readonly #warning: string
  readonly #listeners = new Map<keyof E, Set<(facts: never) => void>>()

  /** `known`: all events there are; `on` and `off` refuse others. `warning`: the name of the warning for a listener that fails. */
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
      guarded(() => listener(facts), this.#warning)
    }
  }

  warn(error: unknown): void {
    warn(error, this.#warning)
  }
}
