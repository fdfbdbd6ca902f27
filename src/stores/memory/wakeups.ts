import type { LeaseId, StoreEvent } from '../../store.js'

/** A subscription in the same process is live at once and for as long as it is open. */
export interface MemoryWatch {
  ready: true
  live: () => true
  close: () => void
}

const always = (): true => true

/** The listeners of a memory store, and the events that wait until its state is consistent: a listener may call the store. */
export class MemoryWakeups {
  readonly #listeners = new Map<string, Set<(event: StoreEvent) => void>>()
  readonly #revokedListeners = new Set<(lease: LeaseId) => void>()
  #events: { key: string; event: StoreEvent }[] = []
  #revoked: LeaseId[] = []

  watch(key: string, listener: (event: StoreEvent) => void): MemoryWatch {
    let listeners = this.#listeners.get(key)
    if (!listeners) this.#listeners.set(key, (listeners = new Set()))
    listeners.add(listener)
    const close = (): void => {
      listeners.delete(listener)
      if (listeners.size === 0 && this.#listeners.get(key) === listeners) this.#listeners.delete(key)
    }
    return { ready: true, live: always, close }
  }

  watchRevoked(listener: (lease: LeaseId) => void): MemoryWatch {
    // A function of its own per subscription: a Set would merge two subscriptions of the same listener.
    const own = (lease: LeaseId): void => listener(lease)
    this.#revokedListeners.add(own)
    return { ready: true, live: always, close: () => void this.#revokedListeners.delete(own) }
  }

  post(key: string, event: StoreEvent): void {
    if (this.#listeners.has(key)) this.#events.push({ key, event })
  }

  postRevoked(key: string, owner: string, token: bigint): void {
    if (this.#revokedListeners.size > 0) this.#revoked.push({ key, owner, token })
  }

  get posted(): number {
    return this.#events.length
  }

  /** Drops the events posted since `posted` had this value: what they tell of was undone. */
  undoPosts(posted: number): void {
    this.#events.length = posted
  }

  deliver(): void {
    while (this.#revoked.length > 0) {
      const revoked = this.#revoked
      this.#revoked = []
      for (const lease of revoked) for (const listener of [...this.#revokedListeners]) listener(lease)
    }
    while (this.#events.length > 0) {
      const events = this.#events
      this.#events = []
      for (const { key, event } of events) for (const listener of [...(this.#listeners.get(key) ?? [])]) listener(event)
    }
  }
}
