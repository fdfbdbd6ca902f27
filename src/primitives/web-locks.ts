import type { AcquireRequest } from '../core/request.js'
import type { Engine } from '../core/engine.js'
import { type Lock, leaseOf } from '../core/lock.js'
import type { Defaults } from '../core/options.js'
import { ClosedError, UnsupportedError } from '../errors.js'
import { ALL, type HolderView } from '../store.js'

/** What the callback of `locks.request` is given: as in browsers. */
export interface WebLock {
  readonly name: string
  readonly mode: 'exclusive' | 'shared'
}

/** Options of `locks.request`: as in browsers. */
export interface WebLockOptions {
  mode?: 'exclusive' | 'shared'
  /** Call back with null instead of waiting. */
  ifAvailable?: boolean
  /** Take it from its holders, ahead of all waiters. */
  steal?: boolean
  /** Cancels the wait. */
  signal?: AbortSignal
}

export type WebLockCallback<T> = (lock: WebLock | null) => T

/** One holder or waiter in `locks.query()`. */
export interface WebLockInfo {
  name: string
  mode: 'exclusive' | 'shared'
  clientId: string
}

/** What `locks.query()` answers. */
export interface WebLockSnapshot {
  held: WebLockInfo[]
  pending: WebLockInfo[]
}

/** The time until an `ifAvailable` or a `steal`, and every one before it, has been called back or has failed. */
interface Turn {
  isOver: boolean
  over: Promise<void>
}

/** The Web Locks API (`navigator.locks`) across machines, after the W3C specification. */
export class WebLocks {
  readonly #engine: Engine
  readonly #defaults: Defaults
  /** The last `ifAvailable` or `steal`. */
  #lastTurn: Turn | undefined

  constructor(engine: Engine, defaults: Defaults) {
    this.#engine = engine
    this.#defaults = defaults
  }

