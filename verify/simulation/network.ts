import type { Answer, Claim, LeaseId, Store, StoreEvent, Watch } from '../../src/store.js'
import { keyOf } from './judge.js'
import { oddStore } from './odd-store.js'
import type { SimProcess } from './process.js'
import { type Faults, mix, Random } from './random.js'
import { copy, REVOCATIONS, type Server, type Subscriber } from './server.js'
import type { Shape } from './shape.js'
import type { Simulation } from './simulation.js'
import type { Outage, Weather } from './weather.js'

/** The key of a subscription to the grants of all keys. */
const GRANTS = '*grants'
/** A store tries again this often to subscribe. */
const RESUBSCRIBE_MS = 200
const REMOTE_CALLS = ['acquire', 'renew', 'release', 'holders', 'inspect', 'revoke', 'take', 'now'] as const

interface Subscription extends Watch {
  key: string
  listener: (event: StoreEvent) => void
  open: boolean
  subscriber: Subscriber | undefined
}

/** What becomes of one call. */
type Fate = 'loseRequest' | 'breakRequest' | 'loseReply' | 'breakReply' | 'slowRequest' | 'slowReply'

/** Between one process and whatever keeps its leases. */
export interface Wire {
  readonly store: Store
  readonly process: SimProcess
  readonly calls: number
  readonly openSubscriptions: number
  readonly listeners: number
  /** Every subscription to what was revoked has reached the server. */
  readonly hearsRevocations: boolean
  /** At this moment, a request for this key was on the way, or open inside the server, and has had no answer since. */
  wasAsking(key: string, at: number): boolean
  /** When all instances of the process had been closed: it has nothing to ask any more. */
  closedAt: number
  /** What it asked for all the same, or released only then. */
  readonly lateCalls: readonly { call: string; owner: string }[]
  /** The last request for this key that has come to an end failed. On a store that keeps requests open, the next may take long. */
  hasFailed(key: string): boolean
  clearUp(): void
  roughen(): void
}

/** Between one process and the server. */
export class Connection implements Wire {
  readonly store: Store
  readonly subscriptions: Set<Subscription> = new Set()
  readonly process: SimProcess
  calls = 0
  closedAt: number = Number.POSITIVE_INFINITY
  readonly lateCalls: { call: string; owner: string }[] = []
  /** Owners whose requests were so slow that they were granted only when the process was closed, or whose release failed: `close` tries once. */
  readonly #excused = new Set<string>()
  readonly #sim: Simulation
  readonly #server: Server
  readonly #shape: Shape
  readonly #weather: Weather
  readonly #faults: Faults
  readonly #pushFaults: Faults
  readonly #random: Random
  readonly #doubters = new Set<() => void>()
  /** Pushes arrive. */
  #live = true
  #requestsUntil = 0
  #repliesUntil = 0
  #pushesUntil = 0
  #clear = false
  /** Claims that were sent and not answered, until the core gives them up. */
  readonly #asking = new Set<{ key: string; from: number; until: number }>()
  /** Keys whose last request failed or was lost, on a store that keeps requests open. */
  readonly #failed = new Set<string>()
  /** Of all rounds so far. */
  readonly #outages: Outage[] = []

  constructor(
    parts: { sim: Simulation; server: Server; shape: Shape; weather: Weather },
    process: SimProcess,
    index: number,
    seed: number,
  ) {
    this.#sim = parts.sim
    this.#server = parts.server
    this.#shape = parts.shape
    this.#weather = parts.weather
    this.process = process
    this.#faults = this.#sim.faults(`${process.label}.call`, mix(seed, 401 + index))
    this.#pushFaults = this.#sim.faults(`${process.label}.push`, mix(seed, 501 + index))
    this.#random = new Random(mix(seed, 601 + index))
    const store = this.#build()
    const mistakes = this.#sim.faults(`${process.label}.mistake`, mix(seed, 701 + index))
    this.store = this.#shape.odd && !this.#weather.calm ? oddStore(store, mistakes, process) : store
    this.#server.grantChannels.set(process, (key, event) => this.#push(() => this.#hearGrant(key, event), event))
  }

  get openSubscriptions(): number {
    return this.subscriptions.size
  }

  get listeners(): number {
    return this.#doubters.size
  }

  get hearsRevocations(): boolean {
    // None at all: the odd store may have refused it, and then only the next heartbeat tells.
    const watches = [...this.subscriptions].filter(({ key }) => key === REVOCATIONS)
    return watches.length > 0 && watches.every((each) => each.live())
  }

  hasFailed(key: string): boolean {
    return this.#failed.has(key)
  }

