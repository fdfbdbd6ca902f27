/**
 * ioredis, 5 and 6: `Redis` (one server, or Sentinel) and `Cluster`.
 *
 * @module
 */
import type {
  Adapter,
  DedicatedConnection,
  RedisReply,
  RedisServer,
  RedisSubscriber,
  SubscriberEvents,
} from './adapter.js'
import { type IoRedis, IoRedisDedicated, IoRedisSubscriber } from './ioredis-connections.js'
import { type ClientCore, shared, ClientEvents, SlotMasters } from './events.js'

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
      ? new IoRedisClusterAdapter(client as IoRedisCluster)
      : new IoRedisSingleAdapter(client as IoRedis),
  )
}

const ignore = (): void => {}

abstract class IoRedisAdapter<C extends IoRedis | IoRedisCluster> extends ClientEvents implements ClientCore {
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
      this.notifyStateChange()
    })
    this.on(client, 'end', () => this.notifyStateChange())
    this.on(client, 'error', (error: unknown) => {
      this.lastError = error
      this.notifyStateChange()
    })
  }

  abstract masters(): Promise<RedisServer[]>
  abstract compareMasters(): void
  abstract addressOf(slot: number): string | undefined
  abstract listen(address: string, on: SubscriberEvents): RedisSubscriber

  ready(): boolean {
    return this.client.status === 'ready'
  }

  closed(): boolean {
    return this.client.status === 'end'
  }

  whyNotReady(): unknown {
    return this.lastError ?? `the client is ${this.client.status}`
  }

  wake(): void {
    if (this.client.status === 'wait') this.client.connect().catch(ignore)
  }

  evalsha(sha: string, keys: string[], args: string[]): Promise<RedisReply> {
    return this.client.evalsha(sha, keys.length, ...this.#unprefixed(keys), ...args)
  }

  eval(source: string, keys: string[], args: string[]): Promise<RedisReply> {
    return this.client.eval(source, keys.length, ...this.#unprefixed(keys), ...args)
  }

  /** The client puts its prefix before keys by itself. */
  #unprefixed(keys: string[]): string[] {
    const { length } = this.keyPrefix
    return length === 0 ? keys : keys.map((key) => key.slice(length))
  }
}

class IoRedisSingleAdapter extends IoRedisAdapter<IoRedis> {
  readonly cluster = false

  constructor(client: IoRedis) {
    super(client)
    this.reportLossWhenReadyAgain(client, this.ready())
  }

  async masters(): Promise<RedisServer[]> {
    return [{ address: '', send: (command, ...args) => this.client.call(command as string, ...args) }]
  }

  compareMasters(): void {}

  addressOf(): string {
    return ''
  }

  listen(_address: string, on: SubscriberEvents): RedisSubscriber {
    return new IoRedisSubscriber(this.client, {}, on)
  }

  dedicate(): DedicatedConnection {
    return new IoRedisDedicated(this.client, {})
  }
}

class IoRedisClusterAdapter extends IoRedisAdapter<IoRedisCluster> {
  readonly cluster = true
  readonly #slots: SlotMasters
  /** Addresses of nodes whose connection ended. */
  readonly #away = new Set<string>()
  readonly #attended = new WeakMap<IoRedis, () => void>()

  /**
   * Reports a possible loss for the slots of a node that is back after an interruption, and for slots that have
   * another master than before: a replica that took over may have missed the last writes. Not when a connection ends:
   * ioredis then reconnects many times a second, and no server could be asked.
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
      if (this.#away.delete(address) || wasReady) this.reportPossibleLossAt(address, this.#slots.servedBy(address))
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
    if (changed.size > 0) this.notifyPossibleLoss((slot) => changed.has(slot))
  }

  async masters(): Promise<RedisServer[]> {
    return this.client.nodes('master').map((node) => ({
      address: addressOfNode(node),
      send: (command, ...args) => node.call(command as string, ...args),
    }))
  }

  addressOf(slot: number): string | undefined {
    return this.client.slots[slot]?.[0]
  }

  listen(address: string, on: SubscriberEvents): RedisSubscriber {
    const { node, host, port } = this.#node(address)
    return new IoRedisSubscriber(node, { host, port }, on)
  }

  dedicate(address: string): DedicatedConnection {
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
