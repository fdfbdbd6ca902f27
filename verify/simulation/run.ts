import { inspect } from 'node:util'
import { realWorld } from '../../src/util/world.js'
import { Locks } from '../../src/locks.js'
import { Actor, type Operation } from './actor.js'
import * as chaos from './chaos.js'
import { Judge, keyOf, type Violation } from './judge.js'
import { Leftovers } from './leftovers.js'
import { LocalStore } from './local-store.js'
import { Connection, type Wire } from './network.js'
import * as operations from './operations.js'
import * as leading from './operations-lead.js'
import * as running from './operations-runs.js'
import * as web from './operations-web.js'
import type { Plan } from './plan.js'
import { EPOCH, SimProcess } from './process.js'
import { mix, Random } from './random.js'
import { RedlockCluster } from './redlock-cluster.js'
import { RedlockWire } from './redlock-wire.js'
import { Server } from './server.js'
import { Simulation, type TraceLine } from './simulation.js'

export interface Outcome {
  violations: Violation[]
  events: number
  grants: number
  refusals: number
  passedOn: number
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
/** The end of the rest: nobody has anything to say to the store any more. */
const SILENT_MS = 30_000
const CLOSE_MS = 30_000
/** A schedule that needs more has a loop in it. */
const MOST_EVENTS = 60_000

let judging: { judge: Judge; sim: Simulation; plan: Plan } | undefined

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
    judging.judge.accuse('unhandled rejection', inspect(error))
  })
  process.on('warning', (warning) => {
    // A mistake of the store becomes a warning.
    if (judging?.plan.shape.odd) return
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
  judging = { judge, sim, plan }
  const stage = new Stage(plan, sim, judge)
  try {
    stage.play()
  } finally {
    judging = undefined
  }
  const { violations, grants, refusals, passedOn } = judge
  const actors = judge.actors.map(({ label }) => label)
  const names = new Map(judge.actors.map((actor) => [actor.locks.clientId, actor.label]))
  for (const { distributed, label } of judge.actors) if (distributed) names.set(distributed.holderId, `${label}D`)
  return {
    violations,
    events: sim.events,
    grants,
    refusals,
    passedOn,
    struck: sim.struck,
    trace: sim.trace,
    names,
    actors,
  }
}

class Stage {
  readonly #plan: Plan
  readonly #sim: Simulation
  readonly #judge: Judge
  readonly #processes: SimProcess[]
  readonly #connections: Wire[] = []
  readonly #server: Server
  readonly #cluster: RedlockCluster | undefined
  #local: LocalStore | undefined
  readonly #running = new Set<Operation>()

  constructor(plan: Plan, sim: Simulation, judge: Judge) {
    this.#plan = plan
    this.#sim = sim
    this.#judge = judge
    const { shape, weather, seed } = plan
    const rate = weather.drift ? new Random(mix(seed, 5)).between(0.996, 1.004) : 1
    this.#server = new Server(sim, shape, judge, rate)
    if (shape.redlock) this.#cluster = new RedlockCluster(sim, weather, judge, seed)
    const count = Math.max(...plan.actors) + 1
    this.#processes = Array.from({ length: count }, (_, i) => new SimProcess(sim, i, seed, weather))
    for (const process of this.#processes) sim.enter(process, () => this.#populate(process))
  }

  #populate(process: SimProcess): void {
    const { shape, weather, seed, actors } = this.#plan
    const index = this.#processes.indexOf(process)
    const parts = { sim: this.#sim, judge: this.#judge, server: this.#server, shape, weather }
    let connection: Wire | undefined
    if (this.#cluster) connection = new RedlockWire(parts, this.#cluster, process, index, seed)
    else if (shape.inProcess) this.#local = new LocalStore(process, this.#judge)
    else connection = new Connection(parts, process, index, seed)
    if (connection) this.#connections.push(connection)
    const store = connection?.store ?? (this.#local as LocalStore).store
    for (const [i, home] of actors.entries()) {
      if (home !== index) continue
      const locks = new Locks(store, {}, process.world)
      const label = actors.filter((each) => each === home).length > 1 ? `${process.label}.${i + 1}` : process.label
      this.#judge.actors[i] = new Actor(parts, process, locks, { connection, store }, label)
    }
  }

  play(): void {
    const { rounds } = this.#plan
    const { judge, sim } = { judge: this.#judge, sim: this.#sim }
    const parts = { sim, judge, plan: this.#plan, server: this.#cluster ?? this.#server, local: this.#local }
    const leftovers = new Leftovers({ ...parts, connections: this.#connections, processes: this.#processes })
    for (let round = 1; round <= rounds; round++) {
      if (!this.#playRound(leftovers)) return judge.accuse('storm', `more than ${MOST_EVENTS} events`)
      if (rounds > 1) leftovers.compareRounds()
    }
    this.#judgeAll()
    if (!this.#closeAll()) judge.accuse('storm', `more than ${MOST_EVENTS} events after closing`)
  }

  /** Everything that is planned, then a rest in which nothing goes wrong: nothing is left of it. */
  #playRound(leftovers: Leftovers): boolean {
    const { operations: planned, lastsMs } = this.#plan
    const sim = this.#sim
    const began = sim.now
    const most = sim.events + MOST_EVENTS
    sim.roughen()
    this.#cluster?.roughen()
    for (const connection of this.#connections) connection.roughen()
    for (const op of planned) {
      const actor = this.#judge.actors[op.actor] as Actor
      actor.process.deliver(began + op.at, 'timer', () => this.#start(actor, op))
    }
    if (!sim.run(began + lastsMs, most)) return false
    this.#clearUp()
    leftovers.watchStrays()
    if (!sim.run(began + lastsMs + REST_MS - SILENT_MS, most)) return false
    const calls = this.#connections.map((connection) => connection.calls)
    if (!sim.run(began + lastsMs + REST_MS, most)) return false
    for (const [i, { process, calls: now }] of this.#connections.entries()) {
      const sent = now - (calls[i] as number)
      if (!process.crashed && sent > 0) this.#judge.accuse('talks at rest', `${process.label}: ${sent} calls`)
    }
    this.#lookForPending()
    leftovers.check()
    return true
  }

  #start(actor: Actor, op: Operation): void {
    if (actor.sim.trace) actor.note(`${actor.label} begins ${describe(op)}`)
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

  #lookForPending(): void {
    const judge = this.#judge
    for (const op of this.#running) {
      const actor = judge.actors[op.actor] as Actor
      if (!actor.process.crashed) judge.accuse('never settles', `${actor.label} ${describe(op)}`)
    }
    this.#running.clear()
  }

  /** What can only be judged when all is known. */
  #judgeAll(): void {
    const judge = this.#judge
    this.#compareEvents()
    this.#lookForLateCalls()
    if (!judge.actors.some(({ process }) => process.crashed)) judge.ticks.finish(EPOCH + this.#plan.lastsMs - 10)
    const { shape, weather } = this.#plan
    if (weather.calm && shape.queue) judge.compareTurns(weather.latency[1] * 4)
  }

  /** Users close their client when `close` has settled: what is not released by then stays busy for its ttl. */
  #lookForLateCalls(): void {
    // Its mistakes keep releases from being made.
    if (this.#plan.shape.odd) return
    for (const { process, lateCalls } of this.#connections) {
      const ofProcess = this.#judge.actors.filter((actor) => actor.process === process)
      const isLost = (owner: string): boolean =>
        ofProcess.some(({ heard }) => heard.some(({ event, holder }) => event === 'lost' && holder === owner))
      for (const { call, owner } of lateCalls)
        if (!isLost(owner)) this.#judge.accuse('late for close', `${process.label}: ${call} ${owner}`)
    }
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

  /** Events and the results of callers agree. */
  #compareEvents(): void {
    for (const actor of this.#judge.actors) {
      if (actor.process.crashed) continue
      const ended = new Map<string, string>()
      const timeouts = new Map<string, number>()
      for (const { event, holder, kind, name } of actor.heard) {
        const id = keyOf(`${kind}:${name}`)
        if (event === 'timeout') timeouts.set(id, (timeouts.get(id) ?? 0) + 1)
        if ((event !== 'released' && event !== 'lost') || holder === undefined) continue
        const before = ended.get(holder)
        if (before) this.#judge.accuse('events', `${actor.label} ${id}: ${before}, then ${event}`)
        ended.set(holder, event)
      }
      for (const [id, count] of timeouts) {
        const rejected = actor.timeouts.get(id) ?? 0
        if (count > rejected && !id.startsWith('schedule')) {
          this.#judge.accuse(
            'timeout event',
            `${actor.label} ${id}: ${count} events, ${rejected} callers were rejected`,
          )
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
