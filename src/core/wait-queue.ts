import type { LeaseholdError } from '../errors.js'
import type { Awaitable, Refusal, StoreEvent } from '../store.js'
import { QueueSubscription, type QueueSubscriptionHost } from './queue-subscription.js'
import { type AcquireRequest, isExclusive } from './request.js'
import type { Tenancy } from './tenancy.js'
import type { Waiter } from './waiter.js'

/**
 * On stores without a queue, an acquisition in a process that has just released the key waits up to this long, in
 * milliseconds, for the release to be announced, so that other waiters get a fair chance. An announcement may be
 * lost: longer would delay the acquisition for nothing.
 */
const COURTESY_MS = 25
/** An acquisition with a shorter `wait`, in milliseconds, asks at once: the pause would use up too much of it. */
const COURTEOUS_FROM_MS = 10 * COURTESY_MS

/** At most this many acquisitions that may hold the key together send requests side by side; the rest wait here. */
const ABREAST = 64

/** An acquisition whose turn came so recently cannot have been answered yet. Longer would take an outage for a busy key. */
const JUST_BEGUN_MS = 2

/** What a wait queue needs from its instance. */
export interface WaitQueueHost<W extends Waiter> extends QueueSubscriptionHost {
  /** The last acquisition has left the queue. */
  queueEmptied(queue: WaitQueue<W>): void
}

/**
 * The acquisitions of this process that wait for one key, in order. Of exclusive ones only the first has an entry in
 * the store's queue, unless each asks for one (`queueInStore`): the store's queue does not grow with the waiters of a
 * process, and processes take turns. Of shared ones up to ABREAST have an entry.
 */
export class WaitQueue<W extends Waiter = Waiter> {
  readonly key: string
  readonly #host: WaitQueueHost<W>
  #first: W | undefined
  #last: W | undefined
  readonly #subscription: QueueSubscription
  #pumping = false
  /** The one that has asked, as long as no second one has. */
  #asked: W | undefined = undefined
  /**
   * Those that have asked. Most events name the owner they are for: with thousands of waiters, each event must not be shown to
   * each of them. Made for the second one: most queues never have it, and a map for each of them shows in the price of a lock.
   */
  #byOwner: Map<string, W> | undefined = undefined
  /** How many have not had their turn yet. */
  #notBegun = 0
  /** How many of them enter the store's queue although others are before them here. */
  #queueInStore = 0
  /** What the store last answered to any of them: those that have not asked yet wait for the same reason. */
  latestRefusal: Refusal | undefined = undefined
  /** Why a request of any of them last failed. */
  latestFailure: LeaseholdError | undefined = undefined
  /** Set while the lease of this key is passed on inside this process: none of its waiters asks the store then. */
  tenancy: Tenancy | undefined = undefined
  #lastTenancy: { owner: string; endedAt: number } | undefined = undefined
  /** When an acquisition left that was granted, and that those behind it had to wait for. */
  #grantedAt: number = Number.NEGATIVE_INFINITY
  /** On a store that blocks: when an acquisition left whose request the server may have kept open. */
  #openRequestEndedAt: number = Number.NEGATIVE_INFINITY

  constructor(host: WaitQueueHost<W>, { key, onRefusal }: AcquireRequest) {
    this.#host = host
    this.key = key
    // Waiters that seek no record need nothing but grants.
    this.#subscription = new QueueSubscription(host, this, onRefusal === undefined)
  }

  /** A notification for a request sent now would arrive. */
  get armed(): boolean {
    return this.#subscription.armed
  }

