import { InvalidOptionError, UnsupportedError } from '../../errors.js'
import type {
  Answer,
  Claim,
  Features,
  HolderView,
  LeaseId,
  Released,
  Renewal,
  Renewed,
  Store,
  StoreEvent,
  WaiterView,
  Watch,
} from '../../store.js'
import { reasonOf } from '../../util/reason.js'
import { type Duration, milliseconds } from '../../util/duration.js'
import { knownOptions } from '../../util/options.js'
import { realWorld } from '../../util/world.js'
import type { Cluster } from './cluster.js'
import { connectionOf, type NodeConnection, ScriptRunner } from './connection.js'
import { NodeError } from './errors.js'
import { allPages, mergeViews, pageThrough, revokedViews, survey } from './inspect.js'
import { LuaNode } from './lua-node.js'
import type { NodeCallback, NodeRevoked, NodeView, ObservableNode } from './node.js'
import { NodeChannels } from './node-channels.js'
import { Quorum } from './quorum.js'
import { RedlockRevocations, RedlockWakeups } from './wakeups.js'

/** MAX_NODES: sets of nodes are the bits of a signed 32-bit number. */
const MAX_NODES = 31
/** MIN_NODES: with two servers a majority is both, so the loss of one would end all locking. */
const MIN_NODES = 3
/** DEFAULT_MAX_TTL: twice the default ttl of a lock. A server that was emptied sits out for as long, so it should not be much more. */
const DEFAULT_MAX_TTL = '1m'
/** DEFAULT_DRIFT: as a share of the ttl. Clocks of ordinary machines differ by far less than one percent. */
const DEFAULT_DRIFT = 0.01
/** DEFAULT_NODE_TIMEOUT_MS: many times a slow round trip, and small against the ttl. */
const DEFAULT_NODE_TIMEOUT_MS = 500
/** MAX_BATCH: items in one script call. More would keep a node from its other clients for too long. */
const MAX_BATCH = 100
/** MAX_PAGE: holders on one page, by the contract of `holderPages`. */
const MAX_PAGE = 1_000

export const OPTIONS: readonly string[] = ['maxTtl', 'drift', 'nodeTimeout']

export interface RedlockOptions {
  /**
   * The longest lease. Longer ones are refused, and a server that was restarted or emptied sits out this long before it
   * votes again: shorter means sooner back, longer means longer holds without a heartbeat. The same for all clients of these
   * servers. Default `1m`.
   */
  maxTtl?: Duration | undefined
  /** How much faster than ours a server's clock may run, as a share of the ttl. Leases are trusted for that much less. */
  drift?: number | undefined
  /** How long one server may take to answer before the others decide without it. Small against the ttl. */
  nodeTimeout?: Duration | undefined
}

/** `onClose` closes what the caller opened for the store. */
export function createRedlock(
  clients: readonly unknown[],
  options: RedlockOptions,
  onClose: () => Promise<unknown>,
): Store {
  if (!Array.isArray(clients) || clients.length < MIN_NODES || clients.length > MAX_NODES) {
    const given = Array.isArray(clients) ? clients.length : clients
    throw new InvalidOptionError(
      'clients',
      given,
      `a list of ${MIN_NODES} to ${MAX_NODES} clients of independent servers`,
    )
  }
  if (new Set(clients).size < clients.length) {
    throw new InvalidOptionError('clients', clients.length, 'a client per server, and one of them is there twice')
  }
  const {
    maxTtl = DEFAULT_MAX_TTL,
    drift = DEFAULT_DRIFT,
    nodeTimeout = DEFAULT_NODE_TIMEOUT_MS,
  } = knownOptions(options, OPTIONS)
  if (typeof drift !== 'number' || !(drift >= 0 && drift <= 0.5)) {
    throw new InvalidOptionError('drift', drift, 'a share of the ttl from 0 to 0.5')
  }
  const maxTtlMs = Math.ceil(milliseconds('maxTtl', maxTtl, { min: 10 }))
  const nodeTimeoutMs = milliseconds('nodeTimeout', nodeTimeout, { min: 1, max: maxTtlMs })
  const connections = clients.map(connectionOf)
  return new RedlockStore(connections, { world: realWorld, maxTtlMs, drift, nodeTimeoutMs }, onClose)
}

export class RedlockStore implements Store {
  readonly name = 'redlock'
  readonly expiry = 'timed'
  readonly features: Features = { queue: false, counting: false, atomic: false, values: true }
  readonly maxBatch: number = MAX_BATCH
  readonly timeoutMs: number
  readonly maxTtlMs: number

  readonly #cluster: Cluster
  readonly #nodes: readonly ObservableNode[]
  readonly #connections: readonly NodeConnection[]
  readonly #quorum: Quorum
  readonly #channels: NodeChannels
  readonly #wakeups: RedlockWakeups
  readonly #revocations: RedlockRevocations
  readonly #onClose: () => Promise<unknown>

