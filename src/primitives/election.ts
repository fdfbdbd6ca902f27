import type { Ask } from '../core/ask.js'
import type { Engine } from '../core/engine.js'
import { type Lock, leaseOf } from '../core/lock.js'
import { type Defaults, jsonFrom, signalFrom } from '../core/options.js'
import {
  InvalidOptionError,
  LeaseholdError,
  LockLostError,
  StoreUnavailableError,
  UnsupportedError,
} from '../errors.js'
import { type Duration, milliseconds } from '../kit/duration.js'
import { observe } from './observe.js'

/** Options of `locks.election`. */
export interface ElectionOptions {
  /** A leader that dies is replaced after this long. */
  ttl?: Duration
  /** What others see of the leader, such as its address: JSON, at most 4 KB. */
  value?: unknown
  /** How long the work of a leader that steps down may take to end. It is still the leader meanwhile. Default 10s. */
  drain?: Duration
}

/** What the one who leads is given. */
export interface Leadership {
  /** The fencing token of this term: larger than that of every term before. */
  term: bigint
  /** Aborts before another can lead, and when this one should step down. */
  signal: AbortSignal
}

/** Who leads. */
export interface LeaderInfo {
  leader: string
  term: bigint
  value: unknown
}

/** For a process supervisor. */
export interface ElectionHealth {
  /** False: the term is over, but its work still runs, longer than `maxStale`. The process should be restarted. */
  healthy: boolean
  isLeader: boolean
  /** For how long work has been going on under a term that is over. */
  staleMs: number
}

/** A term that ended right away is not followed by the next one at once. */
const BREATHER_MS = 100

/**
 * One leader at a time.
 *
 * @example
 * ```ts
 * const election = locks.election('scheduler', { value: { address: '10.0.0.7' } })
 * await election.run(async ({ term, signal }) => {
 *   while (!signal.aborted) await dispatch({ term, signal })
 * }, { signal: shutdown })
 * ```
 */
export class Election {
  readonly name: string
  readonly #engine: Engine
  readonly #ask: Ask
  readonly #drainMs: number
  #value: string | undefined
  #lock: Lock | undefined
  /** Asks the work of this term to end. */
  #stepDown: AbortController | undefined
  /** Settles when this term is over and its lease has been let go. */
  #term: Promise<void> | undefined
  #working = false

  /** @internal */
  constructor(engine: Engine, defaults: Defaults, name: string, { ttl, value, drain = '10s' }: ElectionOptions) {
    if (!engine.store.features.values) {
      throw new UnsupportedError(
        `an election needs a store that shows who leads, and the ${engine.store.name} store cannot: use another, or withLock`,
      )
    }
    this.#engine = engine
    this.name = name
    this.#ask = defaults.ask('election', name, ttl === undefined ? { wait: 'forever' } : { ttl, wait: 'forever' })
    this.#drainMs = milliseconds('drain', drain)
    this.#value = value === undefined ? undefined : jsonFrom('value', value, 4_096)
  }

  /** Whether this instance leads, exact at any instant by the local clock. */
  get isLeader(): boolean {
    return this.#lock?.isHeld === true
  }

