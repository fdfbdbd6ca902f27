import type { World } from '../util/world.js'
import type { LeaseId, Store, Watch } from '../store.js'
import { guarded } from './guarded.js'
import { ignoreRejection } from './thenable.js'
import { Alarm, type Timers } from './timers.js'

/** Kept for so long after the last lock was released, or twice that: the next one comes soon, and opening may cost a connection. */
const LINGER_MS = 5_000
/** So many revocations of leases that are not known here are remembered: their grant may still be on its way. */
const MOST_REMEMBERED = 1_000

/** A lease that the store may say has ended: taken away, or with the connection it was bound to. */
interface EndedLease {
  readonly owner: string
  readonly token: bigint
  lose(why: 'revoked' | 'session', cause?: unknown): void
}

/** Notices leases that were revoked, or whose session ended: one subscription for all that this instance holds, opened with the first of them. */
export class Revocations {
  readonly #store: Store
  readonly #timers: Timers
  readonly #world: World
  readonly #find: (owner: string) => EndedLease | undefined
  readonly #onError: (error: unknown) => void
  /** By owner, what has ended: its token is undefined where owners are never used again. */
  readonly #early = new Map<string, { token: bigint | undefined; broken: unknown }>()
  readonly #linger = new Alarm(() => this.#closeIfUnused())
  #watch: Watch | undefined
  #users = 0
  /** A lock was held since `#linger` was set: setting that anew for every lock would cost as much as the lock in memory. */
  #wasUsed = false

  constructor(
    store: Store,
    tools: {
      timers: Timers
      world: World
      find: (owner: string) => EndedLease | undefined
      onError: (error: unknown) => void
    },
  ) {
    this.#store = store
    this.#timers = tools.timers
    this.#world = tools.world
    this.#find = tools.find
    this.#onError = tools.onError
  }

  /** A lock is held, or about to be. */
  begin(): void {
    if (this.#users++ > 0 || !this.#store.watchRevoked) return
    this.#wasUsed = true
    if (this.#watch) return
    try {
      this.#watch = this.#store.watchRevoked((lease, broken) => guarded(() => this.#ended(lease, broken)))
      ignoreRejection(this.#watch.ready)
    } catch (error) {
      this.#onError(error)
    }
  }

  /** A revocation would be heard of right now. */
  get isLive(): boolean {
    try {
      return this.#watch?.live() === true
    } catch (error) {
      this.#onError(error)
      return false
    }
  }

  end(): void {
    if (--this.#users > 0 || !this.#watch) return
    // To clear an empty map allocates a new one.
    if (this.#early.size > 0) this.#early.clear()
    if (!this.#linger.queue) this.#closeLater()
  }

  /** This grant may have ended before its answer had arrived. An earlier one of the same owner says nothing of it. */
  loseIfEnded(lease: EndedLease): void {
    const ended = this.#early.size === 0 ? undefined : this.#early.get(lease.owner)
    if (!ended) return
    this.#early.delete(lease.owner)
    if (ended.token === undefined || ended.token >= lease.token) lose(lease, ended.broken)
  }

  close(): void {
    this.#timers.clear(this.#linger)
    const watch = this.#watch
    this.#watch = undefined
    if (watch) guarded(() => watch.close())
  }

  #closeLater(): void {
    this.#wasUsed = false
    this.#timers.set(this.#linger, this.#world.now() + LINGER_MS, LINGER_MS, LINGER_MS / 2)
  }

  #closeIfUnused(): void {
    if (this.#users > 0) return
    if (this.#wasUsed) this.#closeLater()
    else this.close()
  }

  #ended({ owner, token }: LeaseId, broken: unknown): void {
    const lease = this.#find(owner)
    if (!lease) {
      if (this.#early.size >= MOST_REMEMBERED) this.#early.clear()
      this.#early.set(owner, { token, broken })
    } else if (token === undefined || token === lease.token) lose(lease, broken)
  }
}

function lose(lease: EndedLease, broken: unknown): void {
  if (broken === undefined) lease.lose('revoked')
  else lease.lose('session', broken)
}
