import type { LockEvents, LockFacts } from '../../src/core/events.js'
import type { Locks } from '../../src/locks.js'
import type { DistributedLock } from '../../src/primitives/distributed-lock.js'
import type { Limiter } from '../../src/primitives/limiter/limiter.js'
import type { Store } from '../../src/store.js'
import { type Belief, type Judge, keyOf, type Wait } from './judge.js'
import { listenersOf } from './leftovers.js'
import type { Wire } from './network.js'
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

/** An event of the library, as its listener received it. */
export interface HeardEvent {
  event: string
  holder: string | undefined
  name: string
  kind: string
  at: number
}

/** A lease, as far as the events of the library describe it. */
export interface ObservedLease {
  mode: LockFacts['mode']
  /** When its acquisition began, by the time of the simulation. */
  asked: number
  name: string
  token: bigint
  /** By the clock of the process. */
  deadline: number
  ended: boolean
  claimed: boolean
}

/** How late a wait may end when nothing went wrong: timers, and the microtasks of an answer. */
const PROMPT_MS = 5
/** How much longer than its wait a group may wait for its releases. */
const RELEASE_WITHIN_MS = 250
/** How long the core waits for the answer to an open request once it has sent the release that ends it. */
const LAST_CALL_MS = 520

/**
 * One attempt on Redlock takes at most so many trips: it looks at the nodes first, and asks up to three times again for the
 * votes that others seem about to return, after a pause of up to one and a half rounds. Then it raises the token.
 */
const REDLOCK_TRIPS = 22

/** One instance of the library in one process, and the code of its user. */
export class Actor {
  readonly sim: Simulation
  readonly judge: Judge
  readonly process: SimProcess
  readonly locks: Locks
  readonly shape: Shape
  readonly weather: Weather
  readonly connection: Wire | undefined
  readonly label: string
  readonly store: Store
  distributed: DistributedLock | undefined
  limiter: Limiter | undefined
  readonly longestTtl: Map<string, number> = new Map()
  /** Of the `DistributedLock`, by name. */
  readonly beliefs: Map<string, { deadline: number; releasedAt: number | undefined; belief: Belief }> = new Map()
  readonly heard: HeardEvent[] = []
  /** How many callers got a `LockTimeoutError`, by kind and name. */
  readonly timeouts: Map<string, number> = new Map()
  /** References that keep locks from being garbage-collected before the end of a schedule: when a collection runs is not deterministic. */
  readonly retained: unknown[] = []
  readonly signals: AbortSignal[] = []
  /** A signal that lasts as long as the process, as that of a server which shuts down some day. */
  readonly shutdown: AbortSignal = new AbortController().signal
  closing = false
  closed = false
  /** When `releaseAll`, `close` or `forceRelease` was called by anybody: locks may be taken away from then on. */
  takenAt: number[] = []
  readonly #leases = new Map<string, ObservedLease>()

  constructor(
    parts: { sim: Simulation; judge: Judge; shape: Shape; weather: Weather },
    process: SimProcess,
    locks: Locks,
    connection: { connection: Wire | undefined; store: Store },
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
    this.signals.push(this.shutdown)
    for (const event of ['acquired', 'released', 'lost', 'timeout', 'renewed'] as const) {
      locks.on(event, (facts) => this.#hear(event, facts as Partial<LockFacts> & { name: string; kind: string }))
    }
  }

  #hear(event: string, facts: Partial<LockFacts> & { name: string; kind: string; waitedMs?: number }): void {
    const { holder, name, kind, mode = 'exclusive', expiresAt, fencingToken = 0n, waitedMs = 0 } = facts
    if (holder !== undefined && kind === 'lock') {
      const lease = this.#leases.get(holder)
      const ended = event === 'released' || event === 'lost'
      const left = this.sim.probe(() => (expiresAt?.getTime() ?? 0) - this.process.world.date())
      const deadline = this.process.clockAt(this.process.local) + left
      if (lease) Object.assign(lease, { deadline, ended })
      else {
        const asked = this.process.local - waitedMs
        this.#leases.set(holder, { name, mode, token: fencingToken, asked, deadline, ended, claimed: false })
      }
    }
    if (event === 'renewed') return
    if (event === 'lost') this.#checkReason(facts as LockEvents['lost'])
    this.note(`event ${event} ${kind} ${name} ${holder ?? ''}`)
    this.heard.push({ event, holder, name, kind, at: this.process.local })
  }

