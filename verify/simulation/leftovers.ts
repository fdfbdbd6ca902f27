import { getEventListeners } from 'node:events'
import type { Judge } from './judge.js'
import type { LocalStore } from './local-store.js'
import type { Wire } from './network.js'
import type { Plan } from './plan.js'
import type { SimProcess } from './process.js'
import type { Place } from './server.js'
import type { Simulation } from './simulation.js'

/** From the moment in which nothing goes wrong any more: a call that was lost before has to time out, and to be tried again. */
const STRAY_FROM_MS = 8_000
const STRAY_EVERY_MS = 2_000
const STRAY_LOOKS = 10
/** A lease that nobody believes in may be in the way for this long. */
const STRAY_MS = 8_000

/** Everything of which there must not be more from one round to the next. */
type Counts = Record<string, number>

/** What is left in the store and in the processes when it should not be. */
export class Leftovers {
  readonly #sim: Simulation
  readonly #judge: Judge
  readonly #plan: Plan
  readonly #server: Place
  readonly #connections: readonly Wire[]
  readonly #processes: readonly SimProcess[]
  readonly #local: LocalStore | undefined
  /** By token: since when nobody has believed in it. */
  readonly #strays = new Map<bigint, number>()
  #before: Counts | undefined

  constructor(parts: {
    sim: Simulation
    judge: Judge
    plan: Plan
    server: Place
    connections: readonly Wire[]
    processes: readonly SimProcess[]
    local: LocalStore | undefined
  }) {
    this.#sim = parts.sim
    this.#judge = parts.judge
    this.#plan = parts.plan
    this.#server = parts.server
    this.#connections = parts.connections
    this.#processes = parts.processes
    this.#local = parts.local
  }

  /** From now on nothing goes wrong: what belongs to nobody goes soon, and not only when its ttl has passed. */
  watchStrays(): void {
    // A grant that the store answered with nonsense is known to nobody, so nobody can release it.
    if (this.#plan.shape.odd) return
    this.#strays.clear()
    for (let i = 0; i < STRAY_LOOKS; i++) {
      this.#sim.plan(this.#sim.now + STRAY_FROM_MS + i * STRAY_EVERY_MS, () => this.#lookForStrays())
    }
  }

  #lookForStrays(): void {
    for (const [key, { holders }] of this.#keys()) {
      for (const { owner, token } of holders) {
        if (token === undefined || this.#judge.believes(token) || this.#isExcused(owner)) continue
        const since = this.#strays.get(token)
        if (since === undefined) this.#strays.set(token, this.#sim.now)
        else if (this.#sim.now - since >= STRAY_MS) {
          this.#judge.accuse('stray lease', `${key}: nobody has believed in ${owner} for ${STRAY_MS} ms`)
          this.#strays.set(token, Number.POSITIVE_INFINITY)
        }
      }
    }
  }

  /** Leases of crashed processes, of closed instances (which try each release once), of requests whose answer was lost, and of a `DistributedLock` that is meant to hold on. */
  #isExcused(owner: string): boolean {
    if (this.#server.unheard.has(owner)) return true
    return this.#judge.actors.some(({ process, closing, locks, distributed }) => {
      if (distributed && owner.startsWith(distributed.holderId)) return true
      return owner.startsWith(locks.clientId) && (process.crashed || closing)
    })
  }

  /** Everything was released and had its time. */
  check(): void {
    const judge = this.#judge
    for (const [key, { holders, waiters }] of this.#keys()) {
      if (holders.length > 0) judge.accuse('lease left', `${key}: ${holders.map(({ owner }) => owner).join()}`)
      if (waiters.length > 0) judge.accuse('queue entry left', `${key}: ${waiters.length}`)
    }
    for (const { process, openSubscriptions } of this.#connections) {
      if (!process.crashed && openSubscriptions > 0)
        judge.accuse('subscription left', `${process.label}: ${openSubscriptions}`)
    }
    const local = this.#local?.openSubscriptions ?? 0
    if (local > 0) judge.accuse('subscription left', `${local} in memory`)
    for (const { label, crashed, libraryTimers } of this.#processes) {
      // The mark of a tick outlives a schedule, so one timer per instance may be left.
      const marks = this.#plan.workload === 'schedule' ? judge.actors.length : 0
      // The memory store sweeps for as long as it keeps something, such as the record of a run.
      const sweeps = (this.#local?.real.holders('').length ?? 0) > 0 ? 1 : 0
      if (!crashed && libraryTimers > marks + sweeps) judge.accuse('timer left', `${label}: ${libraryTimers}`)
    }
    for (const { process, label, listening } of judge.actors) {
      if (!process.crashed && listening > 0) judge.accuse('listener left', `${label}: ${listening}`)
    }
  }

  /** The same was done once more: there is no more of anything than the last time. */
  compareRounds(): void {
    const counts = this.#count()
    for (const [what, count] of Object.entries(counts)) {
      const before = this.#before?.[what]
      if (before !== undefined && count > before)
        this.#judge.accuse('growth', `${what}: ${count}, and ${before} before`)
    }
    this.#before = counts
  }

  #count(): Counts {
    let [leases, entries] = [0, 0]
    for (const [, { holders, waiters }] of this.#keys(/^$/)) {
      leases += holders.length
      entries += waiters.length
    }
    const sum = <T>(list: readonly T[], count: (item: T) => number): number =>
      list.reduce((total, item) => total + count(item), 0)
    return {
      leases,
      'queue entries': entries,
      'subscriptions at the server': this.#server.subscriptions,
      'open requests': this.#server.openRequests,
      subscriptions: sum(this.#connections, (each) => each.openSubscriptions) + (this.#local?.openSubscriptions ?? 0),
      'listeners to the store': sum(this.#connections, (each) => each.listeners),
      timers: sum(this.#processes, (each) => each.libraryTimers),
      'listeners to signals': sum(this.#judge.actors, (each) => each.listening),
      'listeners to the process': process.eventNames().reduce((all, name) => all + process.listenerCount(name), 0),
    }
  }

  /** Holders and waiters of every key but those whose records are meant to stay. */
  *#keys(except: RegExp = /^(once|run-once|schedule)/): Generator<[string, ReturnType<Place['inspect']>]> {
    const store = this.#local?.real ?? this.#server
    for (const key of this.#local?.keys ?? this.#server.keys) {
      if (!except.test(key)) yield [key, this.#sim.probe(() => store.inspect(key))]
    }
  }
}

/** How many listeners these have. */
export function listenersOf(signals: readonly AbortSignal[]): number {
  return signals.reduce((sum, signal) => sum + getEventListeners(signal, 'abort').length, 0)
}
