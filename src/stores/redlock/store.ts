import { UnsupportedError } from '../../errors.js'
import type {
  Answer,
  Claim,
  Features,
  HolderView,
  Lease,
  Released,
  Renewal,
  Renewed,
  Store,
  StoreEvent,
  WaiterView,
  Watch,
} from '../../store.js'
import type { Line } from './clients.js'
import type { Cluster } from './cluster.js'
import { Link } from './link.js'
import { LuaNode } from './lua-node.js'
import type { Done, NodeView, ObservableNode, Revoked } from './node.js'
import { NodeChannels } from './node-channels.js'
import { Quorum } from './quorum.js'
import { Revocations } from './revocations.js'
import { allOf, cutOff, merge, pageThrough, survey } from './views.js'
import { Wakeups } from './wakeups.js'

/** More in one script call would keep a node from everybody else for too long. */
const MAX_BATCH = 100

export class RedlockStore implements Store {
  readonly name = 'redlock'
  readonly expiry = 'timed'
  readonly features: Features = { line: false, counting: false, atomic: false, values: true }
  readonly maxBatch: number = MAX_BATCH
  readonly timeoutMs: number
  readonly maxTtlMs: number

  readonly #cluster: Cluster
  readonly #nodes: readonly ObservableNode[]
  readonly #lines: readonly Line[]
  readonly #quorum: Quorum
  readonly #channels: NodeChannels
  readonly #wakeups: Wakeups
  readonly #revocations: Revocations
  readonly #onClose: () => Promise<unknown>

  constructor(lines: readonly Line[], settings: Omit<Cluster, 'nodes' | 'majority'>, onClose: () => Promise<unknown>) {
    const { world, nodeTimeoutMs, maxTtlMs } = settings
    this.#lines = lines
    const shape = { nodes: lines.length, maxTtlMs }
    this.#nodes = lines.map((line) => new LuaNode(new Link(line, world, nodeTimeoutMs), shape))
    this.#cluster = { ...settings, nodes: this.#nodes, majority: Math.floor(lines.length / 2) + 1 }
    this.#quorum = new Quorum(this.#cluster, (key) => this.#wakeups.watches(key))
    this.#channels = new NodeChannels(lines, this.#cluster)
    this.#wakeups = new Wakeups(this.#channels, this.#cluster, () => this.#quorum.usualMs)
    this.#revocations = new Revocations(this.#channels, this.#cluster)
    this.#onClose = onClose
    this.maxTtlMs = maxTtlMs
    // The first question may take four looks and two rounds, each with the time limit of a node.
    this.timeoutMs = 6 * nodeTimeoutMs + 500
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    for (const { adapter } of this.#lines) adapter.attend()
    if (options?.atomic) throw new UnsupportedError('redlock cannot grant several names all or none')
    return new Promise((resolve) => this.#quorum.acquire(claims, resolve))
  }

  renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    return new Promise((resolve) => this.#quorum.renew(renewals, resolve))
  }

  release(leases: readonly Lease[]): Promise<Released[]> {
    for (const { key } of leases) this.#wakeups.hadOurTurn(key)
    return new Promise((resolve) => this.#quorum.release(leases, resolve))
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#wakeups.watch(key, listener)
  }

  watchRevoked(listener: (lease: Lease) => void): Watch {
    return this.#revocations.watch(listener)
  }

  /** Some nodes told of a revocation, and too few for it to be certain; or too few could be heard for a while. */
  onDoubt(listener: (affected?: (key: string) => boolean) => void): () => void {
    return this.#revocations.onDoubt(listener)
  }

  async holders(prefix: string): Promise<HolderView[]> {
    const said = await pageThrough(this.#cluster, this.#nodes, (node, from, done) => node.list(prefix, from, done))
    return merge(this.#cluster, said)
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    return { holders: merge(this.#cluster, await this.#look(key)), waiters: [] }
  }

  /** Looked at before, page by page: what is done in one step has to be short. */
  async revoke(key: string): Promise<HolderView[]> {
    const before = await this.#look(key)
    const cut = await survey<Revoked>(this.#cluster, this.#nodes, (node, done) => node.revoke(key, done))
    return merge(
      this.#cluster,
      cut.map((revoked, i) => revoked && cutOff(key, before[i] ?? [], revoked)),
    )
  }

  /** One key, on all nodes at once: that is short, unless it has thousands of readers. */
  #look(key: string): Promise<(NodeView[] | undefined)[]> {
    const pages = (node: ObservableNode, done: Done<NodeView[]>): void => {
      allOf(this.#cluster, node, (from, page) => node.inspect(key, from, page)).then(done, done)
    }
    return survey(this.#cluster, this.#nodes, pages, true)
  }

  /** The median of those that answer: one clock that is wrong does not move it. */
  async now(): Promise<number> {
    const times = await survey<number>(this.#cluster, this.#nodes, (node, done) => node.time(done))
    const sorted = times.filter((time) => time !== undefined).sort((a, b) => a - b)
    return sorted[sorted.length >> 1] as number
  }

  idle(): void {
    for (const { adapter } of this.#lines) adapter.rest()
  }

  async close(): Promise<void> {
    this.#quorum.close()
    this.#channels.close()
    for (const { adapter } of this.#lines) adapter.detach()
    await this.#onClose()
  }
}