  async request<T>(args: readonly unknown[]): Promise<Awaited<T>> {
    if (args.length < 2) throw new TypeError(`request takes at least 2 arguments, but only ${args.length} were passed`)
    const name = domString(args[0])
    const options = readOptions(args.length === 2 ? undefined : args[1])
    const callback = (args.length === 2 ? args[1] : args[2]) as WebLockCallback<T>
    if (typeof callback !== 'function') throw new TypeError('the callback passed to request is not a function')
    refuseCombinations(name, options)
    options.signal?.throwIfAborted()
    const request = this.#buildRequest(name, options)
    // The subscription below would be opened anew, and keep a process alive after it was closed.
    if (this.#engine.closingReason)
      throw abortError(`"${name}" cannot be acquired: locks.close() was called`, this.#engine.closingReason)
    // Registered before the request: the lock may be stolen between its grant and the first time its signal is read.
    const { revocations } = this.#engine
    revocations.begin()
    const turn = this.#takeTurn(options)
    try {
      const lock = await this.#acquire(request, options.ifAvailable === true)
      // Holders of this process whose lock was stolen reject first, as in a browser, where each callback is a task of its own.
      if (request.steal) await new Promise((resolve) => setImmediate(resolve))
      // A turn that is over is not awaited: the await would let later requests that are granted in the same moment pass this one.
      if (turn.before?.isOver === false) await turn.before.over
      // Granted, but cancelled before the callback could start: then it never does.
      if (options.signal?.aborted) await lock?.release()
      options.signal?.throwIfAborted()
      const running = lock ? this.#run(lock, request, callback) : callback(null)
      turn.end()
      return await running
    } finally {
      turn.end()
      revocations.end()
    }
  }

  /**
   * The answer to an `ifAvailable` or a `steal` takes longer to reach its callback than a grant. Callbacks of later requests
   * wait for it: without that they would be called first, although their requests were made later.
   */
  #takeTurn({ ifAvailable, steal }: WebLockOptions): { before: Turn | undefined; end: () => void } {
    const before = this.#lastTurn
    if (!ifAvailable && !steal) return { before, end: () => {} }
    let end!: () => void
    const called = new Promise<void>((resolve) => (end = resolve))
    const turn: Turn = {
      isOver: false,
      over: Promise.all([before?.over, called]).then(() => {
        turn.isOver = true
        if (this.#lastTurn === turn) this.#lastTurn = undefined
      }),
    }
    this.#lastTurn = turn
    return { before, end }
  }

  async query(): Promise<WebLockSnapshot> {
    const prefix = `lock:${this.#defaults.prefix}`
    // What was requested before is in the store by then, unless that does not answer.
    await this.#engine.ordered.answered()
    // Also the names of before: a request that is granted during this query is in no list of holders yet, and waits no longer.
    const contested = new Set(this.#awaited(prefix))
    const holders = await this.#engine.read('query', (store) => store.holders?.(prefix))
    for (const view of holders) if (view.waiting !== 0) contested.add(view.key)
    for (const key of this.#awaited(prefix)) contested.add(key)
    // Holders and waiters of one name in one call: a request granted between two calls would be in neither list.
    const states = await Promise.all([...contested].map((key) => this.#inspect(key)))
    const uncontested = holders.filter((view) => !contested.has(view.key)).map((view) => this.#held(view))
    const held = [...states.flatMap((state) => state.held), ...uncontested].sort(bySince)
    return {
      held: held.map(plain),
      pending: states
        .flatMap((state) => state.pending)
        .sort(bySince)
        .map(plain),
    }
  }

  #awaited(prefix: string): string[] {
    return [...this.#engine.waiting()].map(({ request }) => request.key).filter((key) => key.startsWith(prefix))
  }

  /** The store's queue of one name, and behind it the requests of this process that have no entry there (yet). */
  async #inspect(key: string): Promise<{ held: Dated[]; pending: Dated[] }> {
    const { world } = this.#engine
    const at = world.now()
    const { holders, waiters } = await this.#engine.read('query', (store) => store.inspect?.(key))
    const own = [...this.#engine.waiting()].filter(({ request }) => request.key === key)
    const ownSince = new Map(own.map(({ owner, since }) => [owner, since]))
    const pending = waiters.map((view) => {
      const since = ownSince.get(view.owner) ?? at - (view.waitedMs ?? 0)
      return { ...this.#info(view), since }
    })
    const known = new Set([...holders, ...waiters].map((view) => view.owner))
    for (const { request, owner, since } of own) {
      if (known.has(owner)) continue
      pending.push({ ...this.#info({ key, owner, weight: request.weight }), since })
    }
    return { held: holders.map((view) => this.#held(view)), pending: inOrder(pending) }
  }

  #buildRequest(name: string, options: WebLockOptions): AcquireRequest {
    const { mode = 'exclusive', signal, steal } = options
    const key = `lock:${this.#defaults.prefix}${name}`
    // The memory store takes any name that the specification allows; elsewhere it must be sent and stored.
    if (!this.#engine.batcher.answersAtOnce) this.#defaults.key('lock', name)
    return {
      name,
      kind: 'lock',
      key,
      mode,
      weight: mode === 'shared' ? 1 : ALL,
      capacity: ALL,
      ttlMs: this.#defaults.ttlMs,
      waitMs: Number.POSITIVE_INFINITY,
      autoRenew: true,
      maxHoldMs: undefined,
      value: undefined,
      signal,
      steal: steal === true,
      queueInStore: true,
    }
  }

  async #acquire(request: AcquireRequest, ifAvailable: boolean): Promise<Lock | null> {
    const { store } = this.#engine
    if (request.steal && !store.revoke) {
      throw new UnsupportedError(`the ${store.name} store cannot take a lock away: request without steal`)
    }
    if (!store.features.queue && !request.steal && !ifAvailable) {
      throw new UnsupportedError(
        `request grants in the order of asking and needs a queue, and the ${store.name} store has none: use withLock, or request with ifAvailable`,
      )
    }
    try {
      return await (ifAvailable ? this.#engine.tryAcquire(request) : this.#engine.acquire(request))
    } catch (error) {
      // Closing ends requests the way a closed page would. Outages stay what they are.
      if (error instanceof ClosedError) throw abortError(error.message, error)
      throw error
    }
  }

  /** Holds the lock until the callback's promise settles. A lock lost or stolen meanwhile ends the request at once. */
  async #run<T>(lock: Lock, request: AcquireRequest, callback: WebLockCallback<T>): Promise<Awaited<T>> {
    const lease = leaseOf(lock)
    const refuseLoss = (): void => {
      lease.noticeDeadline()
      const loss = lease.loss ?? lease.takenBack
      if (loss) throw abortError(`"${request.name}" was lost or stolen: ${loss.message}`, loss)
    }
    const lost = new Promise<void>((resolve) => (lease.onLoss = resolve)).then(refuseLoss)
    lost.catch(() => {})
    let result: Awaited<T>
    try {
      refuseLoss()
      const handle: WebLock = Object.freeze({ name: request.name, mode: request.mode })
      const running = (async () => callback(handle))() as Promise<Awaited<T>>
      running.catch(() => {})
      // Closing lets the callback finish, until its grace has passed.
      await Promise.race([running, lost])
      result = await running
      refuseLoss()
    } catch (error) {
      // Lost or stolen, the request rejects at once; otherwise the lock is released before it settles.
      const releasing = lock.release()
      if (!lease.loss && !lease.takenBack) await releasing
      throw error
    } finally {
      lease.onLoss = undefined
    }
    await lock.release()
    // Where a steal is noticed late, the release may be what reveals it.
    refuseLoss()
    return result
  }

  /**
   * Tokens give the order of grants: each is larger than the one before. They are microseconds of the store or, on
   * etcd, revisions that count on from such a time. Holders that are not leasehold's have none, and are ordered by
   * how long they have held.
   */
  #held(view: HolderView): Dated {
    const since = view.token === undefined ? this.#engine.world.date() - (view.heldMs ?? 0) : Number(view.token) / 1_000
    return { ...this.#info(view), since }
  }

  #info({ key, weight, owner }: { key: string; weight: number; owner: string }): WebLockInfo {
    const name = key.slice(`lock:${this.#defaults.prefix}`.length)
    return { name, mode: weight === 1 ? 'shared' : 'exclusive', clientId: owner.replace(/\/\d+$/, '') }
  }
}

/** With the time that determines the order, in milliseconds. */
interface Dated extends WebLockInfo {
  since: number
}

function bySince(a: Dated, b: Dated): number {
  return a.since - b.since
}

/** The queue in the store's order, whatever the clocks of the store and of this process say of its entries. */
function inOrder(waiters: Dated[]): Dated[] {
  for (const [i, waiter] of waiters.entries()) waiter.since = Math.max(waiter.since, waiters[i - 1]?.since ?? 0)
  return waiters
}

function plain({ name, mode, clientId }: Dated): WebLockInfo {
  return { name, mode, clientId }
}

/** As the bindings of a browser read a dictionary: what is not given has its default, what is wrong is a TypeError. */
function readOptions(given: unknown): WebLockOptions {
  if (given === undefined || given === null) return {}
  if (typeof given !== 'object' && typeof given !== 'function')
    throw new TypeError('the options passed to request are not an object')
  const { ifAvailable, mode, signal, steal } = given as Record<string, unknown>
  const options: WebLockOptions = { ifAvailable: Boolean(ifAvailable), steal: Boolean(steal) }
  if (mode !== undefined) {
    const text = domString(mode)
    if (text !== 'exclusive' && text !== 'shared') {
      throw new TypeError(`the mode "${text}" is neither "exclusive" nor "shared"`)
    }
    options.mode = text
  }
  if (signal !== undefined) {
    if (!(signal instanceof AbortSignal)) throw new TypeError('the signal passed to request is not an AbortSignal')
    options.signal = signal
  }
  return options
}

function domString(value: unknown): string {
  if (typeof value === 'symbol') throw new TypeError('a symbol cannot be converted to a string')
  return String(value)
}

function refuseCombinations(name: string, { mode, ifAvailable, steal, signal }: WebLockOptions): void {
  const refuse = (message: string): never => {
    throw new DOMException(message, 'NotSupportedError')
  }
  if (name.startsWith('-')) refuse('names cannot start with "-"')
  if (steal && ifAvailable) refuse('"steal" and "ifAvailable" cannot be used together')
  if (steal && mode === 'shared') refuse('"steal" is for exclusive locks')
  if (signal && (steal || ifAvailable)) refuse('"signal" cannot be used with "steal" or "ifAvailable"')
}

function abortError(message: string, cause: unknown): DOMException {
  const error = new DOMException(message, 'AbortError')
  Object.defineProperty(error, 'cause', { value: cause, configurable: true, writable: true })
  return error
}
