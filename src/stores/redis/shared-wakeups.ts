/**
 * The wake-ups of all stores that share one client: topics, and the subscriber connections (one, or on a cluster one per node)
 * on which they are subscribed. Opened with the first watch, closed when idle for a while.
 *
 * @module
 */
import type { LeaseId, StoreEvent, Watch } from '../../store.js'
import type { Adapter } from '../../clients/redis/adapter.js'
import { grantOf, revokedOf } from './grant-inbox.js'
import type { Keys } from './keys.js'
import { type SubscriberConnection, SubscriberConnections, type WakeupsOptions } from './subscriber-connection.js'
import { Topic, type TopicListener, type WakeupsUser } from './topic.js'

/** AUDIT_MS: how often a subscription that is missing is tried again. */
const AUDIT_MS = 1_000
/** RELOCATED_MS: pause before subscribing again once the cluster has said who serves the slot. Shorter hot-loops while a slot moves. */
const RELOCATED_MS = 50

/** REFRESH_PAUSE_MS: between two replacements of the subscriber connection. All stores of a client ask at once. */
const REFRESH_PAUSE_MS = 1_000

/** Topics of all keys. No key of the core has such a name: each begins with its kind. */
const REVOCATIONS = '*revocations'
const GRANTS = '*grants'

export const DEAF: Watch = { ready: false, live: () => false, close: () => {} }

export class SharedWakeups {
  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #options: WakeupsOptions
  /** By key; what concerns all keys under REVOCATIONS and GRANTS. */
  readonly #topics = new Map<string, Topic>()
  readonly #byChannel = new Map<string, Topic>()
  readonly #connections: SubscriberConnections
  readonly #revoked = new Set<(lease: LeaseId) => void>()
  #auditing: NodeJS.Timeout | undefined
  #auditAt = Number.POSITIVE_INFINITY
  #refreshedAt = Number.NEGATIVE_INFINITY
  #refreshing: NodeJS.Timeout | undefined
  /** Stores with something to watch, and how much. The first of them speaks for all. */
  readonly #users = new Map<WakeupsUser, number>()

