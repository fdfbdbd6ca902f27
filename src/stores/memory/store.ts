/**
 * The store contract in memory: batches, views and subscriptions around the lease table. Every call answers at once.
 *
 * @module
 */
import type {
  Answer,
  Claim,
  HolderView,
  LeaseId,
  Released,
  Renewal,
  Renewed,
  Store,
  StoreEvent,
  TakeAnswer,
  TakeRequest,
  WaiterView,
} from '../../store.js'
import type { World } from '../../util/world.js'
import { holderViews, waiterViews } from './inspect.js'
import type { KeyState } from './key-state.js'
import { MemoryLeaseTable } from './lease-table.js'
import { MemoryRateLimits } from './rate-limits.js'
import { type MemoryWatch, MemoryWakeups } from './wakeups.js'

/** The memory store answers at once, never with a promise. */
export interface MemoryStore extends Store {
  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Answer[]
  renew(renewals: readonly Renewal[]): Renewed[]
  release(leases: readonly LeaseId[]): Released[]
  holders(prefix: string): HolderView[]
  inspect(key: string): { holders: HolderView[]; waiters: WaiterView[] }
  revoke(key: string): HolderView[]
}

export class InMemoryStore implements MemoryStore {
  readonly name = 'memory'
  readonly expiry = 'timed'
  readonly features = { queue: true, counting: true, atomic: true, values: true }
  readonly timeoutMs = 0

  readonly #world: World
  readonly #wakeups = new MemoryWakeups()
  readonly #leases: MemoryLeaseTable
  readonly #rateLimits: MemoryRateLimits

  constructor(world: World) {
    this.#world = world
    this.#leases = new MemoryLeaseTable(world, this.#wakeups)
    this.#rateLimits = new MemoryRateLimits(world)
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Answer[] {
    const now = this.#world.now()
    if (claims.length === 1) {
      const answer = [this.#leases.acquire(claims[0] as Claim, now)]
      this.#wakeups.deliver()
      return answer
    }
    if (options?.atomic) return this.#leases.acquireAtomically(claims, now)
    const answers = claims.map((claim) => this.#leases.acquire(claim, now))
    this.#wakeups.deliver()
    return answers
  }

  renew(renewals: readonly Renewal[]): Renewed[] {
    const now = this.#world.now()
    let state: KeyState | undefined
    let stateKey: string | undefined
    const answers = renewals.map((renewal) => {
      // A call may carry ten thousand queue entries of one key: expired ones are dropped once, not once per entry.
      if (renewal.key !== stateKey) state = this.#leases.liveState((stateKey = renewal.key), now)
      return renewal.queued ? this.#leases.renewQueued(state, renewal, now) : this.#leases.renew(state, renewal, now)
    })
    this.#wakeups.deliver()
    return answers
  }

  release(leaseIds: readonly LeaseId[]): Released[] {
    const now = this.#world.now()
    if (leaseIds.length === 1) {
      const answer = [this.#leases.release(leaseIds[0] as LeaseId, now)]
      this.#wakeups.deliver()
      return answer
    }
    const answers = leaseIds.map((lease) => this.#leases.release(lease, now))
    this.#wakeups.deliver()
    return answers
  }

  watch(key: string, listener: (event: StoreEvent) => void): MemoryWatch {
    return this.#wakeups.watch(key, listener)
  }

  watchRevoked(listener: (lease: LeaseId) => void): MemoryWatch {
    return this.#wakeups.watchRevoked(listener)
  }

  holders(prefix: string): HolderView[] {
    const now = this.#world.now()
    const keys = this.#leases.keys().filter((key) => key.startsWith(prefix))
    return keys.flatMap((key) => holderViews(key, this.#leases.liveState(key, now), now))
  }

  inspect(key: string): { holders: HolderView[]; waiters: WaiterView[] } {
    const now = this.#world.now()
    const state = this.#leases.liveState(key, now)
    return { holders: holderViews(key, state, now), waiters: waiterViews(key, state, now) }
  }

  revoke(key: string): HolderView[] {
    const now = this.#world.now()
    const state = this.#leases.liveState(key, now)
    const revoked = holderViews(key, state, now)
    if (state) this.#leases.revoke(key, state, now)
    this.#wakeups.deliver()
    return revoked
  }

  take(requests: readonly TakeRequest[]): TakeAnswer[] {
    return this.#rateLimits.take(requests)
  }

  now(): number {
    return this.#world.date()
  }

  async close(): Promise<void> {}
}
