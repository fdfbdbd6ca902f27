/**
 * Connections that subscribe to channels and block on the grant inbox: one, and all of a client.
 *
 * @module
 */
import type { Adapter, RedisSubscriber } from '../../clients/redis/adapter.js'
import { GrantInbox } from './grant-inbox.js'
import type { Keys } from './keys.js'

/** IDLE_MS: how long a connection without any watch is kept. The next wait usually comes sooner. */
const IDLE_MS = 10_000
/** FIRST_RETRY_MS, LONGEST_RETRY_MS: the pause before a broken connection is opened again, short at first, since most breaks are, and then twice as long each time. */
const FIRST_RETRY_MS = 50
const LONGEST_RETRY_MS = 5_000

export interface WakeupsOptions {
  timeoutMs: number
  /** Grants may be pushed to a list instead of a channel, where the server and the client can do so. */
  inbox: boolean
}

/** What a listening connection reports. */
export interface ConnectionEvents {
  message: (channel: string, text: string) => void
  /** A grant came by the inbox. */
  grant: (message: string) => void
  /** It broke, after so long. */
  broken: (livedMs: number) => void
  /** This channel, or all of them, are no longer told here: the slot went to another server. */
  moved: (channel: string | undefined) => void
  /** Not on this server, or not for this user. */
  noInbox: () => void
}

/** CHECK_MS: how often a connection without an inbox is asked whether it still works. A dead one would lose every push until then. */
const CHECK_MS = 5_000

export interface SubscriberConnectionOptions {
  timeoutMs: number
  probe: (inbox: string) => Promise<unknown>
  /** Grants are to come by this list. */
  inbox: { subscriber: string; name: string } | undefined
  on: ConnectionEvents
}

/** One listening connection: it is used until it breaks, and noticed when it only seems to be open. */
export class SubscriberConnection {
  readonly subscriber: string | undefined
  /** Settles when it is known whether grants come by the inbox. */
  readonly opened: Promise<unknown>
  settled = false
  readonly #subscriber: RedisSubscriber
  readonly #options: SubscriberConnectionOptions
  readonly #openedAt = performance.now()
  #inbox: GrantInbox | undefined
  #checking: NodeJS.Timeout | undefined
  #closed = false

  constructor(adapter: Adapter, address: string, options: SubscriberConnectionOptions) {
    this.#options = options
    const { on, inbox } = options
    const message = (channel: string, text: string): void => {
      try {
        on.message(channel, text)
      } catch {
        // Anybody may publish anything. Thrown out of the client's own event, it would end the process.
      }
    }
    this.#subscriber = adapter.listen(address, { message, broken: this.#break, moved: on.moved })
    this.subscriber = inbox?.subscriber
    this.opened = inbox ? this.#openInbox(inbox.name) : Promise.resolve()
    if (!inbox) {
      this.settled = true
      this.#checkLater()
    }
  }

  get inboxOpen(): boolean {
    return this.#inbox?.open === true
  }

  async subscribe(channels: string[], sharded: boolean): Promise<void> {
    const subscribed = this.#subscriber.subscribe(channels, sharded)
    this.#inbox?.interrupt(subscribed)
    await subscribed
  }

  unsubscribe(channels: string[], sharded: boolean): void {
    this.#subscriber.unsubscribe(channels, sharded)
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#checking)
    this.#inbox?.close()
    this.#subscriber.close()
  }

  async #openInbox(name: string): Promise<void> {
    const { timeoutMs, probe, on } = this.#options
    const inbox = new GrantInbox(this.#subscriber, {
      name,
      timeoutMs,
      probe: () => probe(name),
      deliver: on.grant,
      broken: this.#break,
    })
    this.#inbox = inbox
    const open = await inbox.opened
    this.settled = true
    if (open === true || this.#closed) return
    this.#inbox = undefined
    // Then by channels, on a connection that blocks on nothing.
    if (open === false) on.noInbox()
    if (inbox.blocked) this.#break()
    else this.#checkLater()
  }

  #checkLater(): void {
    if (this.#closed) return
    this.#checking = setTimeout(() => this.#check(), CHECK_MS)
    this.#checking.unref()
  }

  #check(): void {
    const late = setTimeout(this.#break, this.#options.timeoutMs)
    late.unref()
    this.#subscriber
      .ping()
      .then(() => this.#checkLater(), this.#break)
      .finally(() => clearTimeout(late))
  }

  readonly #break = (): void => {
    if (this.#closed) return
    this.close()
    this.#options.on.broken(performance.now() - this.#openedAt)
  }
}

