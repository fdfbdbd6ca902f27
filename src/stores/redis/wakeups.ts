/**
 * Hearing what happens to keys: one listening connection (on a cluster one per node that is listened to), opened with the
 * first watch, closed when it has been idle for a while.
 *
 * @module
 */
import type { Lease, StoreEvent, Watch } from '../../store.js'
import type { Adapter } from '../../clients/redis/adapter.js'
import { type GrantMessage, UnclaimedGrants, endOfOwner, grantOf, revokedOf } from './grant-message.js'
import type { Keys } from './keys.js'
import { Listener } from './listener.js'
import { type Listening, Topic } from './topic.js'

/** IDLE_MS: how long a connection without any watch is kept. The next wait usually comes sooner. */
const IDLE_MS = 10_000
/** AUDIT_MS: how often what should be subscribed and is not is tried again. */
const AUDIT_MS = 1_000
/** The pause before a broken connection is opened again: short at first, since most breaks are, and then twice as long each time. */
const FIRST_RETRY_MS = 50
const LONGEST_RETRY_MS = 5_000

export interface WakeupsOptions {
  timeoutMs: number
  /** Grants may be pushed to a list instead of a channel, where the server and the client can do so. */
  inbox: boolean
  /** Makes the client ask the cluster who serves the slot of this channel now. */
  findOut: (channel: string) => Promise<unknown>
  /** Pushes an empty message to this list. */
  probe: (inbox: string) => Promise<unknown>
  /** Turns a pushed grant into an event, now or once that is confirmed. */
  judge: (key: string, grant: GrantMessage, deliver: (event: StoreEvent) => void) => void
}

export class Wakeups {
  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #options: WakeupsOptions
  /** By key; the revocations of all keys under ''. */
  readonly #topics = new Map<string, Topic>()
  readonly #byChannel = new Map<string, Topic>()
  readonly #listeners = new Map<string, Listener>()
  /** By address: how often it broke in a row, and when it may be tried again. */
  readonly #pauses = new Map<string, { ms: number; until: number }>()
  readonly #idle = new Map<string, NodeJS.Timeout>()
  readonly #unclaimed = new UnclaimedGrants()
  readonly #revoked = new Set<(lease: Lease) => void>()
  #inboxes = 0
  #byInbox: boolean
  #auditing: NodeJS.Timeout | undefined
  #auditAt = Number.POSITIVE_INFINITY
  #closed = false

  constructor(adapter: Adapter, keys: Keys, options: WakeupsOptions) {
    this.#adapter = adapter
    this.#keys = keys
    this.#options = options
    // Keys of one process lie in many slots there, and a connection can block only on lists of one.
    this.#byInbox = options.inbox && !adapter.cluster
  }

  /** Whom others tell of grants to those who ask now. */
  get subscriber(): string {
    return this.#inbox?.subscriber ?? this.#keys.subscriber
  }

  /** Grants to those who ask now will be heard, whatever the key. */
  get receivesAllGrants(): boolean {
    return this.#inbox !== undefined
  }

  /** The listener whose inbox is open, where there is only one listener. */
  get #inbox(): Listener | undefined {
    for (const listener of this.#listeners.values()) if (listener.inboxOpen) return listener
    return undefined
  }

  watch(key: string, listener: (event: StoreEvent) => void, only?: 'granted'): Watch {
    const topic = this.#topic(key, this.#adapter.cluster)
    if (!only && !topic.everything) {
      topic.everything = true
      if (topic.at !== undefined) this.#mute(topic)
    }
    const watch = this.#join(topic, listener)
    this.#unclaimed.claim(key, (grant) => this.#options.judge(key, grant, (event) => topic.tell(event)))
    return watch
  }

  watchRevoked(listener: (lease: Lease) => void): Watch {
    this.#revoked.add(listener)
    // Whatever was told while nobody heard is lost. The core renews what it holds after every interruption anyway.
    const watch = this.#join(this.#topic('', false), () => {})
    return {
      ready: watch.ready,
      live: watch.live,
      close: () => {
        this.#revoked.delete(listener)
        watch.close()
      },
    }
  }

