/**
 * A store that misbehaves on demand: between the core and a real store it loses, delays, breaks and duplicates.
 *
 * @module
 */
import { type World, realWorld } from '../util/world.js'
import type { Failure, Store, StoreEvent, Watch } from '../store.js'

/** The calls that a fault can affect. */
export type FaultyCall = 'acquire' | 'renew' | 'release' | 'take' | 'holders' | 'inspect' | 'revoke' | 'now'

/**
 * What goes wrong with a call:
 *
 * - `break-call`: rejects, and nothing was done. `break-reply`: rejects, although it was done.
 * - `lose-call`: never answers, and nothing was done. `lose-reply`: never answers, although it was done.
 * - `delay-call`: done later. `delay-reply`: done at once, answered later.
 * - `swap-call`: done only after the next call, or after `ms` if there is none.
 * - `unknown`: nothing is done, and each item is answered `unknown`.
 *
 * And with events: `lose-event`, `double-event`, `delay-event`, `swap-event` (delivered after the next one), and
 * `dead-watch`: a watch opened meanwhile reports that it is not live, and delivers nothing.
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
  | 'dead-watch'

export interface Fault {
  effect: FaultEffect
  /** The calls it affects. Absent: acquire, renew and release. */
  on?: FaultyCall | readonly FaultyCall[]
  /** The events it affects. Absent: all. */
  events?: StoreEvent['type'] | readonly StoreEvent['type'][]
  /** Limits the fault to calls by their items, or to events. */
  when?: (what: never) => boolean
  /** How long a delay lasts, or a swap at most. Absent: until the fault is lifted. */
  ms?: number
  /** How many calls or events it affects. Absent: all, until it is lifted. */
  times?: number
  /** The probability of each strike, 0 to 1. Absent: 1. */
  chance?: number
  /** What a broken call rejects with. */
  error?: unknown
}

/** An active fault. */
export interface Injected {
  /** How often it has struck. */
  readonly struck: number
  /** Resolves when it has struck this many times. */
  strikes(times?: number): Promise<void>
  /** Ends the fault. What it delays continues; what it lost stays lost. */
  lift(): void
}

export interface FaultyStore extends Store {
  inject(fault: Fault): Injected
  /** Reports to the core that leases may have been lost without notice, as a store does after a reconnect. */
  reportPossibleLoss(): void
  /** Every call so far, in order, as the core sent it, before any fault. */
  readonly calls: readonly { call: FaultyCall; items: readonly unknown[]; at: number }[]
}

export interface FaultyOptions {
  /** The store's `timeoutMs` as the core sees it. A short one makes lost replies cost less time in tests. */
  timeoutMs?: number
  world?: World
}

/** Milliseconds for a store that answers at once and has no time limit of its own: what most stores have. */
const TIMEOUT_MS = 2_000

/** The same store, with faults in between. A call that no fault affects is passed on unchanged. */
export function faulty(store: Store, faults: readonly Fault[] = [], options: FaultyOptions = {}): FaultyStore {
  const injector = new FaultInjector(options.world ?? realWorld)
  for (const fault of faults) injector.inject(fault)
  // Never 0: a fault may turn any answer into a promise.
  return wrap(store, injector, options.timeoutMs ?? (store.timeoutMs || TIMEOUT_MS))
}

function wrap(store: Store, injector: FaultInjector, timeoutMs: number): FaultyStore {
  const lossListeners = new Set<(affected?: (key: string) => boolean) => void>()
  return {
    name: store.name,
    expiry: store.expiry,
    features: store.features,
    timeoutMs,
    maxBatch: store.maxBatch,
    maxTtlMs: store.maxTtlMs,
    blocks: store.blocks,
    ...(store.partition && { partition: (key: string) => store.partition?.(key) as string | number }),
    acquire: (claims, how) => injector.call('acquire', claims, () => store.acquire(claims, how)),
    renew: (renewals) => injector.call('renew', renewals, () => store.renew(renewals)),
    release: (leases) => injector.call('release', leases, () => store.release(leases)),
    ...(store.watch && { watch: (key, listener) => injector.watch(store, key, listener) }),
    ...(store.watchRevoked && { watchRevoked: (listener) => store.watchRevoked?.(listener) as Watch }),
    ...(store.idle && { idle: () => store.idle?.() }),
    ...(store.outage && { outage: () => store.outage?.() }),
    onPossibleLoss(listener) {
      lossListeners.add(listener)
      const stop = store.onPossibleLoss?.(listener)
      return () => {
        lossListeners.delete(listener)
        stop?.()
      }
    },
    ...optionalMethods(store, injector),
    close: () => store.close(),
    inject: (fault) => injector.inject(fault),
    reportPossibleLoss: () => {
      for (const listener of [...lossListeners]) listener()
    },
    calls: injector.calls,
  }
}

