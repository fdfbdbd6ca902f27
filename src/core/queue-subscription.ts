import type { Awaitable, Store, StoreEvent } from '../store.js'
import type { World } from '../util/world.js'
import type { Batcher } from './batcher.js'
import type { Subscription, Subscriptions } from './subscriptions.js'

/** What the subscription of a queue needs from its instance. */
export interface QueueSubscriptionHost {
  readonly store: Store
  readonly world: World
  readonly batcher: Batcher
  readonly subscriptions: Subscriptions
}

/** A wait queue, as its subscription sees it. */
interface NotifiedQueue {
  readonly key: string
  readonly isEmpty: boolean
  hear(event: StoreEvent): void
}

/**
 * How the waiters of one queue are notified. Waiters that need nothing but grants use the instance's one subscription
 * to the pushed grants of all keys, if the store has one and it is live. All others subscribe to this key.
 */
export class QueueSubscription {
  readonly #host: QueueSubscriptionHost
  readonly #queue: NotifiedQueue
  /** Pushed grants are all that its waiters have to hear of: they seek no record. */
  readonly #grantsOnly: boolean
  /** A use of the instance's subscription to the pushed grants of all keys. */
  #grants: Subscription | undefined
  /** To this key alone. */
  #subscription: Subscription | undefined
  #subscribing: Promise<boolean> | undefined

  constructor(host: QueueSubscriptionHost, queue: NotifiedQueue, grantsOnly: boolean) {
    this.#host = host
    this.#queue = queue
    this.#grantsOnly = grantsOnly
  }

  /** A notification for a request sent now would arrive. */
  get armed(): boolean {
    const { subscriptions } = this.#host
    if (this.#grantsOnly && subscriptions.grantsLive) return true
    if (this.#subscription) return this.#subscription.live()
    // An acquisition of this process waited for the key a moment ago, and its subscription is still open.
    if (!this.#subscribing && subscriptions.isLive(this.#queue.key)) this.#subscription = this.#open()
    return this.#subscription !== undefined
  }

  /** This process released the key a moment ago, and waiters in other processes may not have been notified yet. */
  get expectsRelease(): boolean {
    return this.armed && this.#subscription?.expectsRelease === true
  }

  /**
   * Subscribes. True if the subscription has just become active: a release between the request and now was not heard, so
   * the caller asks again. `wasArmed`: whether it would have been heard when that request was sent.
   */
  arm(wasArmed: boolean): Awaitable<boolean> {
    const { store, subscriptions } = this.#host
    if (this.#subscription || !store.watch) return false
    if (this.#grantsOnly && subscriptions.grantsLive) {
      this.#grants ??= subscriptions.openGrants()
      return !wasArmed
    }
    return this.#subscribing ?? this.#subscribe()
  }

  /** A pushed grant of this key, or a hint to ask again. */
  hearGrant(event: StoreEvent): void {
    // Its own subscription brings the same.
    if (!this.#subscription?.live()) this.#queue.hear(event)
  }

  close(): void {
    if (!this.#subscription && !this.#grants) return
    const now = this.#host.world.now()
    this.#subscription?.close(now)
    this.#grants?.close(now)
    this.#subscription = this.#grants = undefined
  }

  #open(): Subscription | undefined {
    return this.#host.subscriptions.open(this.#queue.key, (event) => this.#queue.hear(event))
  }

  /** To the grants of all keys, if that suffices and the store pushes them; else to this key. */
  #subscribe(): Awaitable<boolean> {
    const grants = this.#grantsOnly && !this.#grants ? this.#host.subscriptions.openGrants() : undefined
    if (!grants) return this.#subscribeToKey()
    this.#grants = grants
    return this.#whenReady(grants, (alive) => (alive && grants.live()) || this.#subscribeToKey())
  }

  #subscribeToKey(): Awaitable<boolean> {
    // All left meanwhile.
    if (this.#queue.isEmpty) return false
    const subscription = this.#open()
    if (!subscription) return false
    return this.#whenReady(subscription, (alive) => {
      this.#subscription = subscription
      if (this.#queue.isEmpty) this.close()
      return alive
    })
  }

  #whenReady({ ready }: Subscription, began: (alive: boolean) => Awaitable<boolean>): Awaitable<boolean> {
    if (typeof ready === 'boolean') return began(ready)
    const { batcher } = this.#host
    this.#subscribing = Promise.resolve(
      batcher.within(
        { call: 'watch', items: 1 },
        () => ready,
        () => false,
      ),
    ).then((alive) => {
      this.#subscribing = undefined
      return began(alive)
    })
    return this.#subscribing
  }
}
