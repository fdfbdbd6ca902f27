import type { Ask } from '../core/ask.js'
import type { Engine } from '../core/engine.js'
import { type Lock, leaseOf } from '../core/lock.js'
import type { Defaults } from '../core/options.js'
import { LeaseholdError, UnsupportedError } from '../errors.js'
import { ALL } from '../store.js'

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
  /** Take it from whoever holds it, before everybody who waits. */
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

/** The Web Locks API (`navigator.locks`) across machines, after the W3C specification. */
export class WebLocks {
  readonly #engine: Engine
  readonly #defaults: Defaults

  constructor(engine: Engine, defaults: Defaults) {
    this.#engine = engine
    this.#defaults = defaults
  }

  async request<T>(args: readonly unknown[]): Promise<Awaited<T>> {
    if (args.length < 2) throw new TypeError(`request takes at least 2 arguments, but only ${args.length} were passed`)
    const name = domString(args[0])
    const given = args.length === 2 ? undefined : args[1]
    const callback = (args.length === 2 ? args[1] : args[2]) as WebLockCallback<T>
    if (typeof callback !== 'function') throw new TypeError('the callback passed to request is not a function')
    const options = readOptions(given)
    refuseCombinations(name, options)
    options.signal?.throwIfAborted()
    const ask = this.#ask(name, options)
    if (!options.ifAvailable) return this.#run(await this.#acquire(ask), ask, callback)
    const lock = await this.#engine.tryAcquire(ask).catch(asDomException)
    return lock ? this.#run(lock, ask, callback) : await callback(null)
  }

  async query(): Promise<WebLockSnapshot> {
    const prefix = `lock:${this.#defaults.prefix}`
    const holders = await this.#engine.look('query', (store) => store.holders?.(prefix))
    const held = holders.map((view) => this.#info(view.key, view.weight, view.owner))
    const keys = new Set(holders.filter((view) => view.waiting !== 0).map((view) => view.key))
    for (const waiter of this.#engine.waiting()) if (waiter.ask.key.startsWith(prefix)) keys.add(waiter.ask.key)
    const pending = await Promise.all([...keys].map((key) => this.#pending(key)))
    const inOrder = pending.flat().sort((a, b) => b.waitedMs - a.waitedMs)
    return { held, pending: inOrder.map(({ name, mode, clientId }) => ({ name, mode, clientId })) }
  }

  /** The store's line, and behind it those of this process who do not stand there yet. */
  async #pending(key: string): Promise<(WebLockInfo & { waitedMs: number })[]> {
    const { waiters } = await this.#engine.look('query', (store) => store.inspect?.(key))
    const found = new Map(
      waiters.map((view) => [
        view.owner,
        { ...this.#info(key, view.weight, view.owner), waitedMs: view.waitedMs ?? 0 },
      ]),
    )
    for (const waiter of this.#engine.waiting()) {
      if (waiter.ask.key === key) {
        found.set(waiter.owner, { ...this.#info(key, waiter.ask.weight, waiter.owner), waitedMs: waiter.waitedMs })
      }
    }
    return [...found.values()]
  }

  #ask(name: string, options: WebLockOptions): Ask {
    const { mode = 'exclusive', signal, steal } = options
    const key = `lock:${this.#defaults.prefix}${name}`
    // In memory any name that the specification allows will do; elsewhere it has to travel.
    if (!this.#engine.store.immediate) this.#defaults.key('lock', name)
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
    }
  }

  async #acquire(ask: Ask): Promise<Lock> {
    if (!this.#engine.store.features.line && !ask.steal) {
      throw new UnsupportedError(
        `request needs a line, and the ${this.#engine.store.name} store keeps none: use withLock`,
      )
    }
    return this.#engine.acquire(ask).catch((error: unknown) => {
      if (ask.signal?.aborted) throw error
      return asDomException(error)
    })
  }

  /** Holds the lock until the callback's promise settles. A lock lost or stolen meanwhile ends the request at once. */
  async #run<T>(lock: Lock, ask: Ask, callback: WebLockCallback<T>): Promise<Awaited<T>> {
    const { signal } = lock
    const lost = new Promise<never>((_, reject) => {
      const tell = (): void => {
        if (leaseOf(lock).loss) reject(abortError(`"${ask.name}" was lost or stolen`, signal.reason))
      }
      signal.addEventListener('abort', tell, { once: true })
      if (signal.aborted) tell()
    })
    lost.catch(() => {})
    const face: WebLock = Object.freeze({ name: ask.name, mode: ask.mode })
    try {
      const running = (async () => callback(face))() as Promise<Awaited<T>>
      running.catch(() => {})
      return await Promise.race([running, lost])
    } finally {
      await lock.release()
    }
  }

  #info(key: string, weight: number, owner: string): WebLockInfo {
    const name = key.slice(`lock:${this.#defaults.prefix}`.length)
    return { name, mode: weight === 1 ? 'shared' : 'exclusive', clientId: owner.replace(/\/\d+$/, '') }
  }
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

/** Closing ends requests the way a closed page would. Outages stay what they are. */
function asDomException(error: unknown): never {
  if (error instanceof LeaseholdError && error.code === 'CLOSED') throw abortError(error.message, error)
  throw error
}
