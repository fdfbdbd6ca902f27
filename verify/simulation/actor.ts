import type { LockFacts } from '../../src/core/events.js'
import type { Locks } from '../../src/locks.js'
import type { DistributedLock } from '../../src/primitives/distributed-lock.js'
import type { Limiter } from '../../src/primitives/limiter.js'
import type { Store } from '../../src/store.js'
import { type Belief, type Judge, keyOf, type Wait } from './judge.js'
import type { Connection } from './network.js'
import type { SimProcess } from './process.js'
import type { Shape } from './shape.js'
import type { Simulation } from './simulation.js'
import type { Weather } from './weather.js'

/** One operation of a schedule: plain data, so that it can be printed and left out. */
export interface Operation {
  id: number
  /** Which instance of the library does it. */
  actor: number
  at: number
  type: string
  name: string
  [option: string]: unknown
}

/** An event of the library, as a listener was told. */
export interface Told {
  event: string
  holder: string | undefined
  name: string
  kind: string
  at: number
}

/** A lease as the events tell of it. */
export interface ToldLease {
  name: string
  token: bigint
  /** By the clock of the process. */
  deadline: number
  ended: boolean
  claimed: boolean
}

/** How late a wait may end when nothing went wrong: timers, and the microtasks of an answer. */
const PROMPT_MS = 5
/** The core gives a request that is kept open this long to be answered once it was told to end. */
/** How much longer than its wait a group may wait for its releases. */
const RELEASE_WITHIN_MS = 250
const LAST_CALL_MS = 520

/** One instance of the library in one process, and the code of its user. */
export class Actor {
  readonly sim: Simulation
  readonly judge: Judge
  readonly process: SimProcess
  readonly locks: Locks
  readonly shape: Shape
  readonly weather: Weather
  readonly connection: Connection | undefined
  readonly label: string
  readonly store: Store
  distributed: DistributedLock | undefined
  limiter: Limiter | undefined
  readonly longestTtl: Map<string, number> = new Map()
  /** Of the `DistributedLock`, by name. */
  readonly beliefs: Map<string, { deadline: number; releasedAt: number | undefined; belief: Belief }> = new Map()
  readonly told: Told[] = []
  /** How often a caller was told that it stayed busy, by kind and name. */
  readonly timeouts: Map<string, number> = new Map()
  /** Nothing is garbage-collected before the end of a schedule: when that happens is not for us to say. */
  readonly kept: unknown[] = []
  readonly signals: AbortSignal[] = []
  closing = false
  /** When `releaseAll`, `close` or `forceRelease` was called by anybody: locks may be taken away from then on. */
  takenAt: number[] = []
  readonly #leases = new Map<string, ToldLease>()

  constructor(
    parts: { sim: Simulation; judge: Judge; shape: Shape; weather: Weather },
    process: SimProcess,
    locks: Locks,
    connection: { connection: Connection | undefined; store: Store },
    label: string,
  ) {
    this.sim = parts.sim
    this.judge = parts.judge
    this.shape = parts.shape
    this.weather = parts.weather
    this.process = process
    this.locks = locks
    this.connection = connection.connection
    this.store = connection.store
    this.label = label
    for (const event of ['acquired', 'released', 'lost', 'timeout', 'renewed'] as const) {
      locks.on(event, (facts) => this.#hear(event, facts as Partial<LockFacts> & { name: string; kind: string }))
    }
  }

  #hear(event: string, facts: Partial<LockFacts> & { name: string; kind: string }): void {
    const { holder, name, kind, expiresAt, fencingToken = 0n } = facts
    if (holder !== undefined && kind === 'lock') {
      const lease = this.#leases.get(holder)
      const ended = event === 'released' || event === 'lost'
      const left = this.sim.probe(() => (expiresAt?.getTime() ?? 0) - this.process.world.date())
      const deadline = this.process.clockAt(this.process.local) + left
      if (lease) Object.assign(lease, { deadline, ended })
      else this.#leases.set(holder, { name, token: fencingToken, deadline, ended, claimed: false })
    }
    if (event === 'renewed') return
    this.note(`event ${event} ${kind} ${name} ${holder ?? ''}`)
    this.told.push({ event, holder, name, kind, at: this.process.local })
  }

  /** The oldest lease of this name that is held and that nobody has claimed yet. */
  claimLease(name: string): ToldLease | undefined {
    for (const lease of this.#leases.values()) {
      if (lease.name !== name || lease.claimed || lease.ended) continue
      lease.claimed = true
      return lease
    }
    return undefined
  }

