import { getEventListeners } from 'node:events'
import { realWorld } from '../../src/kit/world.js'
import { Locks } from '../../src/locks.js'
import { Actor, type Operation } from './actor.js'
import * as chaos from './chaos.js'
import { Judge, keyOf, type Violation } from './judge.js'
import { LocalStore } from './local-store.js'
import { Connection } from './network.js'
import * as operations from './operations.js'
import * as leading from './operations-lead.js'
import * as running from './operations-runs.js'
import * as web from './operations-web.js'
import type { Plan } from './plan.js'
import { EPOCH, SimProcess } from './process.js'
import { mix, Random } from './random.js'
import { Server } from './server.js'
import { Simulation, type TraceLine } from './simulation.js'

export interface Outcome {
  violations: Violation[]
  events: number
  grants: number
  refusals: number
  struck: string[]
  trace: TraceLine[] | undefined
  /** Long identities of instances, and what a timeline calls them. */
  names: Map<string, string>
  actors: string[]
}

type Operate = (actor: Actor, op: never) => Promise<void>

const OPERATIONS: Record<string, Operate> = {
  ...operations,
  ...running,
  ...leading,
  ...web,
  ...chaos,
} as unknown as Record<string, Operate>

/** Long enough for every ttl, every wait and the linger of idle subscriptions to pass. */
const REST_MS = 120_000
const CLOSE_MS = 30_000
/** A schedule that needs more has a loop in it. */
const MOST_EVENTS = 60_000

let judging: { judge: Judge; sim: Simulation } | undefined

/** Once per program: the rest of the library's surroundings belong to the process whose code runs. */
export function install(): void {
  Error.stackTraceLimit = 0
  const planImmediate = globalThis.setImmediate
  const immediate = (run: (...args: unknown[]) => void, ...args: unknown[]): unknown => {
    const process = judging?.sim.current
    if (!process) return planImmediate(run, ...args)
    process.deliver(process.local + 0.001, 'timer', () => run(...args))
    return undefined
  }
  globalThis.setImmediate = immediate as typeof setImmediate
  const world = (): typeof realWorld => judging?.sim.current?.world ?? outside()
  Object.assign(realWorld, {
    now: () => world().now(),
    date: () => world().date(),
    after: (ms: number, run: () => void) => world().after(ms, run),
    random: () => world().random(),
    bytes: () => world().bytes(),
  })
  process.on('unhandledRejection', (error) => {
    if (!judging) throw error
    judging.judge.accuse('unhandled rejection', String(error))
  })
  process.on('warning', (warning) => {
    // Leases of 60 ms are here on purpose.
    if (!warning.message.startsWith('ttl: ')) judging?.judge.accuse('warning', String(warning))
  })
}

function outside(): never {
  throw new Error('the library looks at the real world')
}

/** Runs a schedule to its end. Must not be called from inside a promise: the driver drains the queues itself. */
export function runPlan(plan: Plan, options: { trace?: boolean; suppressed?: ReadonlySet<string> } = {}): Outcome {
  const sim = new Simulation({ trace: options.trace === true, suppressed: options.suppressed ?? new Set() })
  const judge = new Judge(sim)
  judging = { judge, sim }
  const stage = new Stage(plan, sim, judge)
  try {
    stage.play()
  } finally {
    judging = undefined
  }
  const { violations, grants, refusals } = judge
  const actors = judge.actors.map(({ label }) => label)
  const names = new Map(judge.actors.map((actor) => [actor.locks.clientId, actor.label]))
  for (const { distributed, label } of judge.actors) if (distributed) names.set(distributed.holderId, `${label}D`)
  return { violations, events: sim.events, grants, refusals, struck: sim.struck, trace: sim.trace, names, actors }
}

class Stage {
  readonly #plan: Plan
  readonly #sim: Simulation
  readonly #judge: Judge
  readonly #processes: SimProcess[]
  readonly #connections: Connection[] = []
  readonly #server: Server
  #local: LocalStore | undefined
  readonly #running = new Set<Operation>()

