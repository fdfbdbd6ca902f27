/**
 * Connections of node-redis that listen.
 *
 * @module
 */
import { type Dedicated, type Ear, type EarEvents, type Reply, canTakeMail, takeMail } from './adapter.js'
import type { Listener, NodeRedis, NodeRedisSentinel } from './node-redis.js'

const ignore = (): void => {}

/**
 * Channels whose unsubscription is under way. The client forgets the listeners of a channel when that is answered, those of
 * a new subscription among them: so whoever comes back waits until it is over. By the first of those that come and go
 * together.
 */
type Leaving = Map<string | undefined, Promise<unknown>>

function leave(leaving: Leaving, [first]: string[], unsubscribed: Promise<unknown>): void {
  const over = unsubscribed.catch(ignore).then(() => {
    if (leaving.get(first) === over) leaving.delete(first)
  })
  leaving.set(first, over)
}

export class NodeRedisEar implements Ear {
  readonly #on: EarEvents
  readonly #connected: Promise<NodeRedis>
  readonly #leaving: Leaving = new Map()
  #connection: NodeRedis | undefined
  #open = true

  constructor(like: Promise<NodeRedis>, on: EarEvents) {
    this.#on = on
    this.#connected = this.#connect(like)
    this.#connected.catch((error) => this.#broken(error))
  }

  async #connect(like: Promise<NodeRedis>): Promise<NodeRedis> {
    const connection = (await like).duplicate()
    this.#connection = connection
    // It is thrown away when it breaks: whoever listens has to be told that something may have been missed.
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

  readonly #heard: Listener = (message, channel) => this.#on.message(channel, message)

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

  async ping(): Promise<unknown> {
    return (await this.#connected).ping()
  }

  async takesMail(): Promise<boolean> {
    return canTakeMail(await (await this.#connected).sendCommand(['HELLO']))
  }

  async mail(box: string, waitMs: number): Promise<Reply> {
    return (await this.#connected).sendCommand(takeMail(box, waitMs))
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

export class NodeRedisDedicated implements Dedicated {
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

  async send(...args: string[]): Promise<Reply> {
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

export class SentinelEar implements Ear {
  readonly #client: NodeRedisSentinel
  readonly #on: EarEvents
  readonly #channels = new Map<string | undefined, string[]>()
  readonly #leaving: Leaving = new Map()
  #open = true

  constructor(client: NodeRedisSentinel, on: EarEvents) {
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

  readonly #heard: Listener = (message, channel) => {
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

  async takesMail(): Promise<boolean> {
    return false
  }

  async mail(): Promise<never> {
    throw new Error('a sentinel client of node-redis takes no mail')
  }

  close(): void {
    this.#open = false
    this.#client.off('topology-change', this.#changed)
    this.#client.off('reconnecting', this.#broken)
    this.#client.off('error', this.#broken)
    for (const channels of [...this.#channels.values()]) this.unsubscribe(channels)
  }
}
