/**
 * ioredis, 5 and 6: `Redis` (one server, or Sentinel) and `Cluster`.
 *
 * @module
 */
import {
  type Adapter,
  type Dedicated,
  type Ear,
  type EarEvents,
  type Reply,
  type Server,
  canTakeMail,
  takeMail,
} from './adapter.js'
import { type Core, shared, Signals, SlotMasters } from './signals.js'

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

/** The part of an ioredis `Cluster` that is used. */
export interface IoRedisCluster extends Pick<IoRedis, 'status' | 'evalsha' | 'eval' | 'connect' | 'on' | 'off'> {
  isCluster: boolean
  options: { keyPrefix?: unknown }
  slots: string[][]
  nodes(role?: 'all' | 'master' | 'slave'): IoRedis[]
}

export function isIoRedis(client: object): client is IoRedis | IoRedisCluster {
  const { status, evalsha, isCluster } = client as Partial<IoRedisCluster>
  return typeof status === 'string' && typeof evalsha === 'function' && (isCluster === true || 'duplicate' in client)
}

export function ioredisAdapter(client: IoRedis | IoRedisCluster): Adapter {
  return shared(client, () =>
    'isCluster' in client && client.isCluster
      ? new ClusterAdapter(client as IoRedisCluster)
      : new SingleAdapter(client as IoRedis),
  )
}

const ignore = (): void => {}

abstract class IoRedisAdapter<C extends IoRedis | IoRedisCluster> extends Signals implements Core {
  abstract readonly cluster: boolean
  readonly keyPrefix: string
  protected readonly client: C

  constructor(client: C) {
    super()
    this.client = client
    const { keyPrefix } = client.options
    this.keyPrefix = keyPrefix === undefined || keyPrefix === null ? '' : String(keyPrefix)
    this.on(client, 'ready', () => {
      this.lastError = undefined
      this.turn()
    })
    this.on(client, 'end', () => this.turn())
    this.on(client, 'error', (error: unknown) => {
      this.lastError = error
      this.turn()
    })
  }

  abstract masters(): Promise<Server[]>
  abstract compareMasters(): void
  abstract addressOf(slot: number): string | undefined
  abstract listen(address: string, on: EarEvents): Ear

  ready(): boolean {
    return this.client.status === 'ready'
  }

  closed(): boolean {
    return this.client.status === 'end'
  }

  trouble(): unknown {
    return this.lastError ?? `the client is ${this.client.status}`
  }

  wake(): void {
    if (this.client.status === 'wait') this.client.connect().catch(ignore)
  }

  evalsha(sha: string, keys: string[], args: string[]): Promise<Reply> {
    return this.client.evalsha(sha, keys.length, ...this.#unprefixed(keys), ...args)
  }

  eval(source: string, keys: string[], args: string[]): Promise<Reply> {
    return this.client.eval(source, keys.length, ...this.#unprefixed(keys), ...args)
  }

  /** The client puts its prefix before keys by itself. */
  #unprefixed(keys: string[]): string[] {
    const { length } = this.keyPrefix
    return length === 0 ? keys : keys.map((key) => key.slice(length))
  }
}

class SingleAdapter extends IoRedisAdapter<IoRedis> {
  readonly cluster = false

  constructor(client: IoRedis) {
    super(client)
    this.doubtWhenReadyAgain(client, this.ready())
  }

  async masters(): Promise<Server[]> {
    return [{ address: '', send: (command, ...args) => this.client.call(command as string, ...args) }]
  }

  compareMasters(): void {}

  addressOf(): string {
    return ''
  }

  listen(_address: string, on: EarEvents): Ear {
    return new IoRedisEar(this.client, {}, on)
  }

  dedicate(): Dedicated {
    return new IoRedisDedicated(this.client, {})
  }
}

class ClusterAdapter extends IoRedisAdapter<IoRedisCluster> {
  readonly cluster = true
  readonly #slots: SlotMasters
  /** Addresses of nodes whose connection ended. */
  readonly #away = new Set<string>()
  readonly #attended = new WeakMap<IoRedis, () => void>()