  constructor(adapter: Adapter, keys: Keys, options: WakeupsOptions) {
    this.#adapter = adapter
    this.#keys = keys
    this.#options = options
    this.#connections = new SubscriberConnections(adapter, keys, {
      ...options,
      probe: (list) => this.#user?.probe(list) ?? Promise.reject(new Error('no store listens any more')),
      message: (channel, text) => this.#receiveMessage(channel, text),
      grant: this.#receive,
      broken: (address, pauseMs) => {
        this.#lose(address)
        this.#auditIn(pauseMs)
      },
      moved: (address, channel) => this.#moved(address, channel),
      isUsed: (address) => this.#isUsed(address),
    })
  }

  /** Where grants to waiters that ask now have to be sent. */
  get subscriber(): string {
    return this.#connections.inbox?.subscriber ?? this.#keys.subscriber
  }

  get #user(): WakeupsUser | undefined {
    return this.#users.keys().next().value
  }

  watch(user: WakeupsUser, key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#join(user, this.#topic(key, this.#adapter.cluster), listener)
  }

  /** Live while the inbox is open. Without an inbox each key has a channel of its own, and has to be watched by itself. */
  watchGrants(user: WakeupsUser, listener: (key: string | undefined, event: StoreEvent) => void): Watch {
    if (!this.#connections.byInbox) return DEAF
    return this.#join(user, this.#topic(GRANTS, false), (event, key) => listener(key, event))
  }

  watchRevoked(user: WakeupsUser, listener: (lease: LeaseId) => void): Watch {
    this.#revoked.add(listener)
    // Revocations during an interruption are lost. The core renews what it holds after every interruption anyway.
    const watch = this.#join(user, this.#topic(REVOCATIONS, false), () => {})
    return {
      ready: watch.ready,
      live: watch.live,
      close: () => {
        this.#revoked.delete(listener)
        watch.close()
      },
    }
  }

  /**
   * The connection may lead to a server that is no longer the one. On a cluster the address tells; else listen anew: at once,
   * and then at most once a second, for whichever of the stores asks.
   */
  refresh(): void {
    if (this.#refreshing) return
    const pauseMs = this.#refreshedAt + REFRESH_PAUSE_MS - performance.now()
    if (pauseMs > 0) {
      this.#refreshing = setTimeout(() => {
        this.#refreshing = undefined
        this.refresh()
      }, pauseMs)
      this.#refreshing.unref()
      return
    }
    this.#refreshedAt = performance.now()
    if (!this.#adapter.cluster) for (const address of this.#connections.addresses) this.#lose(address)
    this.#audit()
  }

  /** The last store was closed. Another that comes later begins anew. */
  close(): void {
    clearTimeout(this.#auditing)
    clearTimeout(this.#refreshing)
    this.#auditing = this.#refreshing = undefined
    this.#auditAt = Number.POSITIVE_INFINITY
    for (const topic of this.#topics.values()) topic.settle(false)
    this.#topics.clear()
    this.#byChannel.clear()
    this.#connections.close()
  }

  #topic(key: string, sharded: boolean): Topic {
    let topic = this.#topics.get(key)
    if (!topic) {
      topic = new Topic(key, sharded, sharded ? this.#keys.slot(key) : 0)
      this.#topics.set(key, topic)
    }
    return topic
  }

  #join(user: WakeupsUser, topic: Topic, listener: TopicListener): Watch {
    topic.add(listener, user.judge)
    this.#users.set(user, (this.#users.get(user) ?? 0) + 1)
    this.#attend(topic)
    let listening = true
    return {
      ready: topic.live || topic.settled(this.#options.timeoutMs),
      live: () => topic.live && this.#topics.get(topic.key) === topic,
      close: () => {
        if (!listening) return
        listening = false
        const others = (this.#users.get(user) ?? 1) - 1
        if (others > 0) this.#users.set(user, others)
        else this.#users.delete(user)
        if (topic.remove(listener)) this.#forget(topic)
      },
    }
  }

  #channelsOf({ key }: Topic): string[] {
    if (key === REVOCATIONS) return [this.#keys.revocations]
    if (key === GRANTS) return []
    return this.#connections.inbox ? [this.#keys.events(key)] : [this.#keys.events(key), this.#keys.ownEvents(key)]
  }

  #forget(topic: Topic): void {
    if (this.#topics.get(topic.key) !== topic) return
    this.#topics.delete(topic.key)
    const { at } = topic
    // The address of a lone server is an empty text.
    if (at !== undefined && topic.channels.length > 0)
      this.#connections.get(at)?.unsubscribe(topic.channels, topic.sharded)
    this.#unname(topic)
    topic.settle(false)
    if (at !== undefined) this.#connections.closeWhenIdle(at)
    else if (this.#topics.size === 0)
      for (const address of this.#connections.addresses) this.#connections.closeWhenIdle(address)
  }

  #unname(topic: Topic): void {
    for (const channel of topic.channels) if (this.#byChannel.get(channel) === topic) this.#byChannel.delete(channel)
    topic.channels = []
  }

  #isUsed(address: string): boolean {
    for (const { at } of this.#topics.values()) if (at === address) return true
    return false
  }

  /** Subscribes to every topic that is not subscribed to, or on the wrong node. */
  #audit(): void {
    clearTimeout(this.#auditing)
    this.#auditing = undefined
    this.#auditAt = Number.POSITIVE_INFINITY
    for (const topic of this.#topics.values()) this.#attend(topic)
  }

  #attend(topic: Topic): void {
    // Every node delivers revocations: any open connection serves them, and one is opened only if there is none.
    const anywhere = topic.sharded ? undefined : this.#connections.addresses[0]
    const address = anywhere ?? this.#adapter.addressOf(topic.slot)
    if (topic.at !== undefined && topic.sharded && topic.at !== address) topic.mute()
    if (topic.at === undefined && address !== undefined) {
      const pauseMs = this.#connections.pauseMs(address)
      if (pauseMs > 0) this.#auditIn(pauseMs)
      else this.#subscribe(topic, address)
    }
    // On a cluster slots move without anybody telling: look now and then.
    if (!topic.live || this.#adapter.cluster) this.#auditIn(AUDIT_MS)
  }

  /** The soonest of all that was asked for. */
  #auditIn(ms: number): void {
    const at = performance.now() + ms
    if (at >= this.#auditAt) return
    this.#auditAt = at
    clearTimeout(this.#auditing)
    this.#auditing = setTimeout(() => this.#audit(), ms)
    this.#auditing.unref()
  }

  #subscribe(topic: Topic, address: string): void {
    let listener: SubscriberConnection
    try {
      listener = this.#connections.open(address)
    } catch {
      return topic.settle(false)
    }
    topic.at = address
    let channels: string[] | undefined
    const current = (): boolean =>
      this.#topics.get(topic.key) === topic &&
      this.#connections.get(address) === listener &&
      (channels === undefined || topic.channels === channels)
    const live = (): void => {
      if (current()) topic.resume()
    }
    const failed = (): void => {
      if (!current()) return
      topic.mute()
      topic.settle(false)
      this.#relocate(topic)
    }
    const subscribe = (): void => {
      if (!current()) return
      channels = topic.channels = this.#channelsOf(topic)
      for (const channel of channels) this.#byChannel.set(channel, topic)
      if (topic.key === GRANTS) return listener.inboxOpen ? live() : topic.settle(false)
      listener.subscribe(channels, topic.sharded).then(live, failed)
    }
    // Whether grants come by the inbox or by channels has to be known first.
    if (listener.settled) subscribe()
    else void listener.opened.then(subscribe)
  }

  /** The node that served the channel serves it no longer, and the client may not know yet. */
  #relocate({ key, sharded }: Topic): void {
    const again = (): void => this.#auditIn(RELOCATED_MS)
    if (sharded) this.#user?.findOut(this.#keys.events(key)).then(again, () => this.#auditIn(AUDIT_MS / 2))
    else this.#auditIn(AUDIT_MS / 2)
  }

  #lose(address: string): void {
    this.#connections.drop(address)
    for (const topic of this.#topics.values()) {
      if (topic.at !== address) continue
      topic.mute()
      this.#unname(topic)
    }
  }

  /** The node at this address serves this channel, or none of its slots, any more. */
  #moved(address: string, channel: string | undefined): void {
    for (const topic of this.#topics.values()) {
      if (topic.at !== address || (channel !== undefined && !topic.channels.includes(channel))) continue
      topic.mute()
      this.#relocate(topic)
    }
  }

  #receiveMessage(channel: string, text: string): void {
    if (channel === this.#keys.revocations) return this.#receiveRevoked(text)
    if (text.startsWith('granted ')) return this.#receive(text.slice('granted '.length))
    if (text === 'changed') this.#byChannel.get(channel)?.tell({ type: 'changed' })
  }

  #receiveRevoked(text: string): void {
    for (const lease of revokedOf(text, (plain) => this.#keys.key(plain))) {
      for (const listener of [...this.#revoked]) {
        try {
          listener(lease)
        } catch {
          // A listener that throws must not keep the revocation from the others.
        }
      }
    }
  }

  readonly #receive = (message: string): void => {
    const grant = grantOf(message)
    const key = this.#keys.key(grant.plain)
    this.#topics.get(GRANTS)?.receive(key, grant)
    this.#topics.get(key)?.receive(key, grant)
  }
}
