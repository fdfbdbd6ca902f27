/**
 * node-redis, 5 and 6: what `createClient`, `createCluster` and `createSentinel` make.
 *
 * @module
 */
import type {
  Adapter,
  DedicatedConnection,
  RedisSubscriber,
  SubscriberEvents,
  RedisReply,
  RedisServer,
} from './adapter.js'
import {
  type NodeRedis,
  type NodeRedisCommon,
  NodeRedisDedicated,
  type NodeRedisSentinel,
  NodeRedisSentinelSubscriber,
  NodeRedisSubscriber,
} from './node-redis-connections.js'
import { type ClientCore, shared, ClientEvents, SlotMasters } from './events.js'

interface NodeRedisClusterNode {
  address: string
}

/** The part of a node-redis cluster that is used. */
export interface NodeRedisCluster extends NodeRedisCommon {
  masters: NodeRedisClusterNode[]
  replicas?: NodeRedisClusterNode[]
  slots: { master: NodeRedisClusterNode }[]
  nodeClient(node: never): Promise<unknown>
  sendCommand(firstKey: string | undefined, isReadonly: boolean | undefined, args: string[]): Promise<unknown>
}

export function isNodeRedis(client: object): client is NodeRedis | NodeRedisCluster | NodeRedisSentinel {
  const { isOpen, sendCommand } = client as Partial<NodeRedis>
  if (typeof isOpen !== 'boolean' || typeof sendCommand !== 'function') return false
  return 'nodeClient' in client || 'getMasterNode' in client || ('duplicate' in client && 'sSubscribe' in client)
}

export function nodeRedisAdapter(client: NodeRedis | NodeRedisCluster | NodeRedisSentinel): Adapter {
  return shared(client, () => {
    if ('nodeClient' in client) return new NodeRedisClusterAdapter(client)
    if ('getMasterNode' in client) return new NodeRedisSentinelAdapter(client)
    return new NodeRedisSingleAdapter(client)
  })
}

abstract class NodeRedisAdapter<C extends NodeRedisCommon> extends ClientEvents implements ClientCore {
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
        this.notifyStateChange()
      })
    this.on(client, 'error', (error: unknown) => {
      this.lastError = error
      this.notifyStateChange()
    })
  }

  protected abstract send(key: string | undefined, args: string[]): Promise<RedisReply>
  abstract masters(): Promise<RedisServer[]>
  abstract compareMasters(): void
  abstract addressOf(slot: number): string | undefined
  abstract listen(address: string, on: SubscriberEvents): RedisSubscriber

  ready(): boolean {
    return this.client.isOpen && this.client.isReady !== false
  }

  closed(): boolean {
    return !this.client.isOpen
  }

  whyNotReady(): unknown {
    if (!this.client.isOpen) return 'the client is closed, or was never connected: connect() it first'
    return this.lastError ?? 'the client is not connected'
  }

  wake(): void {}

  evalsha(sha: string, keys: string[], args: string[]): Promise<RedisReply> {
    return this.send(keys[0], ['EVALSHA', sha, String(keys.length), ...keys, ...args])
  }

  eval(source: string, keys: string[], args: string[]): Promise<RedisReply> {
    return this.send(keys[0], ['EVAL', source, String(keys.length), ...keys, ...args])
  }
}

class NodeRedisSingleAdapter extends NodeRedisAdapter<NodeRedis> {
  readonly cluster = false

  constructor(client: NodeRedis) {
    super(client)
    this.reportLossWhenReadyAgain(client, this.ready())
  }

  protected send(_key: string | undefined, args: string[]): Promise<RedisReply> {
    return this.client.sendCommand(args)
  }

  async masters(): Promise<RedisServer[]> {
    return [{ address: '', send: (...args) => this.client.sendCommand(args) }]
  }

  compareMasters(): void {}

  addressOf(): string {
    return ''
  }

  listen(_address: string, on: SubscriberEvents): RedisSubscriber {
    return new NodeRedisSubscriber(Promise.resolve(this.client), on)
  }

  dedicate(): DedicatedConnection {
    return new NodeRedisDedicated(Promise.resolve(this.client))
  }
}

class NodeRedisClusterAdapter extends NodeRedisAdapter<NodeRedisCluster> {
  readonly cluster = true
  readonly #slots: SlotMasters

  /** A node that is ready anew may have been away, or have taken over from another. */
  constructor(client: NodeRedisCluster) {
    super(client)
    this.#slots = new SlotMasters((slot) => client.slots[slot]?.master.address)
    this.on(client, 'node-ready', ({ host, port }: { host?: string; port?: number } = {}) => {
      this.compareMasters()
      const address = `${host}:${port}`
      const named = (nodes: NodeRedisClusterNode[] = []): boolean => nodes.some((node) => node.address === address)
      if (named(client.masters)) this.reportPossibleLossAt(address, this.#slots.servedBy(address))
      // With a `nodeAddressMap` the client connects to other addresses than the cluster names.
      else if (!named(client.replicas)) this.reportPossibleLossAt(address, () => true)
    })
    this.on(client, 'node-disconnect', () => this.compareMasters())
    this.on(client, 'node-error', (error: unknown) => {
      this.lastError = error
    })
  }

  protected send(key: string | undefined, args: string[]): Promise<RedisReply> {
    return this.client.sendCommand(key, false, args)
  }

  compareMasters(): void {
    const changed = this.#slots.changed()
    if (changed.size > 0) this.notifyPossibleLoss((slot) => changed.has(slot))
  }

  async masters(): Promise<RedisServer[]> {
    return this.client.masters.map((node) => ({
      address: node.address,
      send: async (...args) => ((await this.client.nodeClient(node as never)) as NodeRedis).sendCommand(args),
    }))
  }

  addressOf(slot: number): string | undefined {
    return this.client.slots[slot]?.master.address
  }

  listen(address: string, on: SubscriberEvents): RedisSubscriber {
    return new NodeRedisSubscriber(this.#client(address), on)
  }

  dedicate(address: string): DedicatedConnection {
    return new NodeRedisDedicated(this.#client(address))
  }

  #client(address: string): Promise<NodeRedis> {
    const node = this.client.masters.find((master) => master.address === address)
    if (!node) throw new Error(`${address} is not a master of the cluster`)
    return this.client.nodeClient(node as never) as Promise<NodeRedis>
  }
}

class NodeRedisSentinelAdapter extends NodeRedisAdapter<NodeRedisSentinel> {
  readonly cluster = false

  /** It says nothing of a master that it lost and found again, unless made with `passthroughClientErrorEvents`. */
  constructor(client: NodeRedisSentinel) {
    super(client)
    this.on(client, 'topology-change', (change: { type?: string }) => {
      if (change.type === 'MASTER_CHANGE') this.notifyPossibleLoss()
    })
    this.on(client, 'error', () => this.notifyConnectionLost())
    this.reportLossWhenReadyAgain(client, this.ready())
  }

  protected send(_key: string | undefined, args: string[]): Promise<RedisReply> {
    return this.client.sendCommand(false, args)
  }

  async masters(): Promise<RedisServer[]> {
    return [{ address: '', send: (...args) => this.client.sendCommand(false, args) }]
  }

  compareMasters(): void {}

  addressOf(): string {
    return ''
  }

  /** The sentinel client opens a connection to the current master for this by itself, and one anew after a failover. */
  listen(_address: string, on: SubscriberEvents): RedisSubscriber {
    return new NodeRedisSentinelSubscriber(this.client, on)
  }
}
