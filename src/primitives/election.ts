import type { Ask } from '../core/ask.js'
import { onAbort } from '../core/cancel.js'
import type { Engine } from '../core/engine.js'
import { type Lock, leaseOf } from '../core/lock.js'
import { type Defaults, flagFrom, jsonFrom, signalFrom } from '../core/options.js'
import { ClosedError, InvalidOptionError, LeaseholdError, StoreUnavailableError, UnsupportedError } from '../errors.js'
import { type Duration, milliseconds } from '../kit/duration.js'
import { keepAlive } from '../util/keep-alive.js'
import { knownOptions } from '../util/options.js'
import { type Leadership, Term } from './election-term.js'
import { observe } from './observe.js'

/** Options of `locks.election`. */
export interface ElectionOptions {
  /** A leader that dies is replaced after this long. */
  ttl?: Duration | undefined
  /** What others see of the leader, such as its address: JSON, at most 4 KB. */
  value?: unknown
  /**
   * How long the work of a leader that steps down may take to end. It is still the leader meanwhile; afterwards another
   * may lead, although the work has not ended. Default 10s.
   */
  drain?: Duration | undefined
}

/** Who leads. */
export interface LeaderInfo {
  leader: string
  term: bigint
  value: unknown
}

/** Options of `election.run`. */
export interface ElectionRunOptions {
  /** Ends it: the work is told, and `run` resolves when it has ended. */
  signal?: AbortSignal | undefined
  /** True: the process may exit although this election runs. Default false. */
  unref?: boolean | undefined
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
 * Where nobody stands in line, who resigned would be back before the others have heard of it, and be elected again. So it
 * waits for another to lead, but no longer than this: perhaps nobody else wants to.
 */
const STEP_ASIDE_MS = 500
const LARGEST_VALUE = 4_096

const OPTIONS = ['ttl', 'value', 'drain']
const SIGNAL = ['signal']
const RUN = ['signal', 'unref']
const MAX_STALE = ['maxStale']

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
  readonly #closing: AbortSignal
  #value: string
  /** The latest. */
  #term: Term | undefined
  #running = false

  /** @internal */
  constructor(engine: Engine, defaults: Defaults, name: string, options: ElectionOptions, closing: AbortSignal) {
    const { store } = engine
    const { ttl, value = null, drain = '10s' } = knownOptions(options, OPTIONS)
    if (!store.features.values || !store.inspect) {
      throw new UnsupportedError(
        `an election needs a store that shows who leads, and the ${store.name} store cannot: use the memory, SQLite, Redis, Redlock or PostgreSQL lease-table store; or withLock, if nobody has to see who leads`,
      )
    }
    this.#engine = engine
    this.name = name
    this.#ask = defaults.ask('election', name, ttl === undefined ? { wait: 'forever' } : { ttl, wait: 'forever' })
    this.#drainMs = milliseconds('drain', drain)
    this.#value = jsonFrom('value', value, LARGEST_VALUE)
    this.#closing = closing
  }

  /** Whether this instance leads, exact at any instant by the local clock. */
  get isLeader(): boolean {
    return this.#term?.lock.isHeld === true
  }

  /**
   * Campaigns, leads, and campaigns again, until `signal` aborts or the instance closes. When the term ends (lost,
   * resigned, or `signal`), the work's own signal aborts, and the next campaign begins when the work has ended. What the
   * work throws, this throws. Work that outlasts its drain time once `signal` aborted: `DRAIN_TIMEOUT`.
   */
  async run(work: (leadership: Leadership) => unknown, options: ElectionRunOptions = {}): Promise<void> {
    if (typeof work !== 'function') throw new InvalidOptionError('work', work, 'a function to run while leading')
    const { signal: given, unref = false } = knownOptions(options, RUN)
    const signal = given === undefined ? undefined : signalFrom(given)
    if (this.#running || this.#term?.working) {
      throw new LeaseholdError('ALREADY_RUNNING', `this election of "${this.name}" is already running`)
    }
    if (this.#engine.closingReason) {
      throw new ClosedError(`"${this.name}" cannot be campaigned for: locks.close() was called`)
    }
    this.#running = true
    // Somebody awaits it, and work that only waits for its signal has nothing else that keeps the process running.
    const letProcessEnd = flagFrom('unref', unref) ? undefined : keepAlive()
    try {
      await this.#reign(work, signal)
    } finally {
      this.#running = false
      letProcessEnd?.()
    }
  }

  /**
   * Steps down: the work is told to end, and the next one leads as soon as it has. Settles when the lease has been let
   * go; called by the work itself, at once. Does nothing if not leading.
   */
  async resign(): Promise<void> {
    if (this.isLeader) await this.#term?.resign()
  }