export interface SubscriberConnectionsOptions extends WakeupsOptions {
  /** Pushes an empty message to this list. */
  probe: (inbox: string) => Promise<unknown>
  message: (channel: string, text: string) => void
  grant: (message: string) => void
  /** The connection to this address broke. It may be opened again after so long. */
  broken: (address: string, pauseMs: number) => void
  moved: (address: string, channel: string | undefined) => void
  isUsed: (address: string) => boolean
}

/** The subscriber connections of one client: one, or on a cluster one per node that is listened to. */
export class SubscriberConnections {
  /** Grants are pushed to a list, as far as is known. */
  byInbox: boolean
  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #options: SubscriberConnectionsOptions
  readonly #open = new Map<string, SubscriberConnection>()
  /** By address of a connection that broke: the pause, which the next break doubles, and until when it lasts. */
  readonly #pauses = new Map<string, { ms: number; until: number }>()
  readonly #idle = new Map<string, NodeJS.Timeout>()
  #inboxes = 0

  constructor(adapter: Adapter, keys: Keys, options: SubscriberConnectionsOptions) {
    this.#adapter = adapter
    this.#keys = keys
    this.#options = options
    // On a cluster the keys of one process lie in many slots, and a connection can block only on lists of one.
    this.byInbox = options.inbox && !adapter.cluster
  }

  get addresses(): string[] {
    return [...this.#open.keys()]
  }

  /** The connection whose inbox is open, where there is only one connection. */
  get inbox(): SubscriberConnection | undefined {
    for (const connection of this.#open.values()) if (connection.inboxOpen) return connection
    return undefined
  }

  get(address: string): SubscriberConnection | undefined {
    return this.#open.get(address)
  }

  /** How long to wait before a connection to this address that broke is opened again. */
  pauseMs(address: string): number {
    return this.#open.has(address) ? 0 : (this.#pauses.get(address)?.until ?? 0) - performance.now()
  }

  open(address: string): SubscriberConnection {
    clearTimeout(this.#idle.get(address))
    this.#idle.delete(address)
    const known = this.#open.get(address)
    if (known) return known
    // Another name each time: a dead connection may still be blocked on the old list, and would swallow grants.
    const subscriber = this.byInbox ? `m${this.#keys.subscriber}x${++this.#inboxes}` : undefined
    const on: ConnectionEvents = {
      message: this.#options.message,
      grant: this.#options.grant,
      broken: (livedMs) => this.#break(address, listener, livedMs),
      moved: (channel) => this.#options.moved(address, channel),
      noInbox: () => {
        this.byInbox = false
      },
    }
    const inbox = subscriber === undefined ? undefined : { subscriber, name: this.#keys.inbox(subscriber) }
    const { timeoutMs, probe } = this.#options
    const listener = new SubscriberConnection(this.#adapter, address, { timeoutMs, probe, inbox, on })
    this.#open.set(address, listener)
    return listener
  }

  #break(address: string, listener: SubscriberConnection, livedMs: number): void {
    if (this.#open.get(address) !== listener) return
    const before = livedMs > LONGEST_RETRY_MS ? 0 : (this.#pauses.get(address)?.ms ?? 0)
    const ms = Math.min(Math.max(before * 2, FIRST_RETRY_MS), LONGEST_RETRY_MS)
    // All processes of a server that was away would come back in the same moment.
    const pauseMs = ms * (0.5 + Math.random() / 2)
    this.#pauses.set(address, { ms, until: performance.now() + pauseMs })
    this.#options.broken(address, pauseMs)
  }

  closeWhenIdle(address: string): void {
    if (this.#options.isUsed(address) || this.#idle.has(address)) return
    const timer = setTimeout(() => {
      this.#idle.delete(address)
      if (this.#options.isUsed(address)) return
      this.#open.get(address)?.close()
      this.#open.delete(address)
    }, IDLE_MS)
    timer.unref()
    this.#idle.set(address, timer)
  }

  drop(address: string): void {
    const connection = this.#open.get(address)
    this.#open.delete(address)
    connection?.close()
  }

  close(): void {
    for (const timer of this.#idle.values()) clearTimeout(timer)
    this.#idle.clear()
    for (const connection of this.#open.values()) connection.close()
    this.#open.clear()
  }
}