  /**
   * Doubt about the slots of a node when it is back after an interruption, and about those that have another master than
   * before: a replica that took over may have missed the last writes. Not when a connection ends: ioredis then tries
   * again many times a second, and there is nobody to ask.
   */
  constructor(client: IoRedisCluster) {
    super(client)
    this.#slots = new SlotMasters((slot) => client.slots[slot]?.[0])
    for (const node of client.nodes('all')) this.#attend(node)
    this.on(client, '+node', (node: IoRedis) => this.#attend(node))
    this.on(client, '-node', (node: IoRedis) => {
      this.#away.add(addressOfNode(node))
      this.#attended.get(node)?.()
      this.#attended.delete(node)
    })
    this.on(client, 'refresh', () => this.compareMasters())
  }

  #attend(node: IoRedis): void {
    if (this.#attended.has(node)) return
    let wasReady = node.status === 'ready'
    const undo = this.on(node, 'ready', () => {
      const address = addressOfNode(node)
      if (this.#away.delete(address) || wasReady) this.doubtServer(address, this.#slots.servedBy(address))
      wasReady = true
    })
    this.#attended.set(node, undo)
  }

  protected override resumed(): void {
    for (const node of this.client.nodes('all')) this.#attend(node)
    this.compareMasters()
  }

  compareMasters(): void {
    const changed = this.#slots.changed()
    if (changed.size > 0) this.doubt((slot) => changed.has(slot))
  }

  async masters(): Promise<Server[]> {
    return this.client.nodes('master').map((node) => ({
      address: addressOfNode(node),
      send: (command, ...args) => node.call(command as string, ...args),
    }))
  }

  addressOf(slot: number): string | undefined {
    return this.client.slots[slot]?.[0]
  }

  listen(address: string, on: EarEvents): Ear {
    const { node, host, port } = this.#node(address)
    return new IoRedisEar(node, { host, port }, on)
  }

  dedicate(address: string): Dedicated {
    const { node, host, port } = this.#node(address)
    return new IoRedisDedicated(node, { host, port })
  }

  /** A client with the settings for this address. */
  #node(address: string): { node: IoRedis; host: string; port: number } {
    const nodes = this.client.nodes('all')
    const at = address.lastIndexOf(':')
    const [host, port] = [address.slice(0, at), Number(address.slice(at + 1))]
    const known =
      nodes.find(({ options }) => String(options.host) === host && Number(options.port) === port) ?? nodes[0]
    if (!known) throw new Error('no node of the cluster is known')
    return { node: known, host, port }
  }
}

function addressOfNode({ options }: IoRedis): string {
  return `${String(options.host)}:${String(options.port)}`
}

/** For a connection that is thrown away when it breaks: whoever uses it has to be told that something may have been missed. */
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

class IoRedisDedicated implements Dedicated {
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

  send(...[command, ...args]: string[]): Promise<Reply> {
    return this.#connection.call(command as string, ...args)
  }

  close(): void {
    if (this.broken) return
    this.broken = true
    this.#connection.disconnect()
  }
}

class IoRedisEar implements Ear {
  readonly #connection: IoRedis
  #open = true

  constructor(like: IoRedis, override: object, on: EarEvents) {
    const connection = like.duplicate({ ...DISPOSABLE, ...override })
    this.#connection = connection
    const broken = (error: unknown): void => {
      if (!this.#open) return
      this.close()
      on.broken(error)
    }
    // Also when a slot went to another node: version 5 takes the notice of that for the answer to a question never asked.
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

  ping(): Promise<unknown> {
    return this.#connection.ping()
  }

  takesMail(): Promise<boolean> {
    return this.#connection.call('HELLO').then(canTakeMail)
  }

  mail(box: string, waitMs: number): Promise<Reply> {
    return this.#connection.call(...takeMail(box, waitMs))
  }

  close(): void {
    this.#open = false
    this.#connection.disconnect()
  }
}
