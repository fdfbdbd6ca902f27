import type { Answer, Claim, Lease, Store, StoreEvent, Watch } from '../../src/store.js'
import type { SimProcess } from './process.js'
import { type Faults, mix, Random } from './random.js'
import { copy, REVOCATIONS, type Server, type Subscriber } from './server.js'
import type { Shape } from './shape.js'
import type { Simulation } from './simulation.js'
import type { Outage, Weather } from './weather.js'

/** A store tries again this often to subscribe. */
const RESUBSCRIBE_MS = 200
const REMOTE_CALLS = ['acquire', 'renew', 'release', 'holders', 'inspect', 'revoke', 'take', 'now'] as const

interface Subscription extends Watch {
  key: string
  listener: (event: StoreEvent) => void
  open: boolean
  local: boolean
  subscriber: Subscriber | undefined
}

/** What becomes of one call. */
type Fate = 'loseRequest' | 'breakRequest' | 'loseReply' | 'breakReply' | 'slowRequest' | 'slowReply'

/** Between one process and the server. */
export class Connection {
  readonly store: Store
  readonly subscriptions: Set<Subscription> = new Set()
  readonly process: SimProcess
  calls = 0
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
    this.store = this.#build()
    this.#server.grantChannels.set(process, (key, event) => this.#push(() => this.#hearGrant(key, event), event))
    for (const outage of this.#weather.outages) this.#sim.plan(outage.from, () => this.#suffer(outage))
  }

  get openSubscriptions(): number {
    return this.subscriptions.size
  }

  get listeners(): number {
    return this.#doubters.size
  }

  clearUp(): void {
    this.#clear = true
  }

  #build(): Store {
    const shape = this.#shape
    const server = this.#server.store
    const features = { ...server.features, counting: shape.counting, atomic: shape.atomic } as Record<string, boolean>
    for (const word of ['line', 'queue']) if (word in features) features[word] = shape.queue
    const store: Record<string, unknown> = {
      name: 'simulated',
      expiry: 'timed',
      features,
      timeoutMs: shape.timeoutMs,
      maxBatch: shape.maxBatch,
      blocks: shape.blocks,
      onDoubt: this.#onDoubt,
      onPossibleLoss: this.#onDoubt,
      close: async () => {},
    }
    for (const method of REMOTE_CALLS) {
      if (method in server) store[method] = (...args: unknown[]) => this.#call(method, args)
    }
    if (shape.watches) {
      store['watch'] = (key: string, listener: (event: StoreEvent) => void, only?: 'granted') =>
        this.#watch(key, listener, only === 'granted')
      if (shape.watchesHeld) {
        store['watchRevoked'] = (listener: (lease: Lease) => void) =>
          this.#watch(REVOCATIONS, (event) => listener(event as unknown as Lease), false)
      }
      if (shape.allGrants) store['hearsGrants'] = store['receivesAllGrants'] = () => this.#live
    }
    return store as unknown as Store
  }

  readonly #onDoubt = (listener: () => void): (() => void) => {
    this.#doubters.add(listener)
    return () => this.#doubters.delete(listener)
  }

  #call(method: (typeof REMOTE_CALLS)[number], args: unknown[]): Promise<unknown> {
    const sim = this.#sim
    const { process } = this
    const call = `${method} #${++this.calls}`
    const sent = copy(args)
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
    sim.trace &&
      sim.note(process, `→ ${call} ${describe(sent)}${strike ? ` [${strike.id} ${Math.round(slow)} ms]` : ''}`)
    if (this.#shape.atOnce && process.local <= sim.now && !strike && !this.#outage()) {
      const answer = this.#server.handle(process, method, sent)
      sim.trace && sim.note(process, `← ${call}: ${describe(answer)}`)
      return Promise.resolve(answer)
    }
    return new Promise((resolve, reject) => {
      const fail = (at: number): void =>
        this.#receive(at, () => {
          sim.trace && sim.note(process, `✗ ${call}`)
          reject(new Error('connection reset'))
        })
      const arrives = this.#inOrder('request', process.local + this.#latency() + (fate === 'slowRequest' ? slow : 0))
      // What waits behind a slow call on the same connection is late too.
      if (arrives > process.local + w.latency[1]) process.disturbances.push({ from: process.local, to: arrives })
      if (fate === 'loseRequest') return
      if (fate === 'breakRequest') return fail(process.local + this.#latency() + slow / 10)
      sim.plan(arrives, () => {
        const outage = this.#outage()
        if (outage) {
          if (outage.how === 'refused') fail(sim.now + this.#latency())
          return
        }
        this.#serve(method, sent, (answer) => {
          sim.trace && sim.note(undefined, `${process.label} ${call}: ${describe(answer)}`)
          if (fate === 'loseReply') return
          const back = this.#inOrder('reply', sim.now + this.#latency() + (fate === 'slowReply' ? slow : 0))
          if (back > sim.now + w.latency[1]) process.disturbances.push({ from: sim.now, to: back })
          if (fate === 'breakReply') return fail(back)
          this.#receive(back, () => {
            sim.trace && sim.note(process, `← ${call}: ${describe(answer)}`)
            resolve(answer)
          })
        })
      })
    })
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
    return this.#weather.outages.find(({ from, to }) => from <= now && now < to)
  }

  #watch(key: string, listener: (event: StoreEvent) => void, grantsOnly: boolean): Watch {
    const { subscriptions } = this
    const known = [...subscriptions].some((each) => each.key === key && each.live())
    const subscription: Subscription = {
      key,
      listener,
      open: true,
      subscriber: undefined,
      // Every grant is pushed anyway: nothing has to be known at the server.
      local: grantsOnly && this.#shape.allGrants,
      ready: false,
      live: () => this.#live && (subscription.local || subscription.subscriber !== undefined),
      close: () => {
        subscription.open = false
        subscriptions.delete(subscription)
        if (subscription.subscriber) this.#server.subscribers.delete(subscription.subscriber)
        this.#sim.trace && this.#sim.note(this.process, `unsubscribes from ${key}`)
      },
    }
    subscriptions.add(subscription)
    this.#sim.trace && this.#sim.note(this.process, `subscribes to ${key}`)
    if (subscription.local && this.#live) subscription.ready = true
    else if (known && this.#live) {
      this.#register(subscription)
      subscription.ready = true
    } else subscription.ready = this.#subscribe(subscription)
    return subscription
  }

  #register(subscription: Subscription): void {
    if (!subscription.open || this.process.crashed || subscription.local) return
    const { key, listener } = subscription
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
    for (const each of [...this.subscriptions]) if (each.key === key && each.open) each.listener({ ...event })
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
    sim.trace && sim.note(undefined, `${text} to ${process.label}${strike ? ` [${strike.id}]` : ''}`)
    if (strike) process.disturbances.push({ from: sim.now, to: sim.now + w.slowMs[1] })
    if (strike?.kind === 'lose') return
    const delay = strike ? strike.random.spread(...w.slowMs) : 0
    const arrive = (at: number): void =>
      this.#receive(
        at,
        () => {
          sim.trace && sim.note(process, `⇠ ${text}`)
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