/** The optional methods: present ones stay present, missing ones stay missing. */
function optionalMethods(store: Store, injector: FaultInjector): Partial<Store> {
  const { holders, inspect, revoke, take, now } = store
  return {
    ...(holders && { holders: (prefix) => injector.call('holders', [prefix], () => holders.call(store, prefix)) }),
    ...(inspect && { inspect: (key) => injector.call('inspect', [key], () => inspect.call(store, key)) }),
    ...(revoke && { revoke: (key) => injector.call('revoke', [key], () => revoke.call(store, key)) }),
    ...(take && { take: (requests) => injector.call('take', requests, () => take.call(store, requests)) }),
    ...(now && { now: () => injector.call('now', [], () => now.call(store)) }),
  }
}

/** One fault, how often it struck, and the callers that wait for it to strike. */
class ActiveFault implements Injected {
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

  /** Resolves when the time has passed or the fault is lifted. */
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

  /** Called before others continue, so that a swapped call comes after them. */
  whenLifted(go: () => void): void {
    if (this.lifted) go()
    else this.#held.add(go)
  }
}

const CALLS_BY_DEFAULT: readonly string[] = ['acquire', 'renew', 'release']

class FaultInjector {
  readonly calls: { call: FaultyCall; items: readonly unknown[]; at: number }[] = []
  readonly #world: World
  #faults: ActiveFault[] = []
  /** Swapped calls that wait for another call to be done. */
  #swapped: (() => void)[] = []

  constructor(world: World) {
    this.#world = world
  }

  inject(fault: Fault): Injected {
    const active = new ActiveFault(fault)
    this.#faults.push(active)
    return active
  }

  call<T>(call: FaultyCall, items: readonly unknown[], run: () => T | Promise<T>): T | Promise<T> {
    this.calls.push({ call, items, at: this.#world.now() })
    const active = this.#faultFor((fault) => strikesCall(fault, call, items))
    return active ? this.#applyFault(active, items, run) : this.#done(run())
  }

  async #applyFault<T>(active: ActiveFault, items: readonly unknown[], run: () => T | Promise<T>): Promise<T> {
    const { effect, error = new Error(`injected fault: ${active.fault.effect}`) } = active.fault
    const never = (): Promise<never> => new Promise(() => {})
    if (effect === 'break-call') throw error
    if (effect === 'lose-call') return never()
    if (effect === 'unknown') return items.map(() => unknownAnswer(error)) as T
    if (effect === 'delay-call') await active.pause(this.#world)
    if (effect === 'swap-call') await this.#afterTheNext(active)
    const answer = await this.#done(run())
    if (effect === 'break-reply') throw error
    if (effect === 'lose-reply') return never()
    if (effect === 'delay-reply') await active.pause(this.#world)
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

  #afterTheNext(active: ActiveFault): Promise<void> {
    return new Promise((resolve) => {
      this.#swapped.push(resolve)
      active.whenLifted(resolve)
      if (active.fault.ms !== undefined) this.#world.after(active.fault.ms, resolve)
    })
  }

  watch(store: Store, key: string, listener: (event: StoreEvent) => void): Watch {
    if (this.#faultFor(({ effect }) => effect === 'dead-watch'))
      return { ready: false, live: () => false, close: () => {} }
    let kept: StoreEvent | undefined
    const deliver = (event: StoreEvent): void => {
      listener(event)
      const late = kept
      kept = undefined
      if (late) listener(late)
    }
    const hear = (event: StoreEvent): void => {
      const active = this.#faultFor((fault) => strikesEvent(fault, event))
      const effect = active?.fault.effect
      if (effect === 'lose-event') return
      if (effect === 'delay-event') return void active?.pause(this.#world).then(() => deliver(event))
      if (effect === 'swap-event' && !kept) return void (kept = event)
      deliver(event)
      if (effect === 'double-event') deliver(event)
    }
    return (store.watch as NonNullable<Store['watch']>).call(store, key, hear)
  }

  #faultFor(strikes: (fault: Fault) => boolean): ActiveFault | undefined {
    const active = this.#faults.find(({ fault, lifted, struck }) => {
      if (lifted || struck >= (fault.times ?? Number.POSITIVE_INFINITY) || !strikes(fault)) return false
      return fault.chance === undefined || this.#world.random() < fault.chance
    })
    active?.strike()
    return active
  }
}

function strikesCall(fault: Fault, call: FaultyCall, items: readonly unknown[]): boolean {
  if (fault.effect.endsWith('-event') || fault.effect === 'dead-watch') return false
  const on: readonly string[] = fault.on === undefined ? CALLS_BY_DEFAULT : [fault.on].flat()
  return on.includes(call) && (fault.when?.(items as never) ?? true)
}

function strikesEvent(fault: Fault, event: StoreEvent): boolean {
  if (!fault.effect.endsWith('-event')) return false
  const types: readonly string[] = fault.events === undefined ? [event.type] : [fault.events].flat()
  return types.includes(event.type) && (fault.when?.(event as never) ?? true)
}

/** The shape that acquire, take, renew and release share for an item that could not be decided. */
function unknownAnswer(error: unknown): Failure & { outcome: 'unknown' } {
  return { granted: 'unknown', outcome: 'unknown', error }
}