  wasAsking(key: string, at: number): boolean {
    return [...this.#asking].some((each) => each.key === key && each.from <= at && at <= each.until)
  }

  clearUp(): void {
    this.#clear = true
  }

  /** The next round begins. */
  roughen(): void {
    this.#clear = false
    for (const outage of this.#weather.outages) {
      const { now } = this.#sim
      const moved = { ...outage, from: now + outage.from, to: now + outage.to }
      this.#outages.push(moved)
      this.#sim.plan(moved.from, () => this.#suffer(moved))
    }
  }

  #build(): Store {
    const shape = this.#shape
    const server = this.#server.store
    const features = { ...server.features, counting: shape.counting, atomic: shape.atomic, queue: shape.queue }
    const store: Record<string, unknown> = {
      name: 'simulated',
      expiry: 'timed',
      features,
      timeoutMs: shape.timeoutMs,
      maxBatch: shape.maxBatch,
      blocks: shape.blocks,
      onPossibleLoss: this.#onPossibleLoss,
      close: async () => {},
    }
    for (const method of REMOTE_CALLS) {
      if (method in server) store[method] = (...args: unknown[]) => this.#call(method, args)
    }
    if (shape.watches) {
      store['watch'] = (key: string, listener: (event: StoreEvent) => void) => this.#watch(key, listener)
      if (shape.watchesHeld) {
        store['watchRevoked'] = (listener: (lease: LeaseId) => void) =>
          this.#watch(REVOCATIONS, (event) => listener(event as unknown as LeaseId))
      }
      if (shape.allGrants) {
        store['watchGrants'] = (listener: (key: string, event: StoreEvent) => void) =>
          this.#watch(GRANTS, (pushed) => listener(...(pushed as unknown as [string, StoreEvent])))
      }
    }
    return store as unknown as Store
  }

