/**
 * Topics, each with its listeners, and what keeps them subscribed: on one connection, or on a cluster on that of the node
 * which serves the slot, and again when the connection broke or the slot moved.
 *
 * @module
 */
import type { Adapter } from '../../clients/redis/adapter.js'
import type { StoreEvent } from '../../store.js'
import type { GrantMessage } from './grant-inbox.js'
import type { Keys } from './keys.js'
import { type SubscriberConnection, SubscriberConnections, type WakeupsOptions } from './subscriber-connection.js'

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

/** AUDIT_MS: how often a subscription that is missing is tried again. */
const AUDIT_MS = 1_000
/** RELOCATED_MS: pause before subscribing again once the cluster has said who serves the slot. Shorter hot-loops while a slot moves. */
const RELOCATED_MS = 50

/** UNKNOWN_MS: pause before subscribing again while the client does not know which node serves a slot. A look sends nothing. */
const UNKNOWN_MS = 50

/** Topics of all keys. No key of the core has such a name: each begins with its kind. */
export const REVOCATIONS = '*revocations'
export const GRANTS = '*grants'

export interface TopicsOptions extends WakeupsOptions {
  /** The store that speaks for all; undefined while none listens. */
  user: () => WakeupsUser | undefined
  message: (channel: string, text: string) => void
  /** A grant came by the inbox. */
  grant: (message: string) => void
}

/** All topics of one client that somebody listens to. */
export class Topics {
  /** What concerns all keys is under REVOCATIONS and GRANTS. */
  readonly byKey: Map<string, Topic> = new Map()
  readonly byChannel: Map<string, Topic> = new Map()
  readonly connections: SubscriberConnections
  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #user: () => WakeupsUser | undefined
  #auditing: NodeJS.Timeout | undefined
  #auditAt = Number.POSITIVE_INFINITY

  constructor(adapter: Adapter, keys: Keys, { user, ...options }: TopicsOptions) {
    this.#adapter = adapter
    this.#keys = keys
    this.#user = user
    this.connections = new SubscriberConnections(adapter, keys, {
      ...options,
      probe: (list) => user()?.probe(list) ?? Promise.reject(new Error('no store listens any more')),
      broken: (address, pauseMs) => {
        this.#lose(address)
        this.#auditIn(pauseMs)
      },
      moved: (address, channel) => this.#moved(address, channel),
      isUsed: (address) => this.#isUsed(address),
    })
  }

  /** Made if there is none yet; `forget` drops it again. */
  topic(key: string, sharded: boolean): Topic {
    let topic = this.byKey.get(key)
    if (!topic) {
      topic = new Topic(key, sharded, sharded ? this.#keys.slot(key) : 0)
      this.byKey.set(key, topic)
    }
    return topic
  }

  /** Subscribes to this topic if it is not, or on the wrong node. */
  attend(topic: Topic): void {
    // Every node delivers revocations: any open connection serves them, and one is opened only if there is none.
    const anywhere = topic.sharded ? undefined : this.connections.addresses[0]
    const address = anywhere ?? this.#adapter.addressOf(topic.slot)
    if (topic.at !== undefined && topic.sharded && topic.at !== address) topic.mute()
    if (topic.at === undefined && address !== undefined) {
      const pauseMs = this.connections.pauseMs(address)
      if (pauseMs > 0) this.#auditIn(pauseMs)
      else this.#subscribe(topic, address)
    }
    // The client does not know the cluster yet, which takes it a few milliseconds: a revocation before the next look is missed.
    if (address === undefined) this.#auditIn(UNKNOWN_MS)
    // On a cluster slots move without anybody telling: look now and then.
    if (!topic.live || this.#adapter.cluster) this.#auditIn(AUDIT_MS)
  }

  /** Nobody listens to it any more. */
  forget(topic: Topic): void {
    if (this.byKey.get(topic.key) !== topic) return
    this.byKey.delete(topic.key)
    const { at } = topic
    // The address of a lone server is an empty text.
    if (at !== undefined && topic.channels.length > 0)
      this.connections.get(at)?.unsubscribe(topic.channels, topic.sharded)
    this.#unname(topic)
    topic.settle(false)
    if (at !== undefined) this.connections.closeWhenIdle(at)
    else if (this.byKey.size === 0)
      for (const address of this.connections.addresses) this.connections.closeWhenIdle(address)
  }

  /** The connection may lead to a server that is no longer the one. On a cluster the address tells; else listen anew. */
  refresh(): void {
    if (!this.#adapter.cluster) for (const address of this.connections.addresses) this.#lose(address)
    this.#audit()
  }

  /** A topic that is opened later begins anew. */
  close(): void {
    clearTimeout(this.#auditing)
    this.#auditing = undefined
    this.#auditAt = Number.POSITIVE_INFINITY
    for (const topic of this.byKey.values()) topic.settle(false)
    this.byKey.clear()
    this.byChannel.clear()
    this.connections.close()
  }

  #channelsOf({ key }: Topic): string[] {
    if (key === REVOCATIONS) return [this.#keys.revocations]
    if (key === GRANTS) return []
    return this.connections.inbox ? [this.#keys.events(key)] : [this.#keys.events(key), this.#keys.ownEvents(key)]
  }

  #unname(topic: Topic): void {
    for (const channel of topic.channels) if (this.byChannel.get(channel) === topic) this.byChannel.delete(channel)
    topic.channels = []
  }

  #isUsed(address: string): boolean {
    for (const { at } of this.byKey.values()) if (at === address) return true
    return false
  }

  /** Subscribes to every topic that is not subscribed to, or on the wrong node. */
  #audit(): void {
    clearTimeout(this.#auditing)
    this.#auditing = undefined
    this.#auditAt = Number.POSITIVE_INFINITY
    for (const topic of this.byKey.values()) this.attend(topic)
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
      listener = this.connections.open(address)
    } catch {
      return topic.settle(false)
    }
    topic.at = address
    let channels: string[] | undefined
    const current = (): boolean =>
      this.byKey.get(topic.key) === topic &&
      this.connections.get(address) === listener &&
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
      for (const channel of channels) this.byChannel.set(channel, topic)
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
    const user = this.#user()
    if (sharded) user?.findOut(this.#keys.events(key)).then(again, () => this.#auditIn(AUDIT_MS / 2))
    else this.#auditIn(AUDIT_MS / 2)
  }

  #lose(address: string): void {
    this.connections.drop(address)
    for (const topic of this.byKey.values()) {
      if (topic.at !== address) continue
      topic.mute()
      this.#unname(topic)
    }
  }

  /** The node at this address serves this channel, or none of its slots, any more. */
  #moved(address: string, channel: string | undefined): void {
    for (const topic of this.byKey.values()) {
      if (topic.at !== address || (channel !== undefined && !topic.channels.includes(channel))) continue
      topic.mute()
      this.#relocate(topic)
    }
  }
}
