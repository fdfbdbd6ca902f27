/**
 * A store that misbehaves on demand: between the core and a real store, it loses, delays, breaks and doubles.
 *
 * @module
 */
import { type World, realWorld } from '../kit/world.js'
import type { Failure, Store, StoreEvent, Watch } from '../store.js'

/** The calls that a fault can strike. */
export type FaultyCall = 'acquire' | 'renew' | 'release' | 'take' | 'holders' | 'inspect' | 'revoke' | 'now'

/**
 * What goes wrong with a call:
 *
 * - `break-call`: rejects, and nothing was done. `break-reply`: rejects, although it was done.
 * - `lose-call`: never answers, and nothing was done. `lose-reply`: never answers, although it was done.
 * - `delay-call`: done later. `delay-reply`: done at once, answered later.
 * - `swap-call`: done only after the next call was, or after `ms` if there is none.
 * - `unknown`: nothing is done, and each item is answered `unknown`.
 *
 * And with events: `lose-event`, `double-event`, `delay-event`, `swap-event` (delivered after the next one), and
 * `deaf`: a watch opened meanwhile says that it hears nothing, and hears nothing.
 */
export type FaultEffect =
  | 'break-call'
  | 'break-reply'
  | 'lose-call'
  | 'lose-reply'
  | 'delay-call'
  | 'delay-reply'
  | 'swap-call'
  | 'unknown'
  | 'lose-event'
  | 'double-event'
  | 'delay-event'
  | 'swap-event'
  | 'deaf'

export interface Fault {
  effect: FaultEffect
  /** Which calls. Absent: acquire, renew and release. */
  on?: FaultyCall | readonly FaultyCall[]
  /** Which events. Absent: all. */
  events?: StoreEvent['type'] | readonly StoreEvent['type'][]
  /** Only calls whose items, or events which, are like this. */
  when?: (what: never) => boolean
  /** For how long a delay lasts, and at most a swap. Absent: until the fault is lifted. */
  ms?: number
  /** How often it strikes. Absent: until it is lifted. */
  times?: number
  /** How likely it strikes, 0 to 1. Absent: always. */
  chance?: number
  /** What a broken call rejects with. */
  error?: unknown
}

/** A fault at work. */
export interface Injected {
  /** How often it has struck. */
  readonly struck: number
  /** Settles when it has struck so often. */
  strikes(times?: number): Promise<void>
  /** It strikes no more, and what it delays goes on. What it lost stays lost. */
  lift(): void
}

export interface FaultyStore extends Store {
  inject(fault: Fault): Injected
  /** Tells the core that leases may have been lost without notice, as a store does after a reconnect. */
  doubt(): void
  /** Every call so far, in order: what was asked, before any fault. */
  readonly calls: readonly { call: FaultyCall; items: readonly unknown[]; at: number }[]
}

export interface FaultyOptions {
  /** How long the core waits for an answer, instead of what the store says: lost replies then cost less time in tests. */
  timeoutMs?: number
  world?: World
}

/** The same store, with faults in between. A call that no fault strikes is passed on as it is. */
export function faulty(store: Store, faults: readonly Fault[] = [], options: FaultyOptions = {}): FaultyStore {
  const saboteur = new Saboteur(options.world ?? realWorld)
  for (const fault of faults) saboteur.inject(fault)
  return wrap(store, saboteur, options.timeoutMs ?? store.timeoutMs)
}

/** Never `immediate`: a fault may make a promise of any answer. */
function wrap(store: Store, saboteur: Saboteur, timeoutMs: number): FaultyStore {
  const doubters = new Set<(affected?: (key: string) => boolean) => void>()
  return {
    name: store.name,
    expiry: store.expiry,
    features: store.features,
    timeoutMs,
    maxBatch: store.maxBatch,
    maxTtlMs: store.maxTtlMs,
    blocks: store.blocks,
    ...(store.partition && { partition: (key: string) => store.partition?.(key) as string | number }),
    acquire: (claims, how) => saboteur.call('acquire', claims, () => store.acquire(claims, how)),
    renew: (renewals) => saboteur.call('renew', renewals, () => store.renew(renewals)),
    release: (leases) => saboteur.call('release', leases, () => store.release(leases)),
    ...(store.watch && { watch: (key, listener) => saboteur.watch(store, key, listener) }),
    ...(store.watchRevoked && { watchRevoked: (listener) => store.watchRevoked?.(listener) as Watch }),
    onDoubt(listener) {
      doubters.add(listener)
      const stop = store.onDoubt?.(listener)
      return () => {
        doubters.delete(listener)
        stop?.()
      }
    },
    ...looks(store, saboteur),
    close: () => store.close(),
    inject: (fault) => saboteur.inject(fault),
    doubt: () => {
      for (const listener of [...doubters]) listener()
    },
    calls: saboteur.calls,
  }
}

/** The optional methods: those that are there stay there, the others stay missing. */
function looks(store: Store, saboteur: Saboteur): Partial<Store> {
  const { holders, inspect, revoke, take, now } = store
  return {
    ...(holders && { holders: (prefix) => saboteur.call('holders', [prefix], () => holders.call(store, prefix)) }),
    ...(inspect && { inspect: (key) => saboteur.call('inspect', [key], () => inspect.call(store, key)) }),
    ...(revoke && { revoke: (key) => saboteur.call('revoke', [key], () => revoke.call(store, key)) }),
    ...(take && { take: (requests) => saboteur.call('take', requests, () => take.call(store, requests)) }),
    ...(now && { now: () => saboteur.call('now', [], () => now.call(store)) }),
  }
}