  /** `nodes`: instead of servers, for the simulation, whose nodes are models. */
  constructor(
    connections: readonly NodeConnection[],
    settings: Omit<Cluster, 'nodes' | 'majority'>,
    onClose: () => Promise<unknown>,
    nodes?: readonly ObservableNode[],
  ) {
    const { world, nodeTimeoutMs, maxTtlMs } = settings
    this.#connections = connections
    const shape = { nodes: connections.length, maxTtlMs }
    const nodeOf = (connection: NodeConnection): ObservableNode =>
      new LuaNode(new ScriptRunner(connection, world, nodeTimeoutMs), shape)
    this.#nodes = nodes ?? connections.map(nodeOf)
    this.#cluster = { ...settings, nodes: this.#nodes, majority: Math.floor(connections.length / 2) + 1 }
    this.#quorum = new Quorum(this.#cluster, (key) => this.#wakeups.watches(key))
    this.#channels = new NodeChannels(connections, this.#cluster)
    this.#wakeups = new RedlockWakeups(this.#channels, this.#cluster, () => this.#quorum.usualMs)
    this.#revocations = new RedlockRevocations(this.#channels, this.#cluster)
    this.#onClose = onClose
    this.maxTtlMs = maxTtlMs
    // The first acquisition may take four readings of the records and two rounds, each with the time limit of a node.
    this.timeoutMs = 6 * nodeTimeoutMs + 500
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    for (const { adapter } of this.#connections) adapter.attend()
    if (options?.atomic) throw new UnsupportedError('redlock cannot grant several names all or none')
    return new Promise((resolve) => this.#quorum.acquire(claims, resolve))
  }

  renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    return new Promise((resolve) => this.#quorum.renew(renewals, resolve))
  }

  release(leases: readonly LeaseId[]): Promise<Released[]> {
    for (const { key } of leases) this.#wakeups.endTurn(key)
    return new Promise((resolve) => this.#quorum.release(leases, resolve))
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#wakeups.watch(key, listener)
  }

  watchRevoked(listener: (lease: LeaseId) => void): Watch {
    return this.#revocations.watch(listener)
  }

  /** Called when fewer nodes than a majority tell of a revocation, or when too few were subscribed for a while. */
  onPossibleLoss(listener: (affected?: (key: string) => boolean) => void): () => void {
    return this.#revocations.onPossibleLoss(listener)
  }

  async holders(prefix: string): Promise<HolderView[]> {
    const views: HolderView[] = []
    for await (const page of this.holderPages(prefix)) views.push(...page)
    return views
  }

  /** Yields empty pages while servers are asked: the holders are known when the last server was. */
  async *holderPages(prefix: string): AsyncGenerator<HolderView[]> {
    const listing = pageThrough(this.#cluster, this.#nodes, (node, from, done) => node.list(prefix, from, done))
    let step = await listing.next()
    for (; !step.done; step = await listing.next()) yield []
    const views = mergeViews(this.#cluster, step.value)
    for (let from = 0; from < views.length; from += MAX_PAGE) yield views.slice(from, from + MAX_PAGE)
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    return { holders: mergeViews(this.#cluster, await this.#inspectAll(key)), waiters: [] }
  }

  /** Inspects before, page by page: the revocation itself is one step on each server, and has to be short. */
  async revoke(key: string): Promise<HolderView[]> {
    const before = await this.#inspectAll(key)
    const cut = await survey<NodeRevoked>(this.#cluster, this.#nodes, (node, done) => node.revoke(key, done))
    return mergeViews(
      this.#cluster,
      cut.map((revoked, i) => revoked && revokedViews(key, before[i] ?? [], revoked)),
    )
  }

  /** One key, on all nodes at once: short, unless it has thousands of readers. */
  #inspectAll(key: string): Promise<(NodeView[] | undefined)[]> {
    const pages = (node: ObservableNode, done: NodeCallback<NodeView[]>): void => {
      allPages(this.#cluster, node, (from, page) => node.inspect(key, from, page)).then(done, done)
    }
    return survey(this.#cluster, this.#nodes, pages, true)
  }

  /** The median of the nodes that answer: one wrong clock does not move it. */
  async now(): Promise<number> {
    const times = await survey<number>(this.#cluster, this.#nodes, (node, done) => node.time(done))
    const sorted = times.filter((time) => time !== undefined).sort((a, b) => a - b)
    return sorted[sorted.length >> 1] as number
  }

  /** The errors of the servers that are not connected, if so few are connected that no majority could answer. */
  outage(): unknown {
    const away = this.#connections.filter(({ adapter }) => !adapter.ready())
    if (this.#connections.length - away.length >= this.#cluster.majority) return undefined
    const known = away.filter(({ adapter }) => adapter.lastError !== undefined || adapter.closed())
    if (known.length === 0) return undefined
    const errors = known.map(({ name, adapter }) => new NodeError(name, reasonOf(adapter.whyNotReady())))
    return new AggregateError(errors, errors.map(({ message }) => message).join('; '))
  }

  idle(): void {
    for (const { adapter } of this.#connections) adapter.rest()
  }

  async close(): Promise<void> {
    this.#quorum.close()
    this.#channels.close()
    for (const { adapter } of this.#connections) adapter.detach()
    await this.#onClose()
  }
}
