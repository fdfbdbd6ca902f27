import type { Awaitable, Refusal, StoreEvent } from '../store.js'
import type { Acquisition } from './acquisition.js'
import type { Ask } from './ask.js'
import type { Engine } from './engine.js'
import type { Subscription } from './subscriptions.js'

/** So many acquisitions that may hold the key together ask beside each other; the rest wait here. */
const ABREAST = 64

/**
 * The acquisitions of this process that wait for one key, in order. Only the first of them has an entry in the store's
 * queue, unless they ask for more: nothing there grows with the number of waiters, and processes take turns.
 */
export class WaitQueue {
  readonly key: string
  readonly #engine: Engine
  #first: Acquisition | undefined
  #last: Acquisition | undefined
  #subscription: Subscription | undefined
  #subscribing: Promise<boolean> | undefined
  #pumping = false
  /** Most events name the owner they are for: with thousands of waiters, not each of them can look at each event. */
  readonly #byOwner = new Map<string, Acquisition>()
  /** How many have not had their turn yet. */
  #notBegun = 0
  /** How many of them enter the store's queue whoever is before them here. */
  #queueInStore = 0
  /** Which events they have to hear of. */
  readonly #only: 'granted' | undefined
  /** What the store last told any of them: those behind, who have not asked yet, wait for the same reason. */
  latestRefusal: Refusal | undefined = undefined

  constructor(engine: Engine, { key, onRefusal }: Ask) {
    this.#engine = engine
    this.key = key
    this.#only = onRefusal ? undefined : 'granted'
  }

  /** A notification for a request sent now would arrive. */
  get armed(): boolean {
    const { subscriptions, store } = this.#engine
    if (this.#subscription) return this.#subscription.live()
    // Somebody here waited for the key a moment ago, and the subscription is still there.
    if (!this.#subscribing && subscriptions.isLive(this.key, this.#only)) {
      this.#subscription = subscriptions.open(this.key, this.#hear, this.#only)
    }
    return this.#subscription !== undefined || (this.#only !== undefined && store.hearsGrants?.() === true)
  }

  /** This process released the key a moment ago, and others who wait may not have been told yet. */
  get justReleased(): boolean {
    return this.armed && this.#subscription?.expectsRelease === true
  }

  join(acquisition: Acquisition): void {
    acquisition.previous = this.#last
    if (this.#last) this.#last.next = acquisition
    else this.#first = acquisition
    this.#last = acquisition
    this.#byOwner.set(acquisition.owner, acquisition)
    this.#notBegun++
    if (acquisition.ask.queueInStore) this.#queueInStore++
  }

  /** The first one asks again now. */
  askFirst(): void {
    this.#first?.notify()
  }

  /** Its turn has come. */
  began(): void {
    this.#notBegun--
  }

  /** It asks under another owner from now on. */
  renamed(acquisition: Acquisition, before: string): void {
    this.#byOwner.delete(before)
    this.#byOwner.set(acquisition.owner, acquisition)
  }

  leave(acquisition: Acquisition): void {
    const { previous, next } = acquisition
    if (previous) previous.next = next
    else if (this.#first === acquisition) this.#first = next
    else return
    if (next) next.previous = previous
    else this.#last = previous
    acquisition.previous = acquisition.next = undefined
    this.#byOwner.delete(acquisition.owner)
    if (acquisition.ask.queueInStore) this.#queueInStore--
    if (this.#first) this.#pumpSoon()
    else this.#disband()
  }

  /** Not at once: when many leave together, those in between should not ask just before they leave. */
  #pumpSoon(): void {
    if (this.#pumping) return
    this.#pumping = true
    queueMicrotask(() => {
      this.#pumping = false
      this.pump()
    })
  }

  /** Lets those ask whose turn it is. Nobody here is overtaken by one that has to enter the store's queue at once. */
  pump(): void {
    if (this.#notBegun === 0) return
    let abreast = 0
    let toCome = this.#queueInStore
    for (let acquisition = this.#first; acquisition; acquisition = acquisition.next) {
      if (toCome === 0 && abreast > 0 && (acquisition.exclusive || abreast >= ABREAST)) return
      if (!acquisition.begun) acquisition.begin(toCome > 0)
      if (acquisition.ask.queueInStore) toCome--
      if (toCome === 0 && acquisition.exclusive) return
      abreast++
    }
  }

  /**
   * Subscribes. True if the subscription has just become active: a release between the request and now was not heard, so
   * the caller asks again. `wasArmed`: whether it would have been heard when that request was sent.
   */
  arm(wasArmed: boolean): Awaitable<boolean> {
    const { store, subscriptions } = this.#engine
    if (this.#subscription || !store.watch) return false
    if (wasArmed && !this.#subscribing && this.#only && store.hearsGrants?.()) {
      this.#subscription = subscriptions.open(this.key, this.#hear, this.#only)
      if (this.#subscription?.live()) return false
      this.#unsubscribe()
    }
    return this.#subscribing ?? this.#subscribe()
  }

  *[Symbol.iterator](): Generator<Acquisition> {
    let acquisition = this.#first
    while (acquisition) {
      const { next } = acquisition
      yield acquisition
      acquisition = next
    }
  }

  #subscribe(): Awaitable<boolean> {
    const subscription = this.#engine.subscriptions.open(this.key, this.#hear, this.#only)
    if (!subscription) return false
    const { ready } = subscription
    const began = (alive: boolean): boolean => {
      this.#subscribing = undefined
      this.#subscription = subscription
      // All left meanwhile.
      if (!this.#first) this.#unsubscribe()
      return alive
    }
    if (typeof ready === 'boolean') return began(ready)
    const { courier } = this.#engine
    this.#subscribing = Promise.resolve(
      courier.within(
        () => ready,
        () => false,
      ),
    ).then(began)
    return this.#subscribing
  }

  readonly #hear = (event: StoreEvent): void => {
    if ('owner' in event && event.owner !== undefined) {
      const named = this.#byOwner.get(event.owner)
      if (named?.begun) named.hear(event)
      return
    }
    let acquisition = this.#first
    // Those behind have not asked yet, and have nothing to hear.
    while (acquisition?.begun) {
      const { next }: Acquisition = acquisition
      acquisition.hear(event)
      acquisition = next
    }
  }

  #disband(): void {
    this.#engine.disbanded(this)
    this.#unsubscribe()
  }

  #unsubscribe(): void {
    this.#subscription?.close(this.#engine.world.now())
    this.#subscription = undefined
  }
}