  /**
   * Code takes no time here, so nothing blocks; and of the time for which a process says that it did not run, it must have been
   * paused for the larger part. A stall is counted from when a timer was due, and timers may be late before a pause begins.
   */
  #checkReason({ name, why, stalledMs, lastRenewedMsAgo = 0 }: LockEvents['lost']): void {
    const since = this.process.local - this.process.trueMs(lastRenewedMsAgo)
    const paused = this.process.pausedSince(since)
    const isWrong = why === 'blocked' || (why === 'frozen' && paused < this.process.trueMs(stalledMs) / 2)
    if (isWrong)
      this.judge.accuse('wrong reason', `${this.label} ${name}: ${why} for ${stalledMs} ms, paused ${paused} ms`)
  }

  /**
   * `releaseAll` is about to end what this instance holds. If the store does not answer, no event says so: a lock that ended before its
   * callback was called would be taken for the next one of its name.
   */
  endLeases(): void {
    for (const lease of this.#leases.values()) if (!lease.claimed) lease.ended = true
  }

  /**
   * The lease of this name and mode that is held, that nobody has claimed yet, and that was asked for at this time. After a freeze,
   * the callbacks of several grants may run in another order than their events.
   */
  claimLease(name: string, mode: LockFacts['mode'], asked: number): ObservedLease | undefined {
    let found: ObservedLease | undefined
    const farther = (a: ObservedLease, b: ObservedLease): boolean =>
      Math.abs(a.asked - asked) > Math.abs(b.asked - asked)
    for (const lease of this.#leases.values()) {
      if (lease.name !== name || lease.mode !== mode || lease.claimed || lease.ended) continue
      if (!found || farther(found, lease)) found = lease
    }
    if (found) found.claimed = true
    return found
  }

  /** How many listeners are left on the signals that its user made. */
  get listening(): number {
    return listenersOf(this.signals)
  }

  note(text: string): void {
    if (this.sim.trace) this.sim.note(this.process, text)
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

  /** Another wait of this instance was there before, and no answer can come within its ttl: those behind it fail with it. */
  #isBehindHopeless({ key, asked }: Wait, quickest: number): boolean {
    return this.judge.waits.some(
      (each) =>
        each.actor === this &&
        each.key === key &&
        each.asked <= asked &&
        (each.settled ?? Number.POSITIVE_INFINITY) > asked &&
        each.ttlMs <= quickest * 1.1,
    )
  }

  /** This instance was granted the key since then. The first name of a group is in the way of others before its user has the group. */
  #wasGranted(key: string, from: number): boolean {
    return this.heard.some(
      (each) => each.event === 'acquired' && `${each.kind}:${each.name}` === key && each.at >= from,
    )
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
        this.#wasGranted(wait.key, from) ||
        // The waiter is behind a request of its own process that may be open, or was when its time was up (its caller learns
        // of it much later if the process freezes in between): nobody can tell whether that request has arrived.
        (this.shape.blocks &&
          [process.local, wait.asked + wait.waitMs].some((at) => this.connection?.wasAsking(keyOf(wait.key), at)))
      if (!busy) this.judge.accuse('outage reported as busy', `${this.label} ${wait.key}: the server never refused it`)
    } else if (code === 'STORE_UNAVAILABLE') {
      const quickest = this.weather.latency[1] * (this.shape.redlock ? REDLOCK_TRIPS : 4) + 1
      const reasonable = (wait.waitMs === 0 || wait.waitMs > quickest) && wait.ttlMs > quickest * 1.1 && !options.group
      // Behind a request that follows a failed one nobody knows better before the next answer.
      const isUnclear = this.connection?.hasFailed(keyOf(wait.key)) || this.#isBehindHopeless(wait, quickest)
      if (reasonable && this.undisturbed(wait.asked) && !isUnclear) {
        const text = (error as Error).message
        this.judge.accuse(
          'busy reported as outage',
          `${this.label} ${wait.key} after ${Math.round(process.local - wait.asked)} ms: ${text}`,
        )
      }
    } else if (code === 'CLOSED' || (error as Error)?.name === 'AbortError') {
      // A Web Lock whose lease ran out before its callback could begin.
      const { cause } = error as { cause?: { code?: string } }
      const isLost = cause?.code === 'LOCK_LOST' && !this.weather.calm
      if (!this.closing && !isLost)
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

  /** The user's code has done its work: its result counts only if the lock was held until now. */
  ends(belief: Belief): void {
    this.judge.ends(belief)
  }
}