  /** The connection may lead to a server that is no longer the one. On a cluster the address tells; else listen anew. */
  refresh(): void {
    if (!this.#adapter.cluster) for (const address of [...this.#listeners.keys()]) this.#lose(address)
    this.#audit()
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#auditing)
    for (const timer of this.#idle.values()) clearTimeout(timer)
    for (const topic of this.#topics.values()) topic.settle(false)
    this.#topics.clear()
    this.#byChannel.clear()
    for (const listener of this.#listeners.values()) listener.close()
    this.#listeners.clear()
  }

  #topic(key: string, sharded: boolean): Topic {
    let topic = this.#topics.get(key)
    if (!topic) {
      topic = new Topic(key, sharded, this.#adapter.cluster && key !== '' ? this.#keys.slot(key) : 0)
      this.#topics.set(key, topic)
    }
    return topic
  }

  #join(topic: Topic, listener: (event: StoreEvent) => void): Watch {
    topic.add(listener)
    this.#attend(topic)
    let listening = true
    return {
      ready: topic.live || topic.settled(this.#options.timeoutMs),
      live: () => topic.live && this.#topics.get(topic.key) === topic,
      close: () => {
        if (!listening) return
        listening = false
        if (topic.remove(listener)) this.#forget(topic)
      },
    }
  }

  #channelsOf({ key, everything }: Topic): string[] {
    if (key === '') return [this.#keys.revocations]
    const channels = everything ? [this.#keys.events(key)] : []
    if (!this.#inbox) channels.push(this.#keys.ownEvents(key))
    return channels
  }

  #forget(topic: Topic): void {
    if (this.#topics.get(topic.key) !== topic) return
    this.#topics.delete(topic.key)
    const { at } = topic
    if (at && topic.channels.length > 0) this.#listeners.get(at)?.unsubscribe(topic.channels, topic.sharded)
    this.#unname(topic)
    topic.settle(false)
    if (at !== undefined) this.#closeWhenIdle(at)
    else if (this.#topics.size === 0) for (const address of this.#listeners.keys()) this.#closeWhenIdle(address)
  }

  #unname(topic: Topic): void {
    for (const channel of topic.channels) if (this.#byChannel.get(channel) === topic) this.#byChannel.delete(channel)
    topic.channels = []
  }

  #isUsed(address: string): boolean {
    for (const { at } of this.#topics.values()) if (at === address) return true
    return false
  }

  #closeWhenIdle(address: string): void {
    if (this.#isUsed(address) || this.#idle.has(address)) return
    const timer = setTimeout(() => {
      this.#idle.delete(address)
      if (this.#isUsed(address)) return
      this.#listeners.get(address)?.close()
      this.#listeners.delete(address)
    }, IDLE_MS)
    timer.unref()
    this.#idle.set(address, timer)
  }

  /** Subscribes to whatever is not heard and should be, or is heard in the wrong place. */
  #audit(): void {
    if (this.#closed) return
    clearTimeout(this.#auditing)
    this.#auditing = undefined
    this.#auditAt = Number.POSITIVE_INFINITY
    for (const topic of this.#topics.values()) this.#attend(topic)
  }

  #attend(topic: Topic): void {
    if (this.#closed) return
    // What every node tells may be heard anywhere: not one more connection for it.
    const anywhere = topic.sharded ? undefined : this.#listeners.keys().next().value
    const address = anywhere ?? this.#adapter.addressOf(topic.slot)
    if (topic.at !== undefined && topic.sharded && topic.at !== address) this.#mute(topic)
    if (topic.at === undefined && address !== undefined) {
      const pauseMs = (this.#pauses.get(address)?.until ?? 0) - performance.now()
      if (pauseMs > 0 && !this.#listeners.has(address)) this.#auditIn(pauseMs)
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
    let listener: Listener
    try {
      listener = this.#listen(address)
    } catch {
      return topic.settle(false)
    }
    topic.at = address
    let channels: string[] | undefined
    const current = (): boolean =>
      this.#topics.get(topic.key) === topic &&
      this.#listeners.get(address) === listener &&
      (channels === undefined || topic.channels === channels)
    const live = (): void => {
      if (current()) topic.resume()
    }
    const failed = (): void => {
      if (!current()) return
      this.#mute(topic)
      topic.settle(false)
      this.#relocate(topic)
    }
    const subscribe = (): void => {
      if (!current()) return
      channels = topic.channels = this.#channelsOf(topic)
      for (const channel of channels) this.#byChannel.set(channel, topic)
      if (channels.length === 0) return live()
      listener.subscribe(channels, topic.sharded).then(live, failed)
    }
    // Whether grants come by the inbox or by channels has to be known first.
    if (listener.settled) subscribe()
    else void listener.opened.then(subscribe)
  }

  /** The node that served the channel serves it no longer, and the client may not know yet. */
  #relocate({ key }: Topic): void {
    const again = (): void => this.#auditIn(FIRST_RETRY_MS)
    if (this.#adapter.cluster && key !== '')
      this.#options.findOut(this.#keys.events(key)).then(again, () => this.#auditIn(AUDIT_MS / 2))
    else this.#auditIn(AUDIT_MS / 2)
  }

  #listen(address: string): Listener {
    clearTimeout(this.#idle.get(address))
    this.#idle.delete(address)
    const known = this.#listeners.get(address)
    if (known) return known
    // Another name each time: a dead connection may still be blocked on the old list, and would swallow grants.
    const subscriber = this.#byInbox ? `m${this.#keys.subscriber}x${++this.#inboxes}` : undefined
    const on: Listening = {
      message: (channel, text) => this.#hear(channel, text),
      grant: (message) => this.#receive(message),
      broken: (livedMs) => this.#break(address, listener, livedMs),
      moved: (channel) => {
        for (const topic of this.#topics.values()) {
          if (topic.at !== address || (channel !== undefined && !topic.channels.includes(channel))) continue
          this.#mute(topic)
          this.#relocate(topic)
        }
      },
      noInbox: () => {
        this.#byInbox = false
      },
    }
    const inbox = subscriber === undefined ? undefined : { subscriber, name: this.#keys.inbox(subscriber) }
    const { timeoutMs, probe } = this.#options
    const listener = new Listener(this.#adapter, address, { timeoutMs, probe, inbox, on })
    this.#listeners.set(address, listener)
    return listener
  }

  #break(address: string, listener: Listener, livedMs: number): void {
    if (this.#listeners.get(address) !== listener) return
    const before = livedMs > LONGEST_RETRY_MS ? 0 : (this.#pauses.get(address)?.ms ?? 0)
    const ms = Math.min(Math.max(before * 2, FIRST_RETRY_MS), LONGEST_RETRY_MS)
    // All processes of a server that was away would come back in the same moment.
    const pauseMs = ms * (0.5 + Math.random() / 2)
    this.#pauses.set(address, { ms, until: performance.now() + pauseMs })
    this.#lose(address)
    this.#auditIn(pauseMs)
  }

  #lose(address: string): void {
    const listener = this.#listeners.get(address)
    this.#listeners.delete(address)
    listener?.close()
    for (const topic of this.#topics.values()) {
      if (topic.at !== address) continue
      this.#mute(topic)
      this.#unname(topic)
    }
  }

  #mute(topic: Topic): void {
    topic.mute()
  }

  #hear(channel: string, text: string): void {
    if (channel === this.#keys.revocations) return this.#hearRevoked(text)
    if (text.startsWith('granted ')) return this.#receive(text.slice('granted '.length))
    if (text === 'changed') this.#byChannel.get(channel)?.tell({ type: 'changed' })
  }

  #hearRevoked(text: string): void {
    for (const lease of revokedOf(text, (plain) => this.#keys.key(plain))) {
      for (const listener of [...this.#revoked]) {
        try {
          listener(lease)
        } catch {
          // A listener that throws must not keep the news from the others.
        }
      }
    }
  }

  #receive(message: string): void {
    const end = endOfOwner(message)
    const key = this.#keys.key(message.slice(end + 1))
    const grant = grantOf(message, end)
    const topic = this.#topics.get(key)
    if (topic) this.#options.judge(key, grant, (event) => topic.tell(event))
    else this.#unclaimed.keep(key, grant)
  }
}
