import { Engine } from './core/engine.js'
import type { LockEvents } from './core/events.js'
import type { Lock } from './core/lock.js'
import { type AcquireOptions, Defaults, type LocksOptions, optionsOf } from './core/options.js'
import { ClosedError, InvalidOptionError } from './errors.js'
import { type Duration, milliseconds } from './util/duration.js'
import { type World, realWorld } from './util/world.js'
import { acquireAll, type LockGroup, withLocks } from './primitives/all.js'
import { Election, type ElectionOptions } from './primitives/election/election.js'
import { Limiter } from './primitives/limiter/limiter.js'
import type { LimiterOptions } from './primitives/limiter/options.js'
import { type NestedOption, withLock } from './primitives/lock.js'
import { type NameOf, wrap } from './primitives/wrap.js'
import {
  type HolderInfo,
  Inspector,
  type LockState,
  type InspectOptions,
  type WaiterInfo,
} from './primitives/inspect.js'
import { Publisher } from './primitives/publish/publisher.js'
import { runOnce, type RunOnceOptions } from './primitives/run-once.js'
import { ReadWriteLock, type ReadWriteOptions } from './primitives/read-write.js'
import { Schedule } from './primitives/schedule/schedule.js'
import type { ScheduleOptions } from './primitives/schedule/options.js'
import type { ScheduledRun } from './primitives/schedule/run.js'
import { Semaphore } from './primitives/semaphore/semaphore.js'
import { type WebLockCallback, type WebLockOptions, WebLocks, type WebLockSnapshot } from './primitives/web-locks.js'
import type { Store } from './store.js'
import { showAs } from './util/inspect.js'
import { knownOptions } from './util/options.js'

/**
 * Locks on a store. One instance per process is enough; all its calls share one heartbeat and one wait queue per name.
 *
 * @example
 * ```ts
 * const locks = createLocks(memory(), { ttl: '30s', wait: '10s' })
 * await locks.withLock('order:123', async (lock) => {
 *   await charge({ signal: lock.signal, fencingToken: lock.fencingToken })
 * })
 * ```
 */
export function createLocks(store: Store, options: LocksOptions = {}): Locks {
  return new Locks(store, options, realWorld)
}

/** How many instances use a store: only the last one that is closed may take the store's listeners off the client. */
const users = new WeakMap<Store, number>()

/**
 * The store behind locks, for the dashboard. Undefined for locks of another copy of this package.
 *
 * @internal
 */
export let storeOf: (locks: Locks) => Store | undefined

/** What to write instead of what was given. */
function storeAdvice(given: unknown): string {
  if (typeof given === 'string') {
    return 'a store, not a URL: write await openLocks(url, options), or createLocks(await openStore(url), options)'
  }
  const { evalsha, sendCommand, query, connect, unsafe } = (given ?? {}) as Record<string, unknown>
  const isFunction = (method: unknown): boolean => typeof method === 'function'
  if (isFunction(evalsha) || isFunction(sendCommand)) {
    return "a store, not a client: write createLocks(redis(client)) with redis from 'leasehold/redis'"
  }
  if (isFunction(unsafe) || (isFunction(query) && isFunction(connect))) {
    return "a store, not a pool: write createLocks(postgres(pool)) with postgres from 'leasehold/postgres'"
  }
  if (isFunction((given as { then?: unknown } | null)?.then))
    return 'a store, not a promise: await openStore(url) first'
  if (isFunction(given)) return 'a store, not the function that makes one: call it, as in memory()'
  return 'a store, such as memory() or sqlite(path)'
}

/** With a batch size of 0, calls would carry no request, and the core would go on sending them for ever. */
function checkBatches({ maxBatch }: Store): void {
  if (maxBatch === undefined) return
  if (typeof maxBatch !== 'object') return checkBatch('store.maxBatch', maxBatch)
  for (const call of ['acquire', 'renew', 'release', 'take'] as const)
    checkBatch(`store.maxBatch.${call}`, maxBatch?.[call])
}

