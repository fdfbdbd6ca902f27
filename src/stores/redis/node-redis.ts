/**
 * node-redis, 5 and 6: what `createClient`, `createCluster` and `createSentinel` make.
 *
 * @module
 */
import type { Adapter, Ear, EarEvents, Reply, Server } from './adapter.js'
import { Signals } from './signals.js'

type Listener = (message: string, channel: string) => void

interface Subscribing {
  subscribe(channel: string, listener: Listener): Promise<unknown>
  unsubscribe(channel: string, listener?: Listener): Promise<unknown>
}

interface Common {
  isOpen: boolean
  isReady?: boolean
  on(event: string, listener: (...args: never[]) => void): unknown
  off(event: string, listener: (...args: never[]) => void): unknown
  /** Since 6. */
  _keyPrefix?: unknown
}

/** The part of a node-redis client that is used. */
export interface NodeRedis extends Common, Subscribing {
  sendCommand(args: string[]): Promise<unknown>
  duplicate(override?: object): NodeRedis
  connect(): Promise<unknown>
  destroy(): void
  sSubscribe(channel: string, listener: Listener): Promise<unknown>
  sUnsubscribe(channel: string, listener?: Listener): Promise<unknown>
  unref?(): void
}

interface ClusterNode {
  address: string
}

/** The part of a node-redis cluster that is used. */
export interface NodeRedisCluster extends Common {
  masters: ClusterNode[]
  slots: { master: ClusterNode }[]
  nodeClient(node: never): Promise<unknown>
  sendCommand(firstKey: string | undefined, isReadonly: boolean | undefined, args: string[]): Promise<unknown>
}

/** The part of a node-redis sentinel that is used. */
export interface NodeRedisSentinel extends Common, Subscribing {
  getMasterNode(): unknown
  sendCommand(isReadonly: boolean | undefined, args: string[]): Promise<unknown>
}

export function isNodeRedis(client: object): client is NodeRedis | NodeRedisCluster | NodeRedisSentinel {
  const { isOpen, sendCommand } = client as Partial<NodeRedis>
  if (typeof isOpen !== 'boolean' || typeof sendCommand !== 'function') return false
  return 'nodeClient' in client || 'getMasterNode' in client || ('duplicate' in client && 'sSubscribe' in client)
}

export function nodeRedisAdapter(client: NodeRedis | NodeRedisCluster | NodeRedisSentinel): Adapter {
  if ('nodeClient' in client) return new ClusterAdapter(client)
  if ('getMasterNode' in client) return new SentinelAdapter(client)
  return new SingleAdapter(client)
}

const ignore = (): void => {}

abstract class NodeRedisAdapter<C extends Common> extends Signals implements Adapter {
  abstract readonly cluster: boolean
  readonly keyPrefix: string
  protected readonly client: C

  constructor(client: C) {
    super()
    this.client = client
    const prefix = client._keyPrefix
    this.keyPrefix = prefix === undefined || prefix === null ? '' : String(prefix)
    for (const event of ['ready', 'connect', 'end'])
      this.on(client, event, () => {
        if (this.ready()) this.lastError = undefined
        this.turn()
      })
    this.on(client, 'error', (error: unknown) => {
      this.lastError = error
    })
  }

  protected abstract send(key: string | undefined, args: string[]): Promise<Reply>
  abstract masters(): Promise<Server[]>
  abstract addressOf(slot: number): string | undefined
  abstract listen(address: string, on: EarEvents): Ear

  ready(): boolean {
    return this.client.isOpen && this.client.isReady !== false
  }

  closed(): boolean {
    return !this.client.isOpen
  }

  trouble(): unknown {
    if (!this.client.isOpen) return 'the client is closed, or was never connected: connect() it first'
    return this.lastError ?? 'the client is not connected'
  }

  wake(): void {}

  evalsha(sha: string, keys: string[], args: string[]): Promise<Reply> {
    return this.send(keys[0], ['EVALSHA', sha, String(keys.length), ...keys, ...args])
  }

  eval(source: string, keys: string[], args: string[]): Promise<Reply> {
    return this.send(keys[0], ['EVAL', source, String(keys.length), ...keys, ...args])
  }
}

class SingleAdapter extends NodeRedisAdapter<NodeRedis> {
  readonly cluster = false

  constructor(client: NodeRedis) {
    super(client)
    let wasReady = this.ready()
    this.on(client, 'ready', () => {
      if (wasReady) this.doubt()
      wasReady = true
    })
  }

  protected send(_key: string | undefined, args: string[]): Promise<Reply> {
    return this.client.sendCommand(args)
  }

  async masters(): Promise<Server[]> {
    return [{ send: (...args) => this.client.sendCommand(args) }]
  }

