import type { Awaitable, Store, StoreEvent, Watch } from '../store.js'
import { guarded, warn } from './guarded.js'
import { ignoreRejection } from './thenable.js'
import { Alarm, type Timers } from './timers.js'

/**
 * How long a subscription without users is kept. On a busy name the next user comes soon, and would otherwise pay for a
 * new subscription each time.
 */
const LINGER_MS = 5_000

type Listener = (event: StoreEvent) => void

export interface SubscriptionsHost {
  onError: (error: unknown) => void
  /** A pushed grant of this key; for all keys if it is undefined. */
  onGrant: (key: string | undefined, event: StoreEvent) => void
}

/**
 * One subscription in the store per key, however many in this process use it, and one for the pushed grants of all keys. Each
 * use is a handle that ends it.
 */
export class Subscriptions {
  readonly #store: Store
  readonly #timers: Timers
  readonly #host: SubscriptionsHost
  readonly #byKey = new Map<string, SharedSubscription>()
  #grants: SharedSubscription | undefined

  constructor(store: Store, timers: Timers, host: SubscriptionsHost) {
    this.#store = store
    this.#timers = timers
    this.#host = host
  }

  /** Undefined where the store has no wake-ups, or could not subscribe: the caller then polls. */
  open(key: string, listener?: Listener): Subscription | undefined {
    const shared = this.#byKey.get(key) ?? this.#create(key)
    return shared?.use(listener)
  }

  /** Undefined where the store does not push the grants of all keys through one subscription, or could not subscribe. */
  openGrants(): Subscription | undefined {
    this.#grants ??= this.#createGrants()
    return this.#grants?.use(undefined)
  }

  /** Whether pushed grants of all keys arrive, because a queue needs them or needed them a moment ago. */
  get grantsLive(): boolean {
    return this.#grants?.live() ?? false
  }

  /** Whether events of this key arrive already, because of a use that ended a moment ago. */
  isLive(key: string): boolean {
    return this.#byKey.get(key)?.live() ?? false
  }

  /**
   * `expects`: this process has released the key, and the release will be announced to all subscribers. False: it
   * will not be announced, or an acquisition has waited for the announcement already.
   */
  expectRelease(key: string, expects: boolean): void {
    const shared = this.#byKey.get(key)
    if (shared?.live()) shared.expectsRelease = expects
  }

  /** Others wait for what was released here: subscribe for a while, to hear of the next release together with them. */
  attend(key: string, now: number): void {
    this.open(key)?.close(now)
  }

  closeAll(): void {
    for (const shared of this.#byKey.values()) shared.end()
    this.#byKey.clear()
    this.#grants?.end()
  }

  #create(key: string): SharedSubscription | undefined {
    const { watch } = this.#store
    if (!watch) return undefined
    const shared: SharedSubscription = new SharedSubscription(this.#timers, () => {
      if (this.#byKey.get(key) === shared) this.#byKey.delete(key)
    })
    if (!this.#begin(shared, () => watch.call(this.#store, key, (event) => shared.hear(event)))) return undefined
    this.#byKey.set(key, shared)
    return shared
  }

  #createGrants(): SharedSubscription | undefined {
    const { watchGrants } = this.#store
    if (!watchGrants) return undefined
    const shared: SharedSubscription = new SharedSubscription(this.#timers, () => {
      if (this.#grants === shared) this.#grants = undefined
    })
    const hear = (key: string | undefined, event: StoreEvent): void => {
      try {
        this.#host.onGrant(key, event)
      } catch (error) {
        warn(error)
      }
    }
    return this.#begin(shared, () => watchGrants.call(this.#store, hear)) ? shared : undefined
  }

  #begin(shared: SharedSubscription, subscribe: () => Watch): boolean {
    try {
      shared.begin(subscribe())
      return true
    } catch (error) {
      this.#host.onError(error)
      return false
    }
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
    ignoreRejection(watch.ready)
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

  /** An event may be malformed, and a listener may throw: an error thrown on would end the delivery of the store. */
  hear(event: StoreEvent): void {
    try {
      this.#notify(event)
    } catch (error) {
      warn(error)
    }
  }

  #notify(event: StoreEvent): void {
    if (event.type === 'freed') this.expectsRelease = false
    // The only user: no copy, because the loop ends after its listener, whatever that does to the set.
    if (this.#users.size === 1) for (const { listener } of this.#users) return void listener?.(event)
    // A copy: a listener may subscribe or close while it is called.
    for (const { listener } of [...this.#users]) listener?.(event)
  }

  end(): void {
    this.#forget()
    this.#timers.clear(this.#linger)
    this.#users.clear()
    const watch = this.#watch
    this.#watch = undefined
    if (watch) guarded(() => watch.close())
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
