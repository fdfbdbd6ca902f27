/**
 * Connections of their own, made from an ioredis client: to subscribe, or for commands whose effect depends on the connection.
 *
 * @module
 */
import {
  type DedicatedConnection,
  type RedisReply,
  type RedisSubscriber,
  type SubscriberEvents,
  canPopGrants,
  popGrantsCommand,
  runIdOf,
} from './adapter.js'

const ignore = (): void => {}

/** The part of an ioredis `Redis` that is used. */
export interface IoRedis {
  status: string
  options: { keyPrefix?: unknown; host?: unknown; port?: unknown }
  evalsha(...args: (string | number)[]): Promise<unknown>
  eval(...args: (string | number)[]): Promise<unknown>
  call(command: string, ...args: string[]): Promise<unknown>
  ping(): Promise<unknown>
  connect(): Promise<void>
  disconnect(): void
  duplicate(override?: object): IoRedis
  subscribe(...channels: string[]): Promise<unknown>
  unsubscribe(...channels: string[]): Promise<unknown>
  ssubscribe?(...channels: string[]): Promise<unknown>
  sunsubscribe?(...channels: string[]): Promise<unknown>
  stream?: { unref?: () => void }
  on(event: string, listener: (...args: never[]) => void): unknown
  off(event: string, listener: (...args: never[]) => void): unknown
}

/** For a connection that is thrown away when it breaks: its user has to be told that something may have been missed. */
const DISPOSABLE = {
  // Keys and channels are named in full.
  keyPrefix: '',
  lazyConnect: true,
  readOnly: false,
  retryStrategy: null,
  reconnectOnError: null,
  autoResubscribe: false,
  enableOfflineQueue: true,
  enableReadyCheck: false,
  maxRetriesPerRequest: null,
  monitor: false,
  // It waits for as long as it takes.
  commandTimeout: undefined,
  blockingTimeout: undefined,
  socketTimeout: undefined,
}

export class IoRedisDedicated implements DedicatedConnection {
  readonly #connection: IoRedis
  broken = false

  constructor(like: IoRedis, override: object) {
    const connection = like.duplicate({ ...DISPOSABLE, ...override })
    this.#connection = connection
    const broken = (): void => this.close()
    for (const event of ['error', 'close', 'end']) connection.on(event, broken)
    connection.on('connect', () => connection.stream?.unref?.())
    connection.connect().catch(broken)
  }

  send(...[command, ...args]: string[]): Promise<RedisReply> {
    return this.#connection.call(command as string, ...args)
  }

  close(): void {
    if (this.broken) return
    this.broken = true
    this.#connection.disconnect()
  }
}

export class IoRedisSubscriber implements RedisSubscriber {
  readonly #connection: IoRedis
  #open = true

  constructor(like: IoRedis, override: object, on: SubscriberEvents) {
    const connection = like.duplicate({ ...DISPOSABLE, ...override })
    this.#connection = connection
    const broken = (error: unknown): void => {
      if (!this.#open) return
      this.close()
      on.broken(error)
    }
    // Also emitted when a slot went to another node: ioredis 5 takes that notice for a reply to no command of its own.
    connection.on('error', broken)
    connection.on('connect', () => connection.stream?.unref?.())
    connection.on('close', () => broken(new Error('the connection that listens was closed')))
    connection.on('moved', () => on.moved(undefined))
    connection.on('message', (channel: string, message: string) => on.message(channel, message))
    connection.on('smessage', (channel: string, message: string) => on.message(channel, message))
    connection.connect().catch(broken)
  }

  async subscribe(channels: string[], sharded: boolean): Promise<void> {
    if (sharded && !this.#connection.ssubscribe) throw new Error('this ioredis cannot subscribe within a shard')
    await (sharded ? this.#connection.ssubscribe?.(...channels) : this.#connection.subscribe(...channels))
  }

  unsubscribe(channels: string[], sharded: boolean): void {
    const done = sharded ? this.#connection.sunsubscribe?.(...channels) : this.#connection.unsubscribe(...channels)
    done?.catch(ignore)
  }

  serverRun(): Promise<string> {
    return this.#connection.call('INFO', 'server').then(runIdOf)
  }

  ping(): Promise<unknown> {
    return this.#connection.ping()
  }

  supportsGrantInbox(): Promise<boolean> {
    return this.#connection.call('HELLO').then(canPopGrants)
  }

  popGrants(inbox: string, waitMs: number): Promise<RedisReply> {
    return this.#connection.call(...popGrantsCommand(inbox, waitMs))
  }

  close(): void {
    this.#open = false
    this.#connection.disconnect()
  }
}
