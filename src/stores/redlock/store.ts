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
import { Bells } from './bells.js'
import type { Line } from './clients.js'
import type { Cluster } from './cluster.js'
import { Link } from './link.js'
import { LuaNode } from './lua-node.js'
import type { NodeView, ObservableNode } from './node.js'
import { Quorum } from './quorum.js'
import { merge, survey } from './views.js'

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
  readonly #bells: Bells
  readonly #onClose: () => Promise<unknown>

  constructor(lines: readonly Line[], settings: Omit<Cluster, 'nodes' | 'majority'>, onClose: () => Promise<unknown>) {
    const { world, nodeTimeoutMs, maxTtlMs } = settings
    this.#lines = lines
    const shape = { nodes: lines.length, maxTtlMs }
    this.#nodes = lines.map((line) => new LuaNode(new Link(line, world, nodeTimeoutMs), shape))
    this.#cluster = { ...settings, nodes: this.#nodes, majority: Math.floor(lines.length / 2) + 1 }
    this.#quorum = new Quorum(this.#cluster, (key) => this.#bells.watches(key))
    this.#bells = new Bells(lines, this.#cluster, () => this.#quorum.usualMs)
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
    for (const { key } of leases) this.#bells.hadOurTurn(key)
    return new Promise((resolve) => this.#quorum.release(leases, resolve))
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#bells.watch(key, listener)
  }

  async holders(prefix: string): Promise<HolderView[]> {
    return merge(this.#cluster, await survey(this.#cluster, this.#nodes, (node, done) => node.list(prefix, done)))
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    const said = await survey<NodeView[]>(this.#cluster, this.#nodes, (node, done) => node.inspect(key, done))
    return { holders: merge(this.#cluster, said), waiters: [] }
  }

  async revoke(key: string): Promise<HolderView[]> {
    return merge(this.#cluster, await survey(this.#cluster, this.#nodes, (node, done) => node.revoke(key, done)))
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
    this.#bells.close()
    for (const { adapter } of this.#lines) adapter.detach()
    await this.#onClose()
  }
}