  constructor(plan: Plan, sim: Simulation, judge: Judge) {
    this.#plan = plan
    this.#sim = sim
    this.#judge = judge
    const { shape, weather, seed } = plan
    const rate = weather.drift ? new Random(mix(seed, 5)).between(0.996, 1.004) : 1
    this.#server = new Server(sim, shape, judge, rate)
    const count = Math.max(...plan.actors) + 1
    this.#processes = Array.from({ length: count }, (_, i) => new SimProcess(sim, i, seed, weather))
    for (const process of this.#processes) sim.enter(process, () => this.#populate(process))
  }

  #populate(process: SimProcess): void {
    const { shape, weather, seed, actors } = this.#plan
    const index = this.#processes.indexOf(process)
    const parts = { sim: this.#sim, judge: this.#judge, server: this.#server, shape, weather }
    let connection: Connection | undefined
    if (shape.inProcess) this.#local = new LocalStore(process, this.#judge)
    else this.#connections.push((connection = new Connection(parts, process, index, seed)))
    const store = connection?.store ?? (this.#local as LocalStore).store
    for (const [i, home] of actors.entries()) {
      if (home !== index) continue
      const locks = new Locks(store, {}, process.world)
      const label = actors.filter((each) => each === home).length > 1 ? `${process.label}.${i + 1}` : process.label
      this.#judge.actors[i] = new Actor(parts, process, locks, { connection, store }, label)
    }
  }

  play(): void {
    const { operations: planned, lastsMs } = this.#plan
    for (const op of planned) {
      const actor = this.#judge.actors[op.actor] as Actor
      actor.process.deliver(op.at, 'timer', () => this.#start(actor, op))
    }
    const sim = this.#sim
    const quiet =
      sim.run(lastsMs, MOST_EVENTS) && (this.#clearUp(), sim.run(lastsMs + REST_MS, MOST_EVENTS)) && this.#rest()
    if (!quiet) this.#judge.accuse('storm', `more than ${MOST_EVENTS} events`)
  }

  #start(actor: Actor, op: Operation): void {
    actor.sim.trace && actor.note(`${actor.label} begins ${describe(op)}`)
    this.#running.add(op)
    const run = OPERATIONS[op.type] as Operate
    const running = run(actor, op as never)
    running.then(
      () => this.#running.delete(op),
      (error: unknown) => {
        this.#running.delete(op)
        this.#judge.accuse('operation', `${actor.label} #${op.id}: ${String((error as Error)?.stack ?? error)}`)
      },
    )
  }

  #clearUp(): void {
    this.#sim.clearUp()
    for (const connection of this.#connections) connection.clearUp()
    this.#sim.note(undefined, 'from here on nothing goes wrong any more')
  }

  /** Everything was released and had its time: nothing is left. Then every instance closes. */
  #rest(): boolean {
    const judge = this.#judge
    for (const op of this.#running) {
      const actor = judge.actors[op.actor] as Actor
      if (!actor.process.crashed) judge.accuse('never settles', `${actor.label} ${describe(op)}`)
    }
    this.#compareEvents()
    if (!judge.actors.some(({ process }) => process.crashed)) judge.ticks.finish(EPOCH + this.#plan.lastsMs - 10)
    const { shape, weather } = this.#plan
    if (weather.calm && shape.queue) judge.compareTurns(weather.latency[1] * 4)
    this.#lookForLeases()
    for (const connection of this.#connections) {
      const { label, crashed } = connection.process
      const { openSubscriptions } = connection
      if (!crashed && openSubscriptions > 0) judge.accuse('subscription left', `${label}: ${openSubscriptions}`)
    }
    const local = this.#local?.openSubscriptions ?? 0
    if (local > 0) judge.accuse('subscription left', `${local} in memory`)
    for (const process of this.#processes) {
      // One for each instance may be left of a mark that is kept for longer than a schedule lasts.
      const marks = this.#plan.workload === 'schedule' ? judge.actors.length : 0
      // The memory store sweeps for as long as it keeps something, such as the record of a run.
      const sweeps = (this.#local?.real.holders('').length ?? 0) > 0 ? 1 : 0
      if (!process.crashed && process.libraryTimers > marks + sweeps)
        judge.accuse('timer left', `${process.label}: ${process.libraryTimers}`)
    }
    for (const actor of judge.actors) {
      const listening = actor.signals.reduce((sum, signal) => sum + getEventListeners(signal, 'abort').length, 0)
      if (!actor.process.crashed && listening > 0) judge.accuse('listener left', `${actor.label}: ${listening}`)
    }
    return this.#closeAll()
  }

  #closeAll(): boolean {
    let open = 0
    for (const actor of this.#judge.actors) {
      if (actor.process.crashed) continue
      open++
      actor.process.deliver(this.#sim.now, 'timer', () => {
        actor.closing = true
        const { distributed } = actor as { distributed?: { close?: () => Promise<void> } }
        const closing = [actor.locks.close({ grace: 0 }), distributed?.close?.()]
        void Promise.all(closing).then(() => open--)
      })
    }
    if (!this.#sim.run(this.#sim.now + CLOSE_MS, MOST_EVENTS)) return false
    if (open > 0) this.#judge.accuse('never closes', `${open} instances`)
    for (const connection of this.#connections) {
      const { process, openSubscriptions, listeners } = connection
      if (process.crashed) continue
      if (openSubscriptions > 0) this.#judge.accuse('subscription left after close', process.label)
      if (listeners > 0) this.#judge.accuse('listener left after close', process.label)
    }
    return true
  }

  #lookForLeases(): void {
    const keys = this.#local?.keys ?? this.#server.keys
    const store = this.#local?.real ?? this.#server.store
    this.#sim.probe(() => {
      for (const key of keys) {
        if (/^(once|run-once|schedule)/.test(key)) continue
        const { holders, waiters } = store.inspect(key)
        if (holders.length > 0) this.#judge.accuse('lease left', `${key}: ${holders.map(({ owner }) => owner).join()}`)
        if (waiters.length > 0) this.#judge.accuse('queue entry left', `${key}: ${waiters.length}`)
      }
    })
  }

  /** What listeners were told is what callers were told. */
  #compareEvents(): void {
    for (const actor of this.#judge.actors) {
      if (actor.process.crashed) continue
      const ended = new Map<string, string>()
      const timeouts = new Map<string, number>()
      for (const { event, holder, kind, name } of actor.told) {
        const id = keyOf(`${kind}:${name}`)
        if (event === 'timeout') timeouts.set(id, (timeouts.get(id) ?? 0) + 1)
        if ((event !== 'released' && event !== 'lost') || holder === undefined) continue
        const before = ended.get(holder)
        if (before) this.#judge.accuse('events', `${actor.label} ${id}: ${before}, then ${event}`)
        ended.set(holder, event)
      }
      for (const [id, count] of timeouts) {
        const told = actor.timeouts.get(id) ?? 0
        if (count > told && !id.startsWith('schedule')) {
          this.#judge.accuse('timeout event', `${actor.label} ${id}: ${count} events, ${told} callers were told so`)
        }
      }
    }
  }
}

export function describe(op: Operation): string {
  const { id, actor: _actor, at: _at, type, name, ...options } = op
  const shown = Object.entries(options).map(
    ([option, value]) => `${option}: ${typeof value === 'object' ? JSON.stringify(value) : String(value)}`,
  )
  return `#${id} ${type} ${name} { ${shown.join(', ')} }`
}