function checkBatch(name: string, size: unknown): void {
  if (!Number.isInteger(size) || (size as number) < 1)
    throw new InvalidOptionError(name, size, 'a whole number of at least 1')
}

/** What `createLocks` returns. */
export class Locks {
  readonly #engine: Engine
  readonly #defaults: Defaults
  readonly #inspector: Inspector
  readonly #webLocks: WebLocks
  /** Ends what the engine does not know of: waits for a limiter, schedules, elections and their observers. */
  readonly #closing = new AbortController()
  readonly #store: Store
  readonly #ownsStore: boolean
  readonly #publisher: Publisher | undefined
  #closed: Promise<void> | undefined

  /** @internal */
  constructor(store: Store, options: LocksOptions, world: World, ownsStore = false) {
    if (typeof store?.acquire !== 'function') {
      throw new InvalidOptionError('store', store, storeAdvice(store))
    }
    checkBatches(store)
    this.#defaults = new Defaults(store, options)
    this.#engine = new Engine(store, world, this.#defaults.onCall)
    this.#store = store
    this.#engine.events.namespace = this.#defaults.namespace
    this.#ownsStore = ownsStore
    const { publishMs } = this.#defaults
    if (publishMs !== undefined) this.#publisher = new Publisher(this.#engine, this.#defaults, publishMs)
    users.set(store, (users.get(store) ?? 0) + 1)
    this.#inspector = new Inspector(this.#engine, this.#defaults)
    this.#webLocks = new WebLocks(this.#engine, this.#defaults)
  }

  /** Identifies this instance: the part that the `holder` of all its locks has in common. */
  get clientId(): string {
    return this.#engine.identity.instance
  }

  /**
   * Waits for the lock and holds it until `release()`. Rejects with `LockTimeoutError` when `wait` has passed.
   *
   * @example
   * ```ts
   * await using lock = await locks.acquire('daily-report', { wait: '5s' })
   * ```
   */
  acquire(name: string, options?: AcquireOptions): Promise<Lock> {
    try {
      return this.#engine.acquire(this.#defaults.buildRequest('lock', name, options))
    } catch (error) {
      return Promise.reject(error)
    }
  }

  /**
   * One attempt. Null when busy: busy is normal. Rejects at once when the store fails.
   *
   * @example
   * ```ts
   * const lock = await locks.tryAcquire('cron:cleanup')
   * if (!lock) return
   * ```
   */
  tryAcquire(name: string, options?: Omit<AcquireOptions, 'wait'>): Promise<Lock | null> {
    try {
      return this.#engine.tryAcquire(this.#defaults.buildRequest('lock', name, options, optionsOf.tryAcquire))
    } catch (error) {
      return Promise.reject(error)
    }
  }

