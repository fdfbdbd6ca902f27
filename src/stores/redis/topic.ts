import type { StoreEvent } from '../../store.js'

/** What a listening connection reports. */
export interface Listening {
  message: (channel: string, text: string) => void
  /** A grant came by the inbox. */
  grant: (message: string) => void
  /** It broke, after so long. */
  broken: (livedMs: number) => void
  /** This channel, or all of them, are no longer told here: the slot went to another server. */
  moved: (channel: string | undefined) => void
  /** Not on this server, or not for this user. */
  noInbox: () => void
}

/** What is told of one key, or the revocations of all keys, and everybody who watches that. */
export class Topic {
  /** What is subscribed to for it, or is being. */
  channels: string[] = []
  /** The address of the connection on which it is subscribed, or is being. */
  at: string | undefined
  live = false
  /** Somebody wants to hear everything, not only its grants. */
  everything = false
  /** Never changed while they are called: whoever comes or goes meanwhile makes another list. */
  #listeners: readonly ((event: StoreEvent) => void)[] = []
  /** It was live before: what happened since may have been missed. */
  #interrupted = false
  readonly #settle = new Set<(live: boolean) => void>()

  constructor(
    readonly key: string,
    /** Told within the shard of the slot only. */
    readonly sharded: boolean,
    readonly slot: number,
  ) {}

  add(listener: (event: StoreEvent) => void): void {
    this.#listeners = [...this.#listeners, listener]
  }

  /** A function given twice listens twice. Returns whether it was the last one. */
  remove(listener: (event: StoreEvent) => void): boolean {
    const at = this.#listeners.indexOf(listener)
    this.#listeners = this.#listeners.filter((_, i) => i !== at)
    return this.#listeners.length === 0
  }

  /** A listener that throws must not keep the event from the others, nor end the loop that reads the connection. */
  tell(event: StoreEvent): void {
    const listeners = this.#listeners
    for (let i = 0; i < listeners.length; i++) {
      try {
        ;(listeners[i] as (event: StoreEvent) => void)(event)
      } catch {
        // Events are hints: whoever failed to act on one asks again by itself.
      }
    }
  }

  /** Events arrive from now on. Whatever was told while nobody heard is lost: whoever waits had better ask. */
  resume(): void {
    this.live = true
    this.settle(true)
    if (this.#interrupted) this.tell({ type: 'freed' })
    this.#interrupted = false
  }

  mute(): void {
    this.#interrupted ||= this.live
    this.live = false
    this.at = undefined
  }

  settle(live: boolean): void {
    if (!live) this.live = false
    for (const settle of [...this.#settle]) settle(live)
  }

  /** Nobody may wait for ever for a server that says nothing. */
  settled(timeoutMs: number): Promise<boolean> {
    return new Promise((resolve) => {
      const settle = (live: boolean): void => {
        clearTimeout(timer)
        this.#settle.delete(settle)
        resolve(live)
      }
      const timer = setTimeout(() => settle(false), timeoutMs)
      timer.unref()
      this.#settle.add(settle)
    })
  }
}
