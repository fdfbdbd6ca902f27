import { InvalidOptionError } from '../errors.js'
import type { Lease } from './lease.js'
import { type Duration, formatDuration } from '../util/duration.js'
import { showAs } from '../util/inspect.js'
import type { World } from '../util/world.js'
import { ttlFrom } from './options.js'

/** The lease behind a lock, for `primitives/`. */
export let leaseOf: (lock: Lock) => Lease

/** The clock and the timers by which the lease of a lock ends. Undefined for a lock of another copy of this package. */
export let worldOf: (lock: Lock) => World | undefined

/**
 * Something held. `isHeld`, `assertHeld()` and `signal` are exact at any instant by a local clock; the lock is renewed
 * in the background until it is released, and with `await using` it is released when the block ends.
 *
 * @example
 * ```ts
 * await using lock = await locks.acquire('daily-report')
 * await writeReport({ signal: lock.signal, fencingToken: lock.fencingToken })
 * ```
 */
export class Lock {
  readonly #lease: Lease
  /** The lock keeps its signal: without this the signal could be collected, and its listeners would miss a loss. */
  #signal: AbortSignal | undefined

  /** @internal */
  constructor(lease: Lease) {
    this.#lease = lease
    lease.attachHandle(this)
  }

  /** As it was asked for, without the namespace. */
  get name(): string {
    return this.#lease.request.name
  }

  /** Who holds it: host, process, instance and acquisition. Unique for each acquisition. */
  get holder(): string {
    return this.#lease.holder
  }

  get mode(): 'exclusive' | 'shared' {
    return this.#lease.request.mode
  }

  get metadata(): unknown {
    const { value } = this.#lease.request
    return value === undefined ? undefined : JSON.parse(value)
  }

  /** Grows with every exclusive grant of this name. Let what you write to refuse a smaller one than it has seen. */
  get fencingToken(): bigint {
    return this.#lease.fencingToken
  }

  get acquiredAt(): Date {
    const { world } = this.#lease.host
    return new Date(world.date() - (world.now() - this.#lease.acquiredAt))
  }

  /** How long it took to get it. */
  get waitedMs(): number {
    return this.#lease.waitedMs
  }

  /** Until when it may be trusted, unless it is renewed before. */
  get expiresAt(): Date {
    return this.#lease.expiresAt
  }

  /** 0 once it is not held any more. */
  get remainingMs(): number {
    return this.#lease.remainingMs
  }

  /** True only while nobody else can hold it. */
  get isHeld(): boolean {
    return this.#lease.held
  }

  /** Held, but its renewals fail: it is lost when `remainingMs` have passed, unless one succeeds. The event `atRisk` says so too. */
  get atRisk(): boolean {
    return this.#lease.atRisk
  }

  /** Throws `LockLostError` unless it is held right now. Call it before every step that cannot be undone. */
  assertHeld(): void {
    this.#lease.assertHeld()
  }

  /** Aborts as soon as the lock can no longer be trusted, with the `LockLostError` as its reason. */
  get signal(): AbortSignal {
    this.#signal = this.#lease.signal
    return this.#signal
  }

  /**
   * Hold it for `ttl` from now on; later renewals ask for as much. Rejects with `LockLostError` if it is not ours any
   * more, with `StoreUnavailableError` if the store does not answer (it is then held until `expiresAt`, as before).
   */
  async extend(ttl: Duration): Promise<void> {
    const ttlMs = ttlFrom('ttl', ttl, this.#lease.host.store)
    const { longestTtlMs = Number.POSITIVE_INFINITY } = this.#lease.request
    if (ttlMs > longestTtlMs)
      throw new InvalidOptionError('ttl', ttl, `at most ${formatDuration(longestTtlMs)}, the \`retain\` of this run`)
    await this.#lease.extend(ttlMs)
  }

  /** True if it was ours until now. Never rejects; a second call repeats the first answer. */
  release(): Promise<boolean> {
    return this.#lease.host.release(this.#lease)
  }

  toJSON(): Record<string, unknown> {
    return {
      name: this.name,
      holder: this.holder,
      mode: this.mode,
      metadata: this.metadata,
      fencingToken: String(this.fencingToken),
      acquiredAt: this.acquiredAt.toISOString(),
      waitedMs: this.waitedMs,
      expiresAt: this.expiresAt.toISOString(),
      remainingMs: this.remainingMs,
      isHeld: this.isHeld,
      atRisk: this.atRisk,
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
  }

  static {
    leaseOf = (lock) => lock.#lease
    worldOf = (lock) => (#lease in lock ? lock.#lease.host.world : undefined)
    showAs(this, 'Lock', ({ name, mode, isHeld, remainingMs, fencingToken, holder }: Lock) => {
      return { name, mode, isHeld, remainingMs: Math.round(remainingMs), fencingToken, holder }
    })
  }
}