  /**
   * Tells everybody who observes something else about this leader, in this term and in later ones of this object.
   * Rejects if this instance does not lead.
   */
  async proclaim(value: unknown): Promise<void> {
    const text = jsonFrom('value', value, LARGEST_VALUE)
    const lock = this.#term?.lock
    if (!lock?.isHeld) {
      throw new LeaseholdError(
        'NOT_LEADER',
        `only the leader of "${this.name}" can proclaim, and this one does not lead`,
      )
    }
    const renewed = await leaseOf(lock).renew(text)
    lock.assertHeld()
    if (renewed.outcome === 'unknown') {
      throw new StoreUnavailableError(`"${this.name}" could not be proclaimed`, { cause: renewed.error })
    }
    this.#value = text
  }

  /** Who leads now, or null. */
  async leader(): Promise<LeaderInfo | null> {
    return currentLeader(this.#engine, this.#ask.key)
  }

  /**
   * The leader now, and each one after it, with its value whenever that changes. Terms come in order; one that was over
   * before anyone could look may be left out, the latest never is. Ends when `signal` aborts, with `return()` (which
   * `break` calls), and when the instance closes. An outage delays it and does not end it.
   */
  observe(options: { signal?: AbortSignal | undefined } = {}): AsyncIterableIterator<LeaderInfo> {
    const { signal } = knownOptions(options, SIGNAL)
    const ends = [this.#closing]
    if (signal !== undefined) ends.push(signalFrom(signal))
    return observe(this.#engine, this.#ask.key, () => this.leader(), ends)
  }

  /** Whether work goes on under a term that is over. */
  health(options: { maxStale?: Duration | undefined } = {}): ElectionHealth {
    const { maxStale: given = '10s' } = knownOptions(options, MAX_STALE)
    const maxStale = milliseconds('maxStale', given)
    const staleMs = this.#term?.staleMs ?? 0
    return { healthy: staleMs <= maxStale, isLeader: this.isLeader, staleMs }
  }

  async #reign(work: (leadership: Leadership) => unknown, signal: AbortSignal | undefined): Promise<void> {
    const { world, store } = this.#engine
    const ends = signal ? [signal, this.#closing] : [this.#closing]
    const over = (): boolean => ends.some((end) => end.aborted)
    while (!over()) {
      const lock = await this.#campaign(signal, over)
      if (!lock) return
      const began = world.now()
      const term = new Term(world, lock, { name: this.name, drainMs: this.#drainMs, ends })
      this.#term = term
      await term.lead(work)
      if (over()) return
      if (term.resigned && !store.features.line) await this.#stepAside(lock.fencingToken, ends)
      else if (world.now() - began < BREATHER_MS) await this.#breathe(BREATHER_MS, ends)
    }
  }

  async #campaign(signal: AbortSignal | undefined, over: () => boolean): Promise<Lock | undefined> {
    let lock: Lock
    try {
      lock = await this.#engine.acquire({ ...this.#ask, value: this.#value, signal, announce: true })
    } catch (error) {
      if (over()) return undefined
      throw error
    }
    if (!over()) return lock
    // Elected in the very moment in which we stopped wanting it.
    await lock.release()
    return undefined
  }

  async #stepAside(ownTerm: bigint, ends: readonly AbortSignal[]): Promise<void> {
    const back = new AbortController()
    const enough = [...ends, back.signal]
    const watch = async (): Promise<void> => {
      const leaders = observe(this.#engine, this.#ask.key, () => this.leader(), enough)
      for await (const { term } of leaders) if (term > ownTerm) break
      back.abort()
    }
    const watching = watch()
    await this.#breathe(STEP_ASIDE_MS, enough)
    back.abort()
    await watching
  }

  async #breathe(ms: number, ends: readonly AbortSignal[]): Promise<void> {
    const { world } = this.#engine
    let listeners: (() => void)[] = []
    await new Promise<void>((resolve) => {
      const cancel = world.after(ms * (0.5 + world.random()), resolve, true)
      listeners = ends.map((signal) => onAbort(signal, () => (cancel(), resolve())))
    })
    for (const stop of listeners) stop()
  }
}

async function currentLeader(engine: Engine, key: string): Promise<LeaderInfo | null> {
  const { holders } = await engine.look('election', (store) => store.inspect?.(key))
  let latest: LeaderInfo | null = null
  // Servers that vote may show somebody of an earlier term beside the one who leads, and a candidate before its term began.
  for (const { owner, token, value } of holders) {
    if (token !== undefined && token > (latest?.term ?? -1n))
      latest = { leader: owner, term: token, value: parsed(value) }
  }
  return latest
}

/** Other writers may have put anything there. */
function parsed(value: string | undefined): unknown {
  if (value === undefined) return null
  try {
    return JSON.parse(value)
  } catch {
    return value
  }
}
