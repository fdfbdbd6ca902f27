/**
 * Connections of their own, made from a node-redis client: to subscribe, or for commands whose effect depends on the connection.
 *
 * @module
 */
import {
  type DedicatedConnection,
  type RedisSubscriber,
  type SubscriberEvents,
  type RedisReply,
  canPopGrants,
  popGrantsCommand,
  runIdOf,
} from './adapter.js'

export type NodeRedisListener = (message: string, channel: string) => void

interface Subscribing {
  subscribe(channels: string[], listener: NodeRedisListener): Promise<unknown>
  unsubscribe(channels: string[], listener?: NodeRedisListener): Promise<unknown>
}

export interface NodeRedisCommon {
  isOpen: boolean
  isReady?: boolean
  on(event: string, listener: (...args: never[]) => void): unknown
  off(event: string, listener: (...args: never[]) => void): unknown
  /** Since 6. */
  _keyPrefix?: unknown
}

/** The part of a node-redis client that is used. */
export interface NodeRedis extends NodeRedisCommon, Subscribing {
  sendCommand(args: string[]): Promise<unknown>
  duplicate(override?: object): NodeRedis
  connect(): Promise<unknown>
  ping(): Promise<unknown>
  destroy(): void
  sSubscribe(channels: string[], listener: NodeRedisListener): Promise<unknown>
  sUnsubscribe(channels: string[], listener?: NodeRedisListener): Promise<unknown>
  unref?(): void
}

/** The part of a node-redis sentinel that is used. */
export interface NodeRedisSentinel extends NodeRedisCommon, Subscribing {
  getMasterNode(): unknown
  sendCommand(isReadonly: boolean | undefined, args: string[]): Promise<unknown>
}

const ignore = (): void => {}

/**
 * Channels whose unsubscription is under way. The client forgets the listeners of a channel when that is answered, those of
 * a new subscription among them: so a subscription to the same channel waits until that is over. By the first of the channels that come and go
 * together.
 */
type Leaving = Map<string | undefined, Promise<unknown>>

function leave(leaving: Leaving, [first]: string[], unsubscribed: Promise<unknown>): void {
  const over = unsubscribed.catch(ignore).then(() => {
    if (leaving.get(first) === over) leaving.delete(first)
  })
  leaving.set(first, over)
}

export class NodeRedisSubscriber implements RedisSubscriber {
  readonly #on: SubscriberEvents
  readonly #connected: Promise<NodeRedis>
  readonly #leaving: Leaving = new Map()
  #connection: NodeRedis | undefined
  #open = true

  constructor(like: Promise<NodeRedis>, on: SubscriberEvents) {
    this.#on = on
    this.#connected = this.#connect(like)
    this.#connected.catch((error) => this.#broken(error))
  }