  /**
   * Campaigns, leads, and campaigns again, until `signal` aborts. When the term ends (lost, resigned, or `signal`), the
   * work's own signal aborts, and the next campaign begins when the work has ended. What the work throws, this throws.
   */
  async run(work: (leadership: Leadership) => unknown, options: { signal?: AbortSignal } = {}): Promise<void> {
    if (typeof work !== 'function') throw new InvalidOptionError('work', work, 'a function to run while leading')
    const signal = options.signal === undefined ? undefined : signalFrom(options.signal)
    if (this.#term) throw new LeaseholdError('ALREADY_RUNNING', `this election of "${this.name}" is already running`)
    while (!signal?.aborted) {
      const lock = await this.#campaign(signal)
      if (!lock) return
      const began = this.#engine.world.now()
      this.#term = this.#lead(lock, work, signal)
      try {
        await this.#term
      } finally {
        this.#term = undefined
      }
      if (this.#engine.closingReason) return
      if (this.#engine.world.now() - began < BREATHER_MS) await this.#breathe(signal)
    }
  }

  /** Steps down: the work is told to end, and the next one leads as soon as it has. Does nothing if not leading. */
  async resign(): Promise<void> {
    this.#stepDown?.abort(new LeaseholdError('RESIGNED', `stepping down from "${this.name}"`))
    await this.#term?.catch(() => {})
  }

  /** Tells everybody who observes something else about this leader. */
  async proclaim(value: unknown): Promise<void> {
    const text = jsonFrom('value', value, 4_096)
    const lock = this.#lock
    if (!lock?.isHeld) throw new LockLostError(this.name, 'gone')
    const { outcome, ...rest } = await leaseOf(lock).renew(text)
    if (outcome === 'unknown') {
      const { error } = rest as { error: unknown }
      throw new StoreUnavailableError(`"${this.name}" could not be proclaimed`, { cause: error })
    }
    lock.assertHeld()
    this.#value = text
  }

  /** Who leads now, or null. */
  async leader(): Promise<LeaderInfo | null> {
    return currentLeader(this.#engine, this.#ask.key)
  }

  /**
   * The leader now, and each one after it, with its value whenever that changes. Terms come in order; one that was over
   * before anyone could look may be left out, the latest never is.
   */
  observe(options: { signal?: AbortSignal } = {}): AsyncIterableIterator<LeaderInfo> {
    const signal = options.signal === undefined ? undefined : signalFrom(options.signal)
    return observe(this.#engine, this.#ask.key, () => this.leader(), signal)
  }

  /** Whether work goes on under a term that is over. */
  health(options: { maxStale?: Duration } = {}): ElectionHealth {
    const maxStale = milliseconds('maxStale', options.maxStale ?? '10s')
    const lock = this.#lock
    const overdue = lock && this.#working && !lock.isHeld ? this.#engine.world.now(true) - leaseOf(lock).deadline : 0
    const staleMs = Math.max(overdue, 0)
    return { healthy: staleMs <= maxStale, isLeader: this.isLeader, staleMs }
  }

  async #campaign(signal: AbortSignal | undefined): Promise<Lock | undefined> {
    try {
      const value = this.#value ?? 'null'
      return await this.#engine.acquire({ ...this.#ask, value, signal, announce: true })
    } catch (error) {
      if (signal?.aborted) return undefined
      throw error
    }
  }

  async #lead(lock: Lock, work: (leadership: Leadership) => unknown, signal: AbortSignal | undefined): Promise<void> {
    const stepDown = new AbortController()
    const onAbort = (): void => stepDown.abort(signal?.reason)
    signal?.addEventListener('abort', onAbort, { once: true })
    if (signal?.aborted) onAbort()
    this.#lock = lock
    this.#stepDown = stepDown
    this.#working = true
    try {
      const leadership = { term: lock.fencingToken, signal: AbortSignal.any([lock.signal, stepDown.signal]) }
      const working = (async () => work(leadership))()
      await this.#untilDrained(working, stepDown.signal)
    } finally {
      signal?.removeEventListener('abort', onAbort)
      this.#stepDown = undefined
      // Only now: a lease let go before the work has ended would let two lead at once.
      await lock.release()
      this.#working = false
      this.#lock = undefined
    }
  }

  /** The work's own end, or, once it was told to step down, at most the drain time later. */
  async #untilDrained(working: Promise<unknown>, stepDown: AbortSignal): Promise<void> {
    let cancel: (() => void) | undefined
    const overtime = new Promise<'overtime'>((resolve) => {
      const start = (): void => {
        cancel = this.#engine.world.after(this.#drainMs, () => resolve('overtime'), true)
      }
      if (stepDown.aborted) start()
      else stepDown.addEventListener('abort', start, { once: true })
    })
    try {
      await Promise.race([working, overtime])
    } catch (error) {
      // Work that was told to stop and throws for that reason has done what it was told.
      if (!isAbort(error) || !(stepDown.aborted || !this.isLeader)) throw error
    } finally {
      cancel?.()
      working.catch(() => {})
    }
  }

  async #breathe(signal: AbortSignal | undefined): Promise<void> {
    const { world } = this.#engine
    await new Promise<void>((resolve) => {
      const cancel = world.after(BREATHER_MS * (0.5 + world.random()), resolve, true)
      signal?.addEventListener('abort', () => (cancel(), resolve()), { once: true })
    })
  }
}

export async function currentLeader(engine: Engine, key: string): Promise<LeaderInfo | null> {
  const view = await engine.look('election', (store) => store.inspect?.(key))
  const [holder] = view.holders
  if (!holder || holder.token === undefined) return null
  return {
    leader: holder.owner,
    term: holder.token,
    value: holder.value === undefined ? null : JSON.parse(holder.value),
  }
}

function isAbort(error: unknown): boolean {
  return error instanceof LeaseholdError || (error instanceof Error && error.name === 'AbortError')
}