  addressOf(): string {
    return ''
  }

  listen(_address: string, on: EarEvents): Ear {
    return new NodeRedisEar(Promise.resolve(this.client), on)
  }
}

class ClusterAdapter extends NodeRedisAdapter<NodeRedisCluster> {
  readonly cluster = true

  /** A node that is ready anew may have been away, or have taken over from another. */
  constructor(client: NodeRedisCluster) {
    super(client)
    this.on(client, 'node-ready', () => this.doubt())
    this.on(client, 'node-disconnect', () => this.doubt())
    this.on(client, 'node-error', (error: unknown) => {
      this.lastError = error
    })
  }

  protected send(key: string | undefined, args: string[]): Promise<Reply> {
    return this.client.sendCommand(key, false, args)
  }

  async masters(): Promise<Server[]> {
    const nodes = await Promise.all(this.client.masters.map((node) => this.client.nodeClient(node as never)))
    return (nodes as NodeRedis[]).map((node) => ({ send: (...args) => node.sendCommand(args) }))
  }

  addressOf(slot: number): string | undefined {
    return this.client.slots[slot]?.master.address
  }

  listen(address: string, on: EarEvents): Ear {
    const node = this.client.masters.find((master) => master.address === address)
    if (!node) throw new Error(`${address} is not a master of the cluster`)
    return new NodeRedisEar(this.client.nodeClient(node as never) as Promise<NodeRedis>, on)
  }
}

class SentinelAdapter extends NodeRedisAdapter<NodeRedisSentinel> {
  readonly cluster = false

  constructor(client: NodeRedisSentinel) {
    super(client)
    this.on(client, 'topology-change', () => this.doubt())
    let wasReady = this.ready()
    this.on(client, 'ready', () => {
      if (wasReady) this.doubt()
      wasReady = true
    })
  }

  protected send(_key: string | undefined, args: string[]): Promise<Reply> {
    return this.client.sendCommand(false, args)
  }

  async masters(): Promise<Server[]> {
    return [{ send: (...args) => this.client.sendCommand(false, args) }]
  }

  addressOf(): string {
    return ''
  }

  /** The sentinel client opens a connection to the current master for this by itself, and one anew after a failover. */
  listen(_address: string, on: EarEvents): Ear {
    return new SentinelEar(this.client, on)
  }
}

/**
 * Channels whose unsubscription is under way. The client forgets the listeners of a channel when that is answered, those of
 * a new subscription among them: so whoever comes back waits until it is over.
 */
type Leaving = Map<string, Promise<unknown>>

function leave(leaving: Leaving, channel: string, unsubscribed: Promise<unknown>): void {
  const over = unsubscribed.catch(ignore).then(() => {
    if (leaving.get(channel) === over) leaving.delete(channel)
  })
  leaving.set(channel, over)
}

class NodeRedisEar implements Ear {
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

  async subscribe(channel: string, sharded: boolean): Promise<void> {
    const connection = await this.#connected
    await this.#leaving.get(channel)
    await (sharded ? connection.sSubscribe(channel, this.#heard) : connection.subscribe(channel, this.#heard))
  }

  unsubscribe(channel: string, sharded: boolean): void {
    const connection = this.#connection
    if (!this.#open || !connection?.isReady) return
    leave(this.#leaving, channel, sharded ? connection.sUnsubscribe(channel) : connection.unsubscribe(channel))
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

class SentinelEar implements Ear {
  readonly #client: NodeRedisSentinel
  readonly #on: EarEvents
  readonly #channels = new Set<string>()
  readonly #leaving: Leaving = new Map()
  #open = true

  constructor(client: NodeRedisSentinel, on: EarEvents) {
    this.#client = client
    this.#on = on
    client.on('topology-change', this.#broken)
    client.on('reconnecting', this.#broken)
    client.on('error', this.#broken)
  }

  readonly #broken = (): void => {
    if (!this.#open) return
    this.close()
    this.#on.broken(new Error('the sentinels named another master'))
  }

  readonly #heard: Listener = (message, channel) => {
    if (this.#open) this.#on.message(channel, message)
  }

  async subscribe(channel: string): Promise<void> {
    this.#channels.add(channel)
    await this.#leaving.get(channel)
    await this.#client.subscribe(channel, this.#heard)
  }

  unsubscribe(channel: string): void {
    this.#channels.delete(channel)
    if (this.#client.isOpen) leave(this.#leaving, channel, this.#client.unsubscribe(channel, this.#heard))
  }

  close(): void {
    this.#open = false
    this.#client.off('topology-change', this.#broken)
    this.#client.off('reconnecting', this.#broken)
    this.#client.off('error', this.#broken)
    for (const channel of [...this.#channels]) this.unsubscribe(channel)
  }
}
