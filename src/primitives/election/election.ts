import type { AcquireRequest } from '../../core/request.js'
import { onAbort } from '../../core/abort-fanout.js'
import type { Engine } from '../../core/engine.js'
import { type Lock, leaseOf } from '../../core/lock.js'
import { type Defaults, flagFrom, jsonFrom, signalFrom } from '../../core/options.js'
import {
  ClosedError,
  InvalidOptionError,
  LeaseholdError,
  StoreUnavailableError,
  UnsupportedError,
} from '../../errors.js'
import { type Duration, milliseconds } from '../../util/duration.js'
import { keepAlive } from '../../util/keep-alive.js'
import { knownOptions } from '../../util/options.js'
import { type Leadership, Term } from './term.js'
import { type LeaderInfo, currentLeader } from './leader.js'
import { observe } from './observe.js'
import { SUPPORTED_BY } from '../supported-by.js'

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

/** Options of `election.run`. */
export interface ElectionRunOptions {
  /** Ends it: the signal of the work aborts, and `run` resolves when the work has ended. */
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

/**
 * A term that was shorter than this, in milliseconds, is followed by a pause of half to one and a half times as long.
 * Work that ends right away would otherwise be elected in a hot loop.
 */
const SHORTEST_TERM_MS = 100
/**
 * On a store without a queue, a candidate that resigned would ask again before the others are notified, and be elected
 * again. So it waits for another leader, but not for ever, since there may be no other candidate: for half to one and
 * a half times this many milliseconds, at random.
 */
const STEP_ASIDE_MS = 500
/** Bytes of JSON. The value travels with every answer about the leader. */
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
  readonly #ask: AcquireRequest
  readonly #drainMs: number
  readonly #closing: AbortSignal
  #value: string
  /** The latest term. */
  #term: Term | undefined
  #running = false

  /** @internal */
  constructor(engine: Engine, defaults: Defaults, name: string, options: ElectionOptions, closing: AbortSignal) {
    const { store } = engine
    const { ttl, value = null, drain = '10s' } = knownOptions(options, OPTIONS)
    if (!store.features.values || !store.inspect) {
      throw new UnsupportedError(
        `an election needs a store that shows who leads, and the ${store.name} store cannot: use ${SUPPORTED_BY.election}; or withLock, if nobody has to see who leads`,
      )
    }
    this.#engine = engine
    this.name = name
    this.#ask = defaults.buildRequest(
      'election',
      name,
      ttl === undefined ? { wait: 'forever' } : { ttl, wait: 'forever' },
    )
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
    // The caller awaits it, and work that only waits for its signal has nothing else that keeps the process running.
    const letProcessEnd = flagFrom('unref', unref) ? undefined : keepAlive()
    try {
      await this.#campaignLoop(work, signal)
    } finally {
      this.#running = false
      letProcessEnd?.()
    }
  }

  /**
   * Steps down: the work's signal aborts, and the next candidate leads as soon as the work has ended. Settles when the
   * lease has been released; called by the work itself, at once. Does nothing if not leading.
   */
  async resign(): Promise<void> {
    if (this.isLeader) await this.#term?.resign()
  }

  /**
   * Publishes another value of this leader to all observers, in this term and in later ones of this object.
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
    const renewed = await leaseOf(lock).renewals.renew(text)
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
   * before it was read may be left out, the latest never is. Ends when `signal` aborts, with `return()` (which
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

  async #campaignLoop(work: (leadership: Leadership) => unknown, signal: AbortSignal | undefined): Promise<void> {
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
      if (term.resigned && !store.features.queue) await this.#stepAside(lock.fencingToken, ends)
      else if (world.now() - began < SHORTEST_TERM_MS) await this.#pause(SHORTEST_TERM_MS, ends)
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
    // The election was granted in the moment in which it was cancelled: release it.
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
    await this.#pause(STEP_ASIDE_MS, enough)
    back.abort()
    await watching
  }

  async #pause(ms: number, ends: readonly AbortSignal[]): Promise<void> {
    const { world } = this.#engine
    let listeners: (() => void)[] = []
    await new Promise<void>((resolve) => {
      const cancel = world.after(ms * (0.5 + world.random()), resolve, true)
      listeners = ends.map((signal) => onAbort(signal, () => (cancel(), resolve())))
    })
    for (const stop of listeners) stop()
  }
}
