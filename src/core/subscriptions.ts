import type { Awaitable, Store, StoreEvent, Watch } from '../store.js'
import { Alarm, type Timers } from './timers.js'

/**
 * How long a subscription without users is kept. On a busy name the next user comes soon, and would otherwise pay for a
 * new subscription each time.
 */
const LINGER_MS = 5_000

type Listener = (event: StoreEvent) => void

/** One subscription in the store per key, however many in this process use it. Each use is a handle that ends it. */
export class Subscriptions {
  readonly #store: Store
  readonly #timers: Timers
  readonly #onError: (error: unknown) => void
  readonly #all = new Map<string, SharedSubscription>()
  /** Those that only have to hear of grants, where the store can tell them apart. */
  readonly #grantsOnly = new Map<string, SharedSubscription>()

  constructor(store: Store, timers: Timers, onError: (error: unknown) => void) {
    this.#store = store
    this.#timers = timers
    this.#onError = onError
  }

  /** Undefined where the store has no wake-ups, or could not subscribe: the caller then polls. */
  open(key: string, listener?: Listener, only?: 'granted'): Subscription | undefined {
    const shared = this.#find(key, only) ?? this.#create(key, only)
    return shared?.use(listener)
  }

  /** Whether events of this key arrive already, for somebody who was here a moment ago. */
  isLive(key: string, only?: 'granted'): boolean {
    return this.#find(key, only)?.live() ?? false
  }

  /** This process released the key itself: the release will be announced to all who subscribed. */
  expectRelease(key: string): void {
    const shared = this.#all.get(key)
    if (shared?.live()) shared.expectsRelease = true
  }

  /** Others wait for what was released here: subscribe for a while, to hear of the next release together with them. */
  attend(key: string, now: number): void {
    this.open(key)?.close(now)
  }

  closeAll(): void {
    for (const map of [this.#all, this.#grantsOnly]) {
      for (const shared of map.values()) shared.end()
      map.clear()
    }
  }

  #find(key: string, only: 'granted' | undefined): SharedSubscription | undefined {
    return this.#mapFor(only).get(key)
  }

  #create(key: string, only: 'granted' | undefined): SharedSubscription | undefined {
    if (!this.#store.watch) return undefined
    const map = this.#mapFor(only)
    const shared: SharedSubscription = new SharedSubscription(this.#timers, () => {
      if (map.get(key) === shared) map.delete(key)
    })
    try {
      shared.begin(this.#store.watch(key, (event) => shared.notify(event), only))
    } catch (error) {
      this.#onError(error)
      return undefined
    }
    map.set(key, shared)
    return shared
  }

  /** One subscription is enough where both kinds hear the same. */
  #mapFor(only: 'granted' | undefined): Map<string, SharedSubscription> {
    return only && this.#store.hearsGrants ? this.#grantsOnly : this.#all
  }
}

/** One use of a subscription. */
export interface Subscription {
  /** Settles when events that happen from now on will arrive. Never rejects. */
  readonly ready: Awaitable<boolean>
  live: () => boolean
  /** This process released the key, and its release has not been announced yet. */
  readonly expectsRelease: boolean
  close: (now: number) => void
}

class SharedSubscription {
  readonly #timers: Timers
  readonly #forget: () => void
  readonly #linger: Alarm
  readonly #users = new Set<Use>()
  #watch: Watch | undefined
  expectsRelease = false

  constructor(timers: Timers, forget: () => void) {
    this.#timers = timers
    this.#forget = forget
    this.#linger = new Alarm(() => this.end())
  }

  begin(watch: Watch): void {
    this.#watch = watch
  }

  use(listener: Listener | undefined): Subscription {
    this.#timers.clear(this.#linger)
    const use = new Use(this, listener)
    this.#users.add(use)
    return use
  }

  leave(use: Use, now: number): void {
    if (!this.#users.delete(use) || this.#users.size > 0 || !this.#watch) return
    this.#timers.set(this.#linger, now + LINGER_MS, LINGER_MS, LINGER_MS / 2)
  }

  ready(): Awaitable<boolean> {
    const ready = this.#watch?.ready ?? false
    return typeof ready === 'boolean' ? ready : Promise.resolve(ready).catch(() => false)
  }

  live(): boolean {
    return this.#watch?.live() ?? false
  }

  notify(event: StoreEvent): void {
    if (event.type === 'freed') this.expectsRelease = false
    // A copy: a listener may subscribe or close while it is called.
    if (this.#users.size === 1) for (const { listener } of this.#users) return void listener?.(event)
    for (const { listener } of [...this.#users]) listener?.(event)
  }

  end(): void {
    this.#forget()
    this.#timers.clear(this.#linger)
    this.#users.clear()
    const watch = this.#watch
    this.#watch = undefined
    watch?.close()
  }
}

class Use implements Subscription {
  readonly #shared: SharedSubscription
  readonly listener: Listener | undefined

  constructor(shared: SharedSubscription, listener: Listener | undefined) {
    this.#shared = shared
    this.listener = listener
  }

  get ready(): Awaitable<boolean> {
    return this.#shared.ready()
  }

  live = (): boolean => this.#shared.live()

  get expectsRelease(): boolean {
    return this.#shared.expectsRelease
  }

  close = (now: number): void => this.#shared.leave(this, now)
}