  note(text: string): void {
    this.sim.trace && this.sim.note(this.process, text)
  }

  sleep(ms: number): Promise<void> {
    return this.process.sleep(ms)
  }

  /** A signal that aborts after so long. */
  abortAfter(ms: number): { signal: AbortSignal; abortedAt: () => number | undefined } {
    const controller = new AbortController()
    let at: number | undefined
    let paused = 0
    void this.sleep(ms).then(() => {
      at = this.process.local
      paused = this.process.pausedMs
      this.note('aborts a signal')
      controller.abort(new Error('aborted by the user'))
    })
    this.signals.push(controller.signal)
    return {
      signal: controller.signal,
      abortedAt: () => (at === undefined ? undefined : at + this.process.pausedMs - paused),
    }
  }

  asks(key: string, name: string, waitMs: number, how: { exclusive: boolean; ttlMs?: number; inTurn?: boolean }): Wait {
    return this.judge.asks(this, key, name, waitMs, how)
  }

  /** Nothing went wrong for this process lately that could explain a late or failed answer. */
  undisturbed(from: number): boolean {
    const since = from - this.shape.timeoutMs
    return !this.process.disturbances.some((each) => each.to >= since && each.from <= this.process.local)
  }

  /** A wait has ended without a grant: in time, and for the right reason. */
  refused(
    wait: Wait,
    error: unknown,
    options: { abortedAt?: number | undefined; calls?: number; group?: boolean } = {},
  ): void {
    const { process } = this
    wait.settled ??= process.local
    const code = (error as { code?: string }).code ?? (error as Error)?.message
    this.note(`is refused ${wait.key}: ${code}`)
    this.inTime(wait, options)
    if (code === 'LOCK_TIMEOUT') {
      const id = wait.key
      this.timeouts.set(id, (this.timeouts.get(id) ?? 0) + 1)
      const from = wait.asked - 1
      const busy =
        this.shape.inProcess ||
        this.judge.wasRefused(process, keyOf(wait.key), from - 10_000, process.local) ||
        this.judge.wasHeldBy(process, wait.key, from) ||
        // It was kept open until the wait was over: nobody can tell whether it was granted before that or because of it.
        this.shape.blocks
      if (!busy) this.judge.accuse('outage told as busy', `${this.label} ${wait.key}: the server never refused it`)
    } else if (code === 'STORE_UNAVAILABLE') {
      const quickest = this.weather.latency[1] * 4 + 1
      const reasonable = (wait.waitMs === 0 || wait.waitMs > quickest) && wait.ttlMs > quickest * 1.1 && !options.group
      if (reasonable && this.undisturbed(wait.asked)) {
        const text = (error as Error).message
        this.judge.accuse(
          'busy told as outage',
          `${this.label} ${wait.key} after ${Math.round(process.local - wait.asked)} ms: ${text}`,
        )
      }
    } else if (code === 'CLOSED' || (error as Error)?.name === 'AbortError') {
      if (!this.closing)
        this.judge.accuse('wrong error', `${this.label} ${wait.key}: ${String(error)}, but nothing was closed`)
    } else if (code !== 'aborted by the user') {
      this.judge.accuse('wrong error', `${this.label} ${wait.key}: ${code}`)
    }
  }

  /** `calls`: how many answers of the store the wait may have to await after its time. */
  inTime(
    wait: Wait,
    { abortedAt, calls = 1, group = false }: { abortedAt?: number | undefined; calls?: number; group?: boolean },
  ): void {
    const { process } = this
    const paused = process.pausedMs - wait.pausedMs
    const took = process.local - wait.asked
    const single = wait.waitMs === 0
    const last = this.shape.blocks ? LAST_CALL_MS : 0
    let most = wait.waitMs * 1.005 + PROMPT_MS + paused + last + (group ? RELEASE_WITHIN_MS : 0)
    if (single || !this.undisturbed(wait.asked)) most += calls * (this.shape.timeoutMs + PROMPT_MS)
    if (took > most) {
      this.judge.accuse('late', `${this.label} ${wait.key}: waited ${Math.round(took)} ms instead of ${wait.waitMs}`)
    }
    if (abortedAt !== undefined && process.local > abortedAt + PROMPT_MS) {
      const late = Math.round(process.local - abortedAt)
      this.judge.accuse('late abort', `${this.label} ${wait.key}: ended ${late} ms after its signal`)
    }
  }

  /** The user's code has done its work: what it returned counts only if the lock was held until then. */
  ends(belief: Belief): void {
    this.judge.ends(belief)
  }
}