  /**
   * Waits, runs `fn` while holding the lock, renews meanwhile, and releases: always. Resolves with what `fn` returned,
   * and only if the lock was held throughout; rejects with `LockLostError` if it was lost meanwhile.
   *
   * @example
   * ```ts
   * const invoice = await locks.withLock('invoice:7', (lock) => create({ signal: lock.signal }))
   * ```
   */
  async withLock<T>(
    name: string,
    fn: (lock: Lock) => T | Promise<T>,
    options?: AcquireOptions & NestedOption,
  ): Promise<T> {
    const request = this.#defaults.buildRequest('lock', name, options, optionsOf.withLock)
    return withLock(this.#engine, request, fn, options?.nested)
  }

  /**
   * A function that runs under the lock.
   *
   * @example
   * ```ts
   * const refresh = locks.wrap((user: string) => `refresh:${user}`, async (user) => reload(user))
   * await refresh('ada')
   * ```
   */
  wrap<A extends unknown[], R>(
    name: NameOf<A>,
    fn: (...args: A) => R | Promise<R>,
    options?: AcquireOptions & NestedOption,
  ): (...args: A) => Promise<R> {
    const wrapped = wrap((chosen: string, run: () => R | Promise<R>) => this.withLock(chosen, run, options), name, fn)
    // Checked here too: a mistake would otherwise show with the first call only.
    this.#defaults.buildRequest('lock', typeof name === 'string' ? name : 'of a call', options, optionsOf.withLock)
    return wrapped
  }

  /** Several names, all or nothing, without deadlock whatever order callers use. Names given twice count once. */
  async acquireAll(names: readonly string[], options?: AcquireOptions): Promise<LockGroup> {
    return acquireAll(this.#engine, this.#defaults, names, options)
  }

  /**
   * Runs `fn` while holding all these names. Resolves only if all were held throughout.
   *
   * @example
   * ```ts
   * await locks.withLocks(['account:1', 'account:2'], (held) => transfer({ signal: held.signal }))
   * ```
   */
  async withLocks<T>(
    names: readonly string[],
    fn: (locks: LockGroup) => T | Promise<T>,
    options?: AcquireOptions & NestedOption,
  ): Promise<T> {
    return withLocks(this.#engine, this.#defaults, names, fn, options)
  }

  /** Readers share, a writer excludes, nobody starves. Shares its name with `acquire` and `withLock`. */
  readWrite(name: string, options: ReadWriteOptions = {}): ReadWriteLock {
    return new ReadWriteLock(this.#engine, this.#defaults, name, options)
  }

  /** At most `permits` at once across all processes. */
  semaphore(name: string, permits: number): Semaphore {
    return new Semaphore(this.#engine, this.#defaults, name, permits)
  }

  /** One leader at a time. */
  election(name: string, options: ElectionOptions = {}): Election {
    return new Election(this.#engine, this.#defaults, name, options, this.#closing.signal)
  }

  /**
   * At most so much per time for each key, across all processes.
   *
   * @example
   * ```ts
   * const api = locks.limiter('api', { limit: 100, per: '1m' })
   * const { allowed, retryAfterMs } = await api.take(user)
   * ```
   */
  limiter(name: string, options: LimiterOptions): Limiter {
    const limiter = new Limiter(this.#engine, this.#defaults, name, options, this.#closing.signal)
    this.#publisher?.limiter(limiter)
    return limiter
  }

  /**
   * At most one recorded run per key across all processes. Callers at the same time wait for it, later ones get what it
   * returned (as JSON gives it back) until `retain` has passed. A run that throws records nothing, and the next caller
   * may try; after a crash before the result was recorded `fn` runs again.
   *
   * @example
   * ```ts
   * const receipt = await locks.runOnce(`charge:${order}`, (lock) => charge(order, { signal: lock.signal }))
   * ```
   */
  async runOnce<T>(key: string, fn: (lock: Lock) => T | Promise<T>, options?: RunOnceOptions): Promise<T> {
    return runOnce(this.#engine, this.#defaults, key, fn, options)
  }

  /**
   * Runs `fn` at the times of a cron expression (5 fields, or 6 with seconds first), at most one start per tick across
   * all instances. Ticks are judged by the store's clock. Begins at once; `stop()` ends it.
   *
   * @example
   * ```ts
   * const nightly = locks.schedule('report', '0 3 * * *', ({ tick }) => report(tick), { timezone: 'Europe/Berlin' })
   * ```
   */
  schedule(name: string, cron: string, fn: (run: ScheduledRun) => unknown, options: ScheduleOptions = {}): Schedule {
    const schedule = new Schedule(this.#engine, this.#defaults, { name, cron, job: fn, options }, this.#closing.signal)
    this.#publisher?.schedule(schedule, cron, options.timezone)
    return schedule
  }

  /**
   * The Web Locks API, `navigator.locks.request`, across machines: same arguments, order and results. Waits without
   * end; a lock that is lost or stolen rejects with an `AbortError`.
   *
   * @example
   * ```ts
   * await locks.request('resource', { mode: 'shared' }, async (lock) => read(lock))
   * ```
   */
  request<T>(name: string, callback: WebLockCallback<T>): Promise<Awaited<T>>
  request<T>(name: string, options: WebLockOptions, callback: WebLockCallback<T>): Promise<Awaited<T>>
  request<T>(...args: unknown[]): Promise<Awaited<T>> {
    return this.#webLocks.request<T>(args)
  }

  /** What is held and what is pending, as `navigator.locks.query` tells it. */
  query(): Promise<WebLockSnapshot> {
    return this.#webLocks.query()
  }

  /** Everybody who holds something whose name begins with `prefix`. To look, never to decide by. */
  holders(prefix = '', options?: InspectOptions): Promise<HolderInfo[]> {
    return this.#inspector.holders(prefix, options)
  }

  /**
   * The same in pages of at most 1,000, as they arrive: each page in the order of names, the pages in none. A holder that comes
   * or goes meanwhile may be missing.
   */
  holderPages(prefix = '', options?: InspectOptions): AsyncIterable<HolderInfo[]> {
    return this.#inspector.holderPages(prefix, options)
  }

  /** The waiters for a name, in their order. */
  waiters(name: string, options?: InspectOptions): Promise<WaiterInfo[]> {
    return this.#inspector.waiters(name, options)
  }

  /** The holders and the queue of one name. */
  inspect(name: string, options?: InspectOptions): Promise<LockState> {
    return this.#inspector.inspect(name, options)
  }

  /** Break glass: ends every lease of this name and returns the former holders. */
  forceRelease(name: string, options?: InspectOptions): Promise<HolderInfo[]> {
    return this.#inspector.forceRelease(name, options)
  }

  on<E extends keyof LockEvents>(event: E, listener: (facts: LockEvents[E]) => void): this {
    this.#engine.events.on(event, listener)
    return this
  }

  off<E extends keyof LockEvents>(event: E, listener: (facts: LockEvents[E]) => void): this {
    this.#engine.events.off(event, listener)
    return this
  }

  /** Releases everything this instance holds, at once; signals abort first. The instance stays usable. */
  releaseAll(): Promise<void> {
    return this.#engine.releaseAll()
  }

  /**
   * For a rolling deploy: no new grants; the signals of held locks abort with reason "closing"; callbacks may finish
   * within `grace` (10s) while their locks are renewed; then everything is released. A lock that nobody releases makes
   * it last for the whole of `grace`; a second call with a shorter one hurries the first. What `openLocks` opened is
   * closed too; a client that was given stays open, without any listener of ours.
   *
   * @example
   * ```ts
   * process.once('SIGTERM', () => locks.close({ grace: '20s' }))
   * ```
   */
  async close(options: { grace?: Duration | undefined } = {}): Promise<void> {
    const grace = milliseconds('grace', knownOptions(options, optionsOf.close).grace ?? '10s')
    this.#closing.abort(new ClosedError('closing: locks.close() was called'))
    const ended = Promise.all([this.#engine.close(grace), this.#publisher?.stop()])
    this.#closed ??= ended.then(() => this.#leaveStore())
    await this.#closed
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  async #leaveStore(): Promise<void> {
    const others = (users.get(this.#store) ?? 1) - 1
    users.set(this.#store, others)
    if (others === 0) this.#store.idle?.()
    if (this.#ownsStore) await this.#store.close()
  }

  static {
    storeOf = (locks) => (#store in locks ? locks.#store : undefined)
    showAs(this, 'Locks', (locks: Locks) => {
      const { namespace } = locks.#defaults
      const held = locks.#engine.held.all().map((lease) => lease.request.name)
      const waiting = [...locks.#engine.waiting()].map(({ request }) => request.name)
      const state = locks.#engine.closingReason ? { closed: true } : { held, waiting }
      const facts = { store: locks.#store.name, ...(namespace === undefined ? {} : { namespace }), ...state }
      return { ...facts, clientId: locks.clientId }
    })
  }
}
