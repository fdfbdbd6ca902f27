/**
 * Subscriptions on all nodes at once. A connection per node listens, made when the first channel asks for it and closed when
 * it has been idle for a while.
 *
 * @module
 */
import type { Ear } from '../../clients/redis/adapter.js'
import type { World } from '../../kit/world.js'
import type { Line } from './clients.js'
import { type Cluster, count } from './cluster.js'

/** How long connections without any channel are kept: the next wait comes soon. */
const IDLE_MS = 10_000
/** Pause before a connection that was heard well is made anew. */
const FIRST_RETRY_MS = 50
/** Pause after a connection that could not be made. Shorter would hot-loop while a server is down. */
const RETRY_MS = 1_000

export interface ChannelEvents {
  message(node: number, text: string): void
  /** Live again after a while in which messages may have been missed. */
  resumed(): void
}

/** One channel, subscribed to on all nodes. */
export interface NodeChannel {
  /** The nodes whose messages arrive, as a bit mask. */
  readonly heardFrom: number
  /** Whether so many nodes are heard that every majority has one of them. */
  live(): boolean
  /** Settles when it is live, or with false when that takes too long. */
  ready(): Promise<boolean> | true
  close(): void
}

interface Channel {
  readonly name: string
  readonly on: ChannelEvents
  readonly settle: Set<(live: boolean) => void>
  heardFrom: number
  /** It was live before: what happened since may have been missed. */
  interrupted: boolean
}

export class NodeChannels {
  readonly #lines: readonly Line[]
  readonly #world: World
  /** With so many nodes heard, every majority has one of them. */
  readonly #enough: number
  readonly #timeoutMs: number
  readonly #channels = new Map<string, Channel>()
  readonly #connections: (Ear | undefined)[]
  #idle: (() => void) | undefined
  #closed = false

  constructor(lines: readonly Line[], { majority, world, nodeTimeoutMs }: Cluster) {
    this.#lines = lines
    this.#world = world
    this.#enough = lines.length - majority + 1
    this.#timeoutMs = nodeTimeoutMs
    this.#connections = lines.map(() => undefined)
  }

  /** A name may be open once at a time. */
  open(name: string, on: ChannelEvents): NodeChannel {
    const channel: Channel = { name, on, settle: new Set(), heardFrom: 0, interrupted: false }
    this.#channels.set(name, channel)
    this.#idle?.()
    this.#idle = undefined
    if (!this.#closed) for (let i = 0; i < this.#lines.length; i++) this.#subscribe(i, channel)
    return {
      get heardFrom() {
        return channel.heardFrom
      },
      live: () => this.#isLive(channel),
      ready: () => this.#isLive(channel) || this.#settled(channel),
      close: () => this.#close(channel),
    }
  }

  close(): void {
    this.#closed = true
    for (const channel of [...this.#channels.values()]) this.#close(channel)
    this.#idle?.()
    this.#hangUp()
  }

  #isLive(channel: Channel): boolean {
    return this.#channels.get(channel.name) === channel && count(channel.heardFrom) >= this.#enough
  }

  #settled(channel: Channel): Promise<boolean> {
    return new Promise((resolve) => {
      const settle = (live: boolean): void => {
        cancel()
        channel.settle.delete(settle)
        resolve(live)
      }
      // Nobody may wait for ever for servers that say nothing.
      const cancel = this.#world.after(this.#timeoutMs, () => settle(false))
      channel.settle.add(settle)
    })
  }

  #subscribe(i: number, channel: Channel): void {
    const connection = this.#connection(i)
    const current = (): boolean => this.#channels.get(channel.name) === channel && this.#connections[i] === connection
    connection.subscribe([channel.name], false).then(
      () => {
        if (!current()) return
        const wasLive = this.#isLive(channel)
        channel.heardFrom |= 1 << i
        if (wasLive || !this.#isLive(channel)) return
        for (const settle of channel.settle) settle(true)
        if (channel.interrupted) channel.on.resumed()
        channel.interrupted = false
      },
      () => {
        // The connection broke, and says so itself.
      },
    )
  }

  #connection(i: number): Ear {
    const known = this.#connections[i]
    if (known) return known
    const connection = (this.#lines[i] as Line).adapter.listen('', {
      message: (name, text) => this.#channels.get(name)?.on.message(i, text),
      broken: () => {
        if (this.#connections[i] === connection) this.#lose(i)
      },
      moved: () => {},
    })
    this.#connections[i] = connection
    return connection
  }

  /** Heard again as soon as the node is there again, if any channel is still open. */
  #lose(i: number): void {
    this.#connections[i] = undefined
    let wasHeard = false
    for (const channel of this.#channels.values()) {
      wasHeard ||= (channel.heardFrom & (1 << i)) !== 0
      const wasLive = this.#isLive(channel)
      channel.heardFrom &= ~(1 << i)
      channel.interrupted ||= wasLive && !this.#isLive(channel)
    }
    this.#world.after(wasHeard ? FIRST_RETRY_MS : RETRY_MS, () => {
      if (this.#closed || this.#connections[i]) return
      for (const channel of this.#channels.values()) this.#subscribe(i, channel)
    })
  }

  #close(channel: Channel): void {
    if (this.#channels.get(channel.name) !== channel) return
    this.#channels.delete(channel.name)
    for (const connection of this.#connections) connection?.unsubscribe([channel.name], false)
    for (const settle of channel.settle) settle(false)
    if (this.#channels.size > 0 || this.#closed) return
    this.#idle?.()
    this.#idle = this.#world.after(IDLE_MS, () => this.#hangUp())
  }

  #hangUp(): void {
    for (const [i, connection] of this.#connections.entries()) {
      this.#connections[i] = undefined
      connection?.close()
    }
  }
}
