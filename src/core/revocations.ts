import type { World } from '../kit/world.js'
import type { Lease, Store, Watch } from '../store.js'
import { Alarm, type Timers } from './timers.js'

/** Kept for a while after the last lock was released: the next one comes soon, and opening may cost a connection. */
const LINGER_MS = 5_000
/** So many revocations of leases that are not known here are remembered: their grant may still be on its way. */
const MOST_REMEMBERED = 1_000

/** Told of leases that were taken away: one subscription for all that this instance holds, opened with the first of them. */
export class Revocations {
  readonly #store: Store
  readonly #timers: Timers
  readonly #world: World
  readonly #find: (owner: string) => { token: bigint; lose: (why: 'revoked') => void } | undefined
  readonly #onError: (error: unknown) => void
  readonly #early = new Set<string>()
  readonly #linger = new Alarm(() => this.close())
  #watch: Watch | undefined
  #users = 0

  constructor(
    store: Store,
    tools: {
      timers: Timers
      world: World
      find: (owner: string) => { token: bigint; lose: (why: 'revoked') => void } | undefined
      onError: (error: unknown) => void
    },
  ) {
    this.#store = store
    this.#timers = tools.timers
    this.#world = tools.world
    this.#find = tools.find
    this.#onError = tools.onError
  }

  /** Somebody holds something, or is about to. */
  begin(): void {
    if (this.#users++ > 0 || !this.#store.watchRevoked) return
    this.#timers.clear(this.#linger)
    if (this.#watch) return
    try {
      this.#watch = this.#store.watchRevoked((lease) => this.#revoked(lease))
    } catch (error) {
      this.#onError(error)
    }
  }

  end(): void {
    if (--this.#users > 0 || !this.#watch) return
    this.#early.clear()
    this.#timers.set(this.#linger, this.#world.now() + LINGER_MS, LINGER_MS, LINGER_MS / 2)
  }

  /** Whether this grant was revoked before its answer had arrived. */
  wasRevoked(owner: string): boolean {
    return this.#early.size > 0 && this.#early.delete(owner)
  }

  close(): void {
    this.#timers.clear(this.#linger)
    const watch = this.#watch
    this.#watch = undefined
    watch?.close()
  }

  #revoked({ owner, token }: Lease): void {
    const lease = this.#find(owner)
    if (!lease) {
      if (this.#early.size >= MOST_REMEMBERED) this.#early.clear()
      this.#early.add(owner)
    } else if (token === undefined || token === lease.token) lease.lose('revoked')
  }
}
