import type { Store, StoreEvent, Watch } from '../store.js'
import { Alarm, type Timers } from './timers.js'

/** After the last listener left, a subscription is kept this long: on a busy name the next one comes soon. */
const LINGER_MS = 5_000

/** One subscription per key, however many wait behind it. */
export class Bells {
  readonly #store: Store
  readonly #timers: Timers
  readonly #onRevoked: (key: string, owner: string) => void
  readonly #bells = new Map<string, Bell>()
  /** Of those who only wait to be next. */
  readonly #doorbells = new Map<string, Bell>()

  constructor(store: Store, timers: Timers, onRevoked: (key: string, owner: string) => void) {
    this.#store = store
    this.#timers = timers
    this.#onRevoked = onRevoked
  }

  /** Undefined where the store has no wake-up: whoever waits then polls. */
  listen(key: string, listener: (event: StoreEvent) => void, only?: 'granted'): Bell | undefined {
    const bell = this.open(key, only)
    bell?.add(listener)
    return bell
  }

  /** Subscribed already, and so able to miss nothing. */
  live(key: string, only?: 'granted'): boolean {
    return this.#hung(only).get(key)?.live() ?? false
  }

  /** We let go of this ourselves: those who listen will be told. */
  expect(key: string): void {
    const bell = this.#bells.get(key)
    if (bell?.live()) bell.expected = true
  }

  /** Others wait for what we let go of: be told of the next time together with them. */
  attend(key: string, now: number): void {
    const bell = this.open(key)
    bell?.keep()
    bell?.leave(now)
  }

  open(key: string, only?: 'granted'): Bell | undefined {
    if (!this.#store.watch) return undefined
    const bells = this.#hung(only)
    let bell = bells.get(key)
    if (!bell) {
      const hung = new Bell(this.#timers, () => bells.delete(key))
      bell = hung
      const hear = (event: StoreEvent): void => {
        if (event.type === 'revoked') this.#onRevoked(key, event.owner)
        hung.ring(event)
      }
      bell.hang(this.#store.watch(key, hear, only))
      bells.set(key, bell)
    }
    return bell
  }

  close(): void {
    for (const bells of [this.#bells, this.#doorbells]) {
      for (const bell of bells.values()) bell.take()
      bells.clear()
    }
  }

  /** One watch is enough where both hear the same. */
  #hung(only: 'granted' | undefined): Map<string, Bell> {
    return only && this.#store.hearsGrants ? this.#doorbells : this.#bells
  }
}

export class Bell {
  readonly #timers: Timers
  #listeners: readonly ((event: StoreEvent) => void)[] = []
  readonly #linger: Alarm
  #watch: Watch | undefined
  #needed = 0
  /** We let go of it and have not been told yet that it is free. */
  expected = false

  constructor(timers: Timers, forget: () => void) {
    this.#timers = timers
    this.#linger = new Alarm(() => {
      forget()
      this.take()
    })
  }

  hang(watch: Watch): void {
    this.#watch = watch
  }

  get ready(): Promise<boolean> | boolean {
    return this.#watch?.ready ?? false
  }

  live(): boolean {
    return this.#watch?.live() ?? false
  }

  add(listener: (event: StoreEvent) => void): void {
    this.#listeners = [...this.#listeners, listener]
    this.keep()
  }

  remove(listener: (event: StoreEvent) => void, now: number): void {
    const others = this.#listeners.filter((each) => each !== listener)
    if (others.length === this.#listeners.length) return
    this.#listeners = others
    this.leave(now)
  }

  /** For somebody who needs it to hang here without listening: the one who holds the key. */
  keep(): void {
    this.#timers.clear(this.#linger)
    this.#needed++
  }

  leave(now: number): void {
    if (--this.#needed === 0) this.#timers.set(this.#linger, now + LINGER_MS, LINGER_MS, LINGER_MS / 2)
  }

  ring(event: StoreEvent): void {
    if (event.type === 'freed') this.expected = false
    // Never changed while they are called: whoever comes or goes meanwhile makes a list anew.
    const listeners = this.#listeners
    for (let i = 0; i < listeners.length; i++) (listeners[i] as (event: StoreEvent) => void)(event)
  }

  take(): void {
    this.#timers.clear(this.#linger)
    this.#watch?.close()
    this.#watch = undefined
  }
}