/** One fault, how often it struck, and who waits for it. */
class Agent implements Injected {
  readonly fault: Fault
  struck = 0
  lifted = false
  #held = new Set<() => void>()
  #witnesses: { times: number; tell: () => void }[] = []

  constructor(fault: Fault) {
    this.fault = fault
  }

  strikes(times = 1): Promise<void> {
    if (this.struck >= times) return Promise.resolve()
    return new Promise((tell) => this.#witnesses.push({ times, tell }))
  }

  lift(): void {
    this.lifted = true
    for (const go of this.#held) go()
  }

  strike(): void {
    this.struck++
    for (const { times, tell } of this.#witnesses) if (this.struck >= times) tell()
  }

  /** Until the time has passed or the fault is lifted. */
  pause(world: World): Promise<void> {
    if (this.lifted) return Promise.resolve()
    return new Promise((resolve) => {
      const go = (): void => {
        this.#held.delete(go)
        resolve()
      }
      this.#held.add(go)
      if (this.fault.ms !== undefined) world.after(this.fault.ms, go)
    })
  }

  /** Called before others go on, so that what was swapped comes after them. */
  whenLifted(go: () => void): void {
    if (this.lifted) go()
    else this.#held.add(go)
  }
}

const CALLS_BY_DEFAULT: readonly string[] = ['acquire', 'renew', 'release']

class Saboteur {
  readonly calls: { call: FaultyCall; items: readonly unknown[]; at: number }[] = []
  readonly #world: World
  #agents: Agent[] = []
  /** Calls that wait until another was done. */
  #swapped: (() => void)[] = []

  constructor(world: World) {
    this.#world = world
  }

  inject(fault: Fault): Injected {
    const agent = new Agent(fault)
    this.#agents.push(agent)
    return agent
  }

  call<T>(call: FaultyCall, items: readonly unknown[], run: () => T | Promise<T>): T | Promise<T> {
    this.calls.push({ call, items, at: this.#world.now() })
    const agent = this.#agentFor((fault) => strikesCall(fault, call, items))
    return agent ? this.#sabotage(agent, items, run) : this.#done(run())
  }

  async #sabotage<T>(agent: Agent, items: readonly unknown[], run: () => T | Promise<T>): Promise<T> {
    const { effect, error = new Error(`injected fault: ${agent.fault.effect}`) } = agent.fault
    const never = (): Promise<never> => new Promise(() => {})
    if (effect === 'break-call') throw error
    if (effect === 'lose-call') return never()
    if (effect === 'unknown') return items.map(() => unknownAnswer(error)) as T
    if (effect === 'delay-call') await agent.pause(this.#world)
    if (effect === 'swap-call') await this.#afterTheNext(agent)
    const answer = await this.#done(run())
    if (effect === 'break-reply') throw error
    if (effect === 'lose-reply') return never()
    if (effect === 'delay-reply') await agent.pause(this.#world)
    return answer
  }

  #done<T>(answer: T | Promise<T>): T | Promise<T> {
    if (this.#swapped.length === 0) return answer
    const waiting = this.#swapped
    this.#swapped = []
    const goOn = async (): Promise<void> => {
      await Promise.resolve(answer).catch(() => undefined)
      for (const go of waiting) go()
    }
    void goOn()
    return answer
  }

  #afterTheNext(agent: Agent): Promise<void> {
    return new Promise((resolve) => {
      this.#swapped.push(resolve)
      agent.whenLifted(resolve)
      if (agent.fault.ms !== undefined) this.#world.after(agent.fault.ms, resolve)
    })
  }

  watch(store: Store, key: string, listener: (event: StoreEvent) => void): Watch {
    if (this.#agentFor(({ effect }) => effect === 'deaf')) return { ready: false, live: () => false, close: () => {} }
    let kept: StoreEvent | undefined
    const deliver = (event: StoreEvent): void => {
      listener(event)
      const late = kept
      kept = undefined
      if (late) listener(late)
    }
    const hear = (event: StoreEvent): void => {
      const agent = this.#agentFor((fault) => strikesEvent(fault, event))
      const effect = agent?.fault.effect
      if (effect === 'lose-event') return
      if (effect === 'delay-event') return void agent?.pause(this.#world).then(() => deliver(event))
      if (effect === 'swap-event' && !kept) return void (kept = event)
      deliver(event)
      if (effect === 'double-event') deliver(event)
    }
    return (store.watch as NonNullable<Store['watch']>).call(store, key, hear)
  }

  #agentFor(strikes: (fault: Fault) => boolean): Agent | undefined {
    const agent = this.#agents.find(({ fault, lifted, struck }) => {
      if (lifted || struck >= (fault.times ?? Number.POSITIVE_INFINITY) || !strikes(fault)) return false
      return fault.chance === undefined || this.#world.random() < fault.chance
    })
    agent?.strike()
    return agent
  }
}

function strikesCall(fault: Fault, call: FaultyCall, items: readonly unknown[]): boolean {
  if (fault.effect.endsWith('-event') || fault.effect === 'deaf') return false
  const on: readonly string[] = fault.on === undefined ? CALLS_BY_DEFAULT : [fault.on].flat()
  return on.includes(call) && (fault.when?.(items as never) ?? true)
}

function strikesEvent(fault: Fault, event: StoreEvent): boolean {
  if (!fault.effect.endsWith('-event')) return false
  const types: readonly string[] = fault.events === undefined ? [event.type] : [fault.events].flat()
  return types.includes(event.type) && (fault.when?.(event as never) ?? true)
}

/** The shape that acquire, take, renew and release all use for an item that could not be decided. */
function unknownAnswer(error: unknown): Failure & { outcome: 'unknown' } {
  return { granted: 'unknown', outcome: 'unknown', error }
}