  readonly #onPossibleLoss = (listener: () => void): (() => void) => {
    this.#doubters.add(listener)
    return () => this.#doubters.delete(listener)
  }

  #call(method: (typeof REMOTE_CALLS)[number], args: unknown[]): Promise<unknown> {
    const sim = this.#sim
    const { process } = this
    const call = `${method} #${++this.calls}`
    const sent = copy(args)
    const sentAt = process.local
    const late = process.local >= this.closedAt
    const w = this.#weather
    const strike = this.#faults.draw<Fate>([
      ['loseRequest', w.loseRequest],
      ['breakRequest', w.breakRequest],
      ['loseReply', w.loseReply],
      ['breakReply', w.breakReply],
      ['slowRequest', w.slowRequest],
      ['slowReply', w.slowReply],
    ])
    const fate = strike?.kind
    const slow = strike ? strike.random.spread(...w.slowMs) : 0
    if (strike) process.disturbances.push({ from: process.local, to: process.local + slow })
    if (sim.trace)
      sim.note(process, `→ ${call} ${describe(sent)}${strike ? ` [${strike.id} ${Math.round(slow)} ms]` : ''}`)
    if (this.#shape.atOnce && process.local <= sim.now && !strike && !this.#outage()) {
      const answer = this.#server.handle(process, method, sent)
      if (sim.trace) sim.note(process, `← ${call}: ${describe(answer)}`)
      return Promise.resolve(answer)
    }
    const answered = this.#track(method, sent)
    // The core learns of a call that gets no answer when it gives it up.
    const lose = (): void => {
      process.disturbances.push({ from: sentAt, to: sentAt + this.#shape.timeoutMs + openMs(method, sent) })
      this.#note(method, sent, true)
    }
    return new Promise((resolve, reject) => {
      const fail = (at: number): void =>
        this.#receive(at, () => {
          if (sim.trace) sim.note(process, `✗ ${call}`)
          process.disturbances.push({ from: sentAt, to: process.local })
          this.#note(method, sent, true)
          answered()
          reject(new Error('connection reset'))
        })
      const arrives = this.#inOrder('request', process.local + this.#latency() + (fate === 'slowRequest' ? slow : 0))
      // What waits behind a slow call on the same connection is late too.
      if (arrives > process.local + w.latency[1]) process.disturbances.push({ from: process.local, to: arrives })
      if (fate === 'loseRequest') return lose()
      if (fate === 'breakRequest') return fail(process.local + this.#latency() + slow / 10)
      sim.plan(arrives, () => {
        const outage = this.#outage()
        if (outage) {
          if (outage.how === 'refused') fail(sim.now + this.#latency())
          else lose()
          return
        }
        if (fate === 'loseReply' && method === 'acquire' && sim.now > sentAt + this.#shape.timeoutMs) {
          for (const { owner } of sent[0] as Claim[]) this.#server.unheard.add(owner)
        }
        this.#serve(method, sent, (answer) => {
          if (late) this.#noteLate(method, sent, answer)
          else if (method === 'acquire' && sim.now >= this.closedAt)
            for (const { owner } of sent[0] as Claim[]) this.#excused.add(owner)
          if (sim.trace) sim.note(undefined, `${process.label} ${call}: ${describe(answer)}`)
          if (fate === 'loseReply') return lose()
          const back = this.#inOrder('reply', sim.now + this.#latency() + (fate === 'slowReply' ? slow : 0))
          if (back > sim.now + w.latency[1]) process.disturbances.push({ from: sim.now, to: back })
          if (fate === 'breakReply') return fail(back)
          this.#receive(back, () => {
            if (sim.trace) sim.note(process, `← ${call}: ${describe(answer)}`)
            this.#note(method, sent, false)
            answered()
            resolve(answer)
          })
        })
      })
    })
  }

  /** A release that finds nothing, or that is about what was lost, takes nothing from anybody. */
  #noteLate(method: string, sent: unknown[], answer: unknown): void {
    if (!Array.isArray(sent[0])) return
    for (const [i, { owner }] of (sent[0] as LeaseId[]).entries()) {
      const released = (answer as { outcome?: string }[])[i]?.outcome
      if (method === 'release' && (released !== 'released' || this.#excused.has(owner))) continue
      this.lateCalls.push({ call: method, owner })
    }
  }

  #note(method: string, sent: unknown[], failed: boolean): void {
    if (method === 'release' && failed) for (const { owner } of sent[0] as LeaseId[]) this.#excused.add(owner)
    if (method !== 'acquire' || !this.#shape.blocks) return
    for (const { key } of sent[0] as Claim[]) {
      if (failed) this.#failed.add(keyOf(key))
      else this.#failed.delete(keyOf(key))
    }
  }

  /** Returns what to call when the answer arrives. */
  #track(method: string, sent: unknown[]): () => void {
    if (method !== 'acquire' || !this.#shape.blocks) return () => {}
    const tracked = (sent[0] as Claim[]).map(({ key, blockMs = 0 }) => {
      const from = this.process.local
      return { key: keyOf(key), from, until: from + this.#shape.timeoutMs + blockMs }
    })
    for (const each of tracked) this.#asking.add(each)
    return () => {
      for (const each of tracked) this.#asking.delete(each)
    }
  }

  #serve(method: string, args: unknown[], reply: (answer: unknown) => void): void {
    const claims = args[0] as Claim[]
    if (method === 'acquire' && this.#shape.blocks && claims.length === 1 && claims[0]?.blockMs) {
      return this.#server.block(this.process, claims[0], (answer: Answer) => reply([answer]))
    }
    reply(this.#server.handle(this.process, method, args))
  }

  #receive(at: number, run: () => void, kind: 'answer' | 'push' = 'answer'): void {
    this.process.deliver(at, kind, run)
  }

  #latency(): number {
    return this.#random.between(...(this.#clear ? ([0.1, 0.9] as const) : this.#weather.latency))
  }

  #inOrder(way: 'request' | 'reply' | 'push', at: number): number {
    if (!this.#shape.ordered) return at
    if (way === 'request') return (this.#requestsUntil = Math.max(this.#requestsUntil, at))
    if (way === 'reply') return (this.#repliesUntil = Math.max(this.#repliesUntil, at))
    return (this.#pushesUntil = Math.max(this.#pushesUntil, at))
  }

  #outage(): Outage | undefined {
    const { now } = this.#sim
    return this.#outages.find(({ from, to }) => from <= now && now < to)
  }

  #watch(key: string, listener: (event: StoreEvent) => void): Watch {
    const { subscriptions } = this
    const known = [...subscriptions].some((each) => each.key === key && each.live())
    const subscription: Subscription = {
      key,
      listener,
      open: true,
      subscriber: undefined,
      ready: false,
      live: () => this.#live && subscription.subscriber !== undefined,
      close: () => {
        subscription.open = false
        subscriptions.delete(subscription)
        if (subscription.subscriber) this.#server.subscribers.delete(subscription.subscriber)
        if (this.#sim.trace) this.#sim.note(this.process, `unsubscribes from ${key}`)
      },
    }
    subscriptions.add(subscription)
    if (this.#sim.trace) this.#sim.note(this.process, `subscribes to ${key}`)
    if (known && this.#live) {
      this.#register(subscription)
      subscription.ready = true
    } else subscription.ready = this.#subscribe(subscription)
    return subscription
  }

  #register(subscription: Subscription): void {
    if (!subscription.open || this.process.crashed) return
    const { key, listener } = subscription
    // Subscribed anew after an outage and by its own retry, it is known to the server once.
    if (subscription.subscriber) this.#server.subscribers.delete(subscription.subscriber)
    const push = (event: StoreEvent): void => this.#push(() => subscription.open && listener(event), event)
    subscription.subscriber = { process: this.process, key, push }
    this.#server.subscribers.add(subscription.subscriber)
  }

  /** Settles when the server has the subscription, or with false when that failed: then it is tried again. */
  #subscribe(subscription: Subscription): Promise<boolean> {
    const w = this.#weather
    const strike = this.#faults.draw([['lose', w.loseRequest + w.breakRequest]])
    return new Promise((resolve) => {
      this.#sim.plan(this.process.local + this.#latency(), () => {
        const fails = strike !== undefined || this.#outage() !== undefined
        if (fails) this.#sim.plan(this.#sim.now + RESUBSCRIBE_MS, () => this.#resubscribe(subscription))
        else this.#register(subscription)
        this.#receive(this.#sim.now + this.#latency(), () => resolve(!fails))
      })
    })
  }

  #resubscribe(subscription: Subscription): void {
    if (!subscription.open || this.process.crashed || subscription.subscriber) return
    if (this.#outage()) this.#sim.plan(this.#sim.now + RESUBSCRIBE_MS, () => this.#resubscribe(subscription))
    else this.#register(subscription)
  }

  #hearGrant(key: string, event: StoreEvent): void {
    for (const each of [...this.subscriptions]) {
      if (!each.open || !each.subscriber) continue
      if (each.key === key) each.listener({ ...event })
      else if (each.key === GRANTS) each.listener([key, { ...event }] as unknown as StoreEvent)
    }
  }

  #push(hear: () => void, event: StoreEvent): void {
    const sim = this.#sim
    const { process } = this
    if (!this.#live || process.crashed) return
    const w = this.#weather
    const strike = this.#pushFaults.draw([
      ['lose', w.losePush],
      ['late', w.latePush],
      ['double', w.doublePush],
    ])
    const text = sim.trace ? `push ${describe(event)}` : ''
    if (sim.trace) sim.note(undefined, `${text} to ${process.label}${strike ? ` [${strike.id}]` : ''}`)
    if (strike) process.disturbances.push({ from: sim.now, to: sim.now + w.slowMs[1] })
    if (strike?.kind === 'lose') return
    const delay = strike ? strike.random.spread(...w.slowMs) : 0
    const arrive = (at: number): void =>
      this.#receive(
        at,
        () => {
          if (sim.trace) sim.note(process, `⇠ ${text}`)
          hear()
        },
        'push',
      )
    if (strike?.kind === 'late') arrive(this.#inOrder('push', sim.now + this.#latency() + delay))
    else arrive(this.#inOrder('push', sim.now + this.#latency()))
    if (strike?.kind === 'double') arrive(sim.now + this.#latency() + delay)
  }

  /** Nothing is pushed during an outage. Afterwards the store subscribes anew and says that leases may be lost. */
  #suffer({ from, to, restart }: Outage): void {
    const sim = this.#sim
    this.process.disturbances.push({ from, to })
    this.#live = false
    sim.note(undefined, `is out for ${Math.round(to - from)} ms`)
    sim.plan(to, () => {
      if (restart && this.#server.openRequests + this.#server.subscribers.size > 0) this.#server.restart()
    })
    this.#receive(to + this.#latency() * 2, () => {
      for (const subscription of this.subscriptions) {
        const { subscriber } = subscription
        if (!subscriber || !this.#server.subscribers.has(subscriber)) this.#register(subscription)
      }
      this.#live = true
      for (const listener of [...this.#doubters]) listener()
    })
  }
}

function describe(value: unknown): string {
  if (Array.isArray(value)) return value.map(describe).join(' ')
  if (typeof value === 'string') return value
  if (typeof value !== 'object' || value === null) return String(value)
  const shown = Object.entries(value).filter(([, each]) => each !== undefined && each !== 2_147_483_647)
  return `{${shown.map(([name, each]) => `${name}: ${name === 'token' ? shortToken(each as bigint) : describe(each)}`).join(', ')}}`
}

function shortToken(token: bigint): string {
  return `…${String(token).slice(-8)}`
}

/** How long the server may keep this call open. */
function openMs(method: string, sent: unknown[]): number {
  if (method !== 'acquire') return 0
  return Math.max(...(sent[0] as Claim[]).map(({ blockMs = 0 }) => blockMs))
}
