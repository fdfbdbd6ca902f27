import type { StoreEvent } from '../../store.js'
import type { GrantMessage } from './grant-inbox.js'

/** Turns a pushed grant into an event, now or once that is confirmed. */
export type Judge = (key: string, grant: GrantMessage, deliver: (event: StoreEvent) => void) => void

/** A store that uses the connection, and what it is asked for. */
export interface WakeupsUser {
  /** Makes the client ask the cluster who serves the slot of this channel now. */
  findOut: (channel: string) => Promise<unknown>
  /** Pushes an empty message to this list. */
  probe: (inbox: string) => Promise<unknown>
  judge: Judge
}

/** `key`: which one it is about, if that is known. */
export type TopicListener = (event: StoreEvent, key?: string) => void

/** The events of one key, or of all keys, and their listeners. */
export class Topic {
  /** What is subscribed to for it, or is being. */
  channels: string[] = []
  /** The address of the connection on which it is subscribed, or is being. */
  at: string | undefined
  live = false
  /** Never changed in place: a listener may be added or removed while the others are called. */
  #listeners: readonly TopicListener[] = []
  /** Of the store behind each listener, in the same order. */
  #judges: readonly Judge[] = []
  /** The judge of all listeners, if they have one in common: looked for beforehand, since somebody waits for each grant. */
  #judge: Judge | undefined
  /** It was live before: what happened since may have been missed. */
  #interrupted = false
  readonly #settle = new Set<(live: boolean) => void>()

  constructor(
    readonly key: string,
    /** Its events are published within the shard of the slot (SPUBLISH): only the node of that slot delivers them. */
    readonly sharded: boolean,
    readonly slot: number,
  ) {}

  add(listener: TopicListener, judge: Judge): void {
    this.#listeners = [...this.#listeners, listener]
    this.#judges = [...this.#judges, judge]
    this.#findCommon()
  }

  /** A function given twice listens twice. Returns whether it was the last one. */
  remove(listener: TopicListener): boolean {
    const at = this.#listeners.indexOf(listener)
    this.#listeners = this.#listeners.filter((_, i) => i !== at)
    this.#judges = this.#judges.filter((_, i) => i !== at)
    this.#findCommon()
    return this.#listeners.length === 0
  }

  #findCommon(): void {
    const first = this.#judges[0]
    this.#judge = this.#judges.every((judge) => judge === first) ? first : undefined
  }

  /** Each store judges by what it knows of the server, and tells its own listeners. */
  receive(key: string, grant: GrantMessage): void {
    if (this.#judge) return this.#judge(key, grant, (event) => this.tell(event, key))
    for (const judge of new Set(this.#judges)) judge(key, grant, (event) => this.tell(event, key, judge))
  }

  /** A listener that throws must not keep the event from the others, nor end the loop that reads the connection. */
  tell(event: StoreEvent, key?: string, by?: Judge): void {
    const listeners = this.#listeners
    const judges = this.#judges
    for (let i = 0; i < listeners.length; i++) {
      if (by && judges[i] !== by) continue
      try {
        ;(listeners[i] as TopicListener)(event, key)
      } catch {
        // Events are hints: a waiter that failed to act on one asks again by itself.
      }
    }
  }

  /** Events arrive from now on. Those during an interruption are lost, so that every waiter is told to ask. */
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
