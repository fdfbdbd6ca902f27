/**
 * Subscriptions on all nodes at once, over one subscriber connection per node. It is opened for the first channel, and closed
 * when it has had none for a while.
 *
 * @module
 */
import type { RedisSubscriber } from '../../clients/redis/adapter.js'
import type { World } from '../../util/world.js'
import { type Cluster, count } from './cluster.js'
import type { NodeConnection } from './connection.js'
import { runChannel } from './keys.js'

/** IDLE_MS: how long connections without a channel stay open. Shorter reconnects between two waits that follow each other. */
const IDLE_MS = 10_000
/** FIRST_RETRY_MS: pause before a connection that worked is opened again. The server is mostly there: messages are missed meanwhile. */
const FIRST_RETRY_MS = 50
/** RETRY_MS: pause after a connection that could not be opened. Shorter hot-loops while a server is down. */
const RETRY_MS = 1_000

export interface NodeChannelEvents {
  message(node: number, text: string): void
  /** Called when it is live again after a time in which messages may have been missed. */
  resumed(): void
}

/** One channel, subscribed to on all nodes. */
export interface NodeChannel {
  /** The nodes whose messages arrive, as a bit mask. */
  readonly subscribed: number
  /** Whether so many nodes are subscribed that every majority has one of them. */
  live(): boolean
  /** Settles when it is live, or with false when that takes too long. */
  ready(): Promise<boolean> | true
  close(): void
}

interface OpenChannel {
  readonly name: string
  readonly on: NodeChannelEvents
  readonly settle: Set<(live: boolean) => void>
  subscribed: number
  /** It was live before and is not now: messages since then may have been missed. */
  interrupted: boolean
}

export class NodeChannels {
  readonly #nodes: readonly NodeConnection[]
  readonly #world: World
  /** With so many nodes subscribed, every majority has one of them. */
  readonly #enough: number
  readonly #timeoutMs: number
  readonly #channels = new Map<string, OpenChannel>()
  readonly #subscribers: (RedisSubscriber | undefined)[]
  #idle: (() => void) | undefined
  #closed = false

  constructor(nodes: readonly NodeConnection[], { majority, world, nodeTimeoutMs }: Cluster) {
    this.#nodes = nodes
    this.#world = world
    this.#enough = nodes.length - majority + 1
    this.#timeoutMs = nodeTimeoutMs
    this.#subscribers = nodes.map(() => undefined)
  }

  /** Each name may be open once at a time. */
  open(name: string, on: NodeChannelEvents): NodeChannel {
    const channel: OpenChannel = { name, on, settle: new Set(), subscribed: 0, interrupted: false }
    this.#channels.set(name, channel)
    this.#idle?.()
    this.#idle = undefined
    if (!this.#closed) for (let i = 0; i < this.#nodes.length; i++) this.#subscribe(i, channel)
    return {
      get subscribed() {
        return channel.subscribed
      },
      live: () => this.#isLive(channel),
      ready: () => this.#isLive(channel) || this.#whenLive(channel),
      close: () => this.#close(channel),
    }
  }

  close(): void {
    this.#closed = true
    for (const channel of [...this.#channels.values()]) this.#close(channel)
    this.#idle?.()
    this.#closeSubscribers()
  }

  #isLive(channel: OpenChannel): boolean {
    return this.#channels.get(channel.name) === channel && count(channel.subscribed) >= this.#enough
  }

  #whenLive(channel: OpenChannel): Promise<boolean> {
    return new Promise((resolve) => {
      const settle = (live: boolean): void => {
        cancel()
        channel.settle.delete(settle)
        resolve(live)
      }
      // A caller must not wait for ever for servers that do not answer.
      const cancel = this.#world.after(this.#timeoutMs, () => settle(false))
      channel.settle.add(settle)
    })
  }

  #subscribe(i: number, channel: OpenChannel): void {
    const subscriber = this.#subscriber(i)
    const current = (): boolean => this.#channels.get(channel.name) === channel && this.#subscribers[i] === subscriber
    subscriber.subscribe([channel.name], false).then(
      () => {
        if (!current()) return
        const wasLive = this.#isLive(channel)
        channel.subscribed |= 1 << i
        if (wasLive || !this.#isLive(channel)) return
        for (const settle of channel.settle) settle(true)
        if (channel.interrupted) channel.on.resumed()
        channel.interrupted = false
      },
      () => {
        // The connection broke: `broken` is called, and subscribes again.
      },
    )
  }

  #subscriber(i: number): RedisSubscriber {
    const known = this.#subscribers[i]
    if (known) return known
    const subscriber = (this.#nodes[i] as NodeConnection).adapter.listen('', {
      message: (name, text) => this.#receive(i, name, text),
      broken: () => {
        if (this.#subscribers[i] === subscriber) this.#handleBroken(i)
      },
      moved: () => {},
    })
    this.#subscribers[i] = subscriber
    this.#witness(subscriber)
    return subscriber
  }

  /** Anybody may publish on a channel: what is no message of leasehold must not end the process. */
  #receive(i: number, name: string, text: string): void {
    try {
      this.#channels.get(name)?.on.message(i, text)
    } catch {
      // Messages are hints: a waiter asks again by itself, and a holder with its next renewal.
    }
  }

  /**
   * Lets the server know, as long as this connection lasts, which run of it this is: scripts need not ask for it then. Both requests
   * use one connection, which is never repaired. Without it, scripts ask: nothing depends on whether it succeeds.
   */
  #witness(subscriber: RedisSubscriber): void {
    subscriber
      .serverRun()
      .then((run) => subscriber.subscribe([runChannel(run)], false))
      .catch(() => {})
  }

  /** Subscribes again as soon as the node is back, if any channel is still open. */
  #handleBroken(i: number): void {
    this.#subscribers[i] = undefined
    let wasSubscribed = false
    for (const channel of this.#channels.values()) {
      wasSubscribed ||= (channel.subscribed & (1 << i)) !== 0
      const wasLive = this.#isLive(channel)
      channel.subscribed &= ~(1 << i)
      channel.interrupted ||= wasLive && !this.#isLive(channel)
    }
    this.#world.after(wasSubscribed ? FIRST_RETRY_MS : RETRY_MS, () => {
      if (this.#closed || this.#subscribers[i]) return
      for (const channel of this.#channels.values()) this.#subscribe(i, channel)
    })
  }

  #close(channel: OpenChannel): void {
    if (this.#channels.get(channel.name) !== channel) return
    this.#channels.delete(channel.name)
    for (const subscriber of this.#subscribers) subscriber?.unsubscribe([channel.name], false)
    for (const settle of channel.settle) settle(false)
    if (this.#channels.size > 0 || this.#closed) return
    this.#idle?.()
    this.#idle = this.#world.after(IDLE_MS, () => this.#closeSubscribers())
  }

  #closeSubscribers(): void {
    for (const [i, subscriber] of this.#subscribers.entries()) {
      this.#subscribers[i] = undefined
      subscriber?.close()
    }
  }
}