  /** How long the first request should wait: this process released the key a moment ago, and others may not have been notified yet. */
  courtesyMs({ waitMs }: AcquireRequest): number {
    if (waitMs < COURTEOUS_FROM_MS || !this.#subscription.expectsRelease) return 0
    // Once: the announcement may have been lost, and each lock until the next one would be late by this.
    this.#host.subscriptions.expectRelease(this.key, false)
    return COURTESY_MS
  }

  get isEmpty(): boolean {
    return !this.#first
  }

  /** The server may keep a request of one of them open: the key is busy then, as far as anybody can tell. */
  get #hasOpenRequest(): boolean {
    for (let each: Waiter | undefined = this.#first; each?.begun; each = each.next) if (each.hasOpenRequest) return true
    return false
  }

  enqueue(acquisition: W): void {
    acquisition.previous = this.#last
    if (this.#last) this.#last.next = acquisition
    else this.#first = acquisition
    this.#last = acquisition
    const first = this.#first as W
    this.#notBegun++
    if (acquisition.request.queueInStore) this.#queueInStore++
    if (first.next === acquisition) first.followed()
  }

  /** The first one that still waits. */
  get head(): W | undefined {
    let head = this.#first
    while (head?.settled) head = head.next as W | undefined
    return head
  }

  /** Somebody came behind the first one, whose request may have failed a while ago. */
  retryFirst(): void {
    this.#first?.retryForNewcomer()
  }

  /** The first one asks again now. */
  askFirst(): void {
    this.#first?.notify()
  }

  /** Its turn has come: it asks the store, and events may concern it from now on. */
  began(acquisition: W): void {
    this.#notBegun--
    if (this.#byOwner) this.#byOwner.set(acquisition.owner, acquisition)
    else if (!this.#asked) this.#asked = acquisition
    else this.#byOwner = new Map([this.#asked, acquisition].map((each) => [each.owner, each]))
  }

  /** It leaves without having asked. */
  neverBegan(): void {
    this.#notBegun--
  }

  /** It asks under another owner from now on. */
  renamed(acquisition: W, before: string): void {
    this.#byOwner?.delete(before)
    this.#byOwner?.set(acquisition.owner, acquisition)
  }

  /** `hasAsked`: its turn had come. */
  leave(acquisition: W, hasAsked: boolean): void {
    const { previous, next } = acquisition as { previous: W | undefined; next: W | undefined }
    if (previous) previous.next = next
    else if (this.#first === acquisition) this.#first = next
    else return
    if (next) next.previous = previous
    else this.#last = previous
    acquisition.previous = acquisition.next = undefined
    if (this.#first) this.#noteLeaving(acquisition, this.#first)
    if (hasAsked) this.#forget(acquisition)
    if (acquisition.request.queueInStore) this.#queueInStore--
    if (!this.#first) this.#emptied()
    else if (!this.#awaitsTenancy()) this.#pumpSoon()
  }

  /**
   * Remembers that a lock or an open request of this process was in the way of `next`. Without this, a wait that ends
   * before the store has answered `next`, or one behind it, would be reported as an outage.
   */
  #noteLeaving(acquisition: W, next: W): void {
    const { store, world } = this.#host
    if (acquisition.granted) {
      // A tenancy tells the same, without a reading of the clock for each lock.
      if (this.tenancy) return
      // Those that may hold the key together are not in the way of each other, unless the server keeps their requests in a queue of its own.
      const isInTheWay = store.blocks || isExclusive(acquisition.request) || isExclusive(next.request)
      if (isInTheWay) this.#grantedAt = world.now()
    } else if (store.blocks && acquisition.hasOpenRequest) this.#openRequestEndedAt = world.now()
  }

  #forget(acquisition: W): void {
    this.#byOwner?.delete(acquisition.owner)
    if (this.#asked === acquisition) this.#asked = undefined
  }

  /** In a microtask: when many acquisitions leave together, none of them may send a request just before it leaves. */
  #pumpSoon(): void {
    if (this.#pumping) return
    this.#pumping = true
    queueMicrotask(() => {
      this.#pumping = false
      this.pump()
    })
  }

  /** Begins the acquisitions whose turn it is. One that has to enter the store's queue at once overtakes nobody here. */
  pump(): void {
    if (this.#notBegun === 0 || this.#awaitsTenancy()) return
    this.tenancy?.end()
    let abreast = 0
    let toCome = this.#queueInStore
    for (let acquisition: Waiter | undefined = this.#first; acquisition; acquisition = acquisition.next) {
      if (toCome === 0 && abreast > 0 && (isExclusive(acquisition.request) || abreast >= ABREAST)) return
      if (!acquisition.begun) acquisition.begin(toCome > 0)
      if (acquisition.request.queueInStore) toCome--
      if (toCome === 0 && isExclusive(acquisition.request)) return
      abreast++
    }
  }

  /** The lease will be passed on to the first waiter: it need not ask. One with an entry in the store's queue is served by the store. */
  #awaitsTenancy(): boolean {
    if (!this.tenancy || this.#queueInStore > 0) return false
    const { head } = this
    return head !== undefined && !head.begun && this.tenancy.suits(head.request)
  }

  /**
   * The refusal for a waiter whose wait is over and that has none of its own. Undefined: nothing shows that the key
   * is busy, and its caller is told of an outage.
   */
  refusalFor({ begun }: Waiter, since: number): Refusal | undefined {
    const known = this.latestRefusal ?? this.#busyHere(since)
    if (known) return known
    // A waiter that never asked waited behind others of this process: if the server keeps a request of theirs open,
    // the key is busy. A waiter whose turn came a moment ago, because that request was given up, cannot have an
    // answer yet: the key was busy for it too.
    const wasInTurn = begun ? this.#host.world.now() - this.#openRequestEndedAt < JUST_BEGUN_MS : this.#hasOpenRequest
    // And a lock that this process was granted meanwhile was in its way.
    return wasInTurn || this.#grantedAt >= since ? { granted: false } : undefined
  }

  /** A lock of this process was in the way of a waiter that began at this time. */
  #busyHere(since: number): Refusal | undefined {
    const last = this.#lastTenancy
    const owner = this.tenancy?.lease.owner ?? (last && since <= last.endedAt ? last.owner : undefined)
    return owner === undefined ? undefined : { granted: false, blocker: { owner } }
  }

  /** If it was passed on inside this process, the next waiter has to ask. */
  leaseEnded(lease: object): void {
    if (this.tenancy?.lease === lease) this.tenancy.end()
  }

  tenancyEnded(): void {
    if (!this.tenancy) return
    this.#lastTenancy = { owner: this.tenancy.lease.owner, endedAt: this.#host.world.now() }
    this.tenancy = undefined
    if (this.#first) this.#pumpSoon()
  }

  /** Subscribes. True if a notification was missed meanwhile. `wasArmed`: when the last request was sent. */
  arm(wasArmed: boolean): Awaitable<boolean> {
    return this.#subscription.arm(wasArmed)
  }

  /** A pushed grant of this key, or a hint to ask again. */
  hearGrant(event: StoreEvent): void {
    this.#subscription.hearGrant(event)
  }

  *[Symbol.iterator](): Generator<W> {
    let acquisition = this.#first
    while (acquisition) {
      const next = acquisition.next as W | undefined
      yield acquisition
      acquisition = next
    }
  }

  hear(event: StoreEvent): void {
    if (event.type !== 'changed' && event.owner !== undefined) {
      const named = this.#byOwner ? this.#byOwner.get(event.owner) : this.#asked
      if (named?.owner === event.owner) named.hear(event)
      return
    }
    let acquisition = this.#first
    // Those behind have not asked yet, so no event concerns them.
    while (acquisition?.begun) {
      const next = acquisition.next as W | undefined
      acquisition.hear(event)
      acquisition = next
    }
  }

  #emptied(): void {
    this.tenancy?.end()
    this.#host.queueEmptied(this)
    this.#subscription.close()
  }
}