  async #connect(like: Promise<NodeRedis>): Promise<NodeRedis> {
    // Maintenance of a hosted server would move the subscriptions to another server, and nobody would be told.
    const connection = (await like).duplicate({ maintNotifications: 'disabled' })
    this.#connection = connection
    // It is thrown away when it breaks: its user has to be told that something may have been missed.
    for (const event of ['error', 'reconnecting', 'end'])
      connection.on(event, (error: unknown) => this.#broken(error ?? new Error('the connection that listens broke')))
    connection.on('sharded-channel-moved', (channel: unknown) => this.#on.moved(String(channel)))
    await connection.connect()
    if (!this.#open) throw new Error('closed')
    connection.unref?.()
    return connection
  }

  #broken(error: unknown): void {
    if (!this.#open) return
    this.close()
    this.#on.broken(error)
  }

  readonly #heard: NodeRedisListener = (message, channel) => this.#on.message(channel, message)

  async subscribe(channels: string[], sharded: boolean): Promise<void> {
    const connection = await this.#connected
    await this.#leaving.get(channels[0])
    await (sharded ? connection.sSubscribe(channels, this.#heard) : connection.subscribe(channels, this.#heard))
  }

  unsubscribe(channels: string[], sharded: boolean): void {
    const connection = this.#connection
    if (!this.#open || !connection?.isReady) return
    leave(this.#leaving, channels, sharded ? connection.sUnsubscribe(channels) : connection.unsubscribe(channels))
  }

  async serverRun(): Promise<string> {
    return runIdOf(await (await this.#connected).sendCommand(['INFO', 'server']))
  }

  async ping(): Promise<unknown> {
    return (await this.#connected).ping()
  }

  async supportsGrantInbox(): Promise<boolean> {
    return canPopGrants(await (await this.#connected).sendCommand(['HELLO']))
  }

  async popGrants(inbox: string, waitMs: number): Promise<RedisReply> {
    return (await this.#connected).sendCommand(popGrantsCommand(inbox, waitMs))
  }

  close(): void {
    this.#open = false
    try {
      this.#connection?.destroy()
    } catch {
      // It says so when it was closed already.
    }
  }
}

export class NodeRedisDedicated implements DedicatedConnection {
  readonly #connected: Promise<NodeRedis>
  #connection: NodeRedis | undefined
  broken = false

  constructor(like: Promise<NodeRedis>) {
    this.#connected = this.#connect(like)
    this.#connected.catch(() => this.close())
  }

  async #connect(like: Promise<NodeRedis>): Promise<NodeRedis> {
    const connection = (await like).duplicate()
    this.#connection = connection
    // It is thrown away when it breaks: what was sent on it counts for nothing then.
    for (const event of ['error', 'reconnecting', 'end']) connection.on(event, () => this.close())
    await connection.connect()
    if (this.broken) throw new Error('closed')
    connection.unref?.()
    return connection
  }

  async send(...args: string[]): Promise<RedisReply> {
    return (await this.#connected).sendCommand(args)
  }

  close(): void {
    if (this.broken) return
    this.broken = true
    try {
      this.#connection?.destroy()
    } catch {
      // It says so when it was closed already.
    }
  }
}

export class NodeRedisSentinelSubscriber implements RedisSubscriber {
  readonly #client: NodeRedisSentinel
  readonly #on: SubscriberEvents
  readonly #channels = new Map<string | undefined, string[]>()
  readonly #leaving: Leaving = new Map()
  #open = true

  constructor(client: NodeRedisSentinel, on: SubscriberEvents) {
    this.#client = client
    this.#on = on
    client.on('topology-change', this.#changed)
    client.on('reconnecting', this.#broken)
    client.on('error', this.#broken)
  }

  readonly #changed = ({ type }: { type?: string }): void => {
    if (type === 'MASTER_CHANGE') this.#broken()
  }

  readonly #broken = (): void => {
    if (!this.#open) return
    this.close()
    this.#on.broken(new Error('the connection to the master was lost, or the sentinels named another'))
  }

  readonly #heard: NodeRedisListener = (message, channel) => {
    if (this.#open) this.#on.message(channel, message)
  }

  async subscribe(channels: string[]): Promise<void> {
    this.#channels.set(channels[0], channels)
    await this.#leaving.get(channels[0])
    await this.#client.subscribe(channels, this.#heard)
  }

  unsubscribe(channels: string[]): void {
    this.#channels.delete(channels[0])
    if (this.#client.isOpen) leave(this.#leaving, channels, this.#client.unsubscribe(channels, this.#heard))
  }

  /** The listening connection is the sentinel client's own, and out of reach. */
  async ping(): Promise<void> {}

  async serverRun(): Promise<never> {
    throw new Error('the connection of a sentinel client of node-redis is out of reach')
  }

  async supportsGrantInbox(): Promise<boolean> {
    return false
  }

  async popGrants(): Promise<never> {
    throw new Error('a sentinel client of node-redis cannot block on a list')
  }

  close(): void {
    this.#open = false
    this.#client.off('topology-change', this.#changed)
    this.#client.off('reconnecting', this.#broken)
    this.#client.off('error', this.#broken)
    for (const channels of [...this.#channels.values()]) this.unsubscribe(channels)
  }
}
