import type { RedisSubscriber, SubscriberEvents } from '../../src/clients/redis/adapter.js'
import type { Answer, Claim, Store, Watch } from '../../src/store.js'
import type { NodeConnection } from '../../src/stores/redlock/connection.js'
import type { NodeCallback, ObservableNode } from '../../src/stores/redlock/node.js'
import { RedlockStore } from '../../src/stores/redlock/store.js'
import type { Wire } from './network.js'
import type { SimProcess } from './process.js'
import { type Faults, mix, Random } from './random.js'
import { MAX_TTL_MS, type ModelListener, type ModelServer, type RedlockCluster } from './redlock-cluster.js'
import type { Witness } from './server.js'
import type { Simulation } from './simulation.js'
import type { Weather } from './weather.js'

/** Longer than the slowest weather takes for there and back. */
const NODE_TIMEOUT_MS = 150

/** Between one process and Redlock's nodes: the store is the real one, and so is all that it does with what it hears. */
export class RedlockWire implements Wire {
  readonly store: Store
  readonly process: SimProcess
  readonly hearsRevocations = false
  calls = 0
  closedAt: number = Number.POSITIVE_INFINITY
  readonly lateCalls: { call: string; owner: string }[] = []
  openSubscriptions = 0
  listeners = 0
  readonly #sim: Simulation
  readonly #weather: Weather
  readonly #faults: Faults
  readonly #pushFaults: Faults
  readonly #random: Random
  readonly #servers: readonly ModelServer[]
  #clear = false

  constructor(
    parts: { sim: Simulation; judge: Witness; weather: Weather },
    cluster: RedlockCluster,
    process: SimProcess,
    index: number,
    seed: number,
  ) {
    this.#sim = parts.sim
    this.#weather = parts.weather
    this.process = process
    this.#faults = this.#sim.faults(`${process.label}.node`, mix(seed, 901 + index))
    this.#pushFaults = this.#sim.faults(`${process.label}.push`, mix(seed, 1_001 + index))
    this.#random = new Random(mix(seed, 1_101 + index))
    this.#servers = cluster.servers
    const lines = cluster.servers.map((server) => this.#line(server))
    const nodes = cluster.servers.map((server) => this.#port(server))
    const settings = { world: process.world, maxTtlMs: MAX_TTL_MS, drift: 0.01, nodeTimeoutMs: NODE_TIMEOUT_MS }
    this.store = this.#observed(new RedlockStore(lines, settings, async () => {}, nodes), parts.judge, cluster)
  }

  wasAsking(): boolean {
    return false
  }

  hasFailed(): boolean {
    return false
  }

  clearUp(): void {
    this.#clear = true
  }

  /** The cluster has said before which node fails when. */
  roughen(): void {
    this.#clear = false
    for (const { outages } of this.#servers) {
      for (const { from, to } of outages) if (from >= this.#sim.now) this.process.disturbances.push({ from, to })
    }
  }

  /** What the judge has to know, and nothing else. */
  #observed(real: RedlockStore, witness: Witness, cluster: RedlockCluster): Store {
    const counted = (watch: Watch): Watch => {
      this.openSubscriptions++
      let open = true
      const close = (): void => {
        if (open) this.openSubscriptions--
        open = false
        watch.close()
      }
      return { ready: watch.ready, live: () => watch.live(), close }
    }
    const own: Partial<Store> = {
      acquire: async (claims, options) => {
        for (const { key } of claims) cluster.keys.add(key)
        const answers = await real.acquire(claims, options)
        for (const [i, answer] of answers.entries()) this.#decided(witness, claims[i] as Claim, answer)
        return answers
      },
      watch: (key, listener) => counted(real.watch(key, listener)),
      watchRevoked: (listener) => counted(real.watchRevoked(listener)),
      onPossibleLoss: (listener) => {
        this.listeners++
        const stop = real.onPossibleLoss(listener)
        return () => {
          this.listeners--
          stop()
        }
      },
    }
    return new Proxy(real as Store, {
      get: (target, property) => {
        if (property in own) return own[property as keyof Store]
        const value = target[property as keyof Store] as unknown
        return typeof value === 'function' ? (value as () => unknown).bind(target) : value
      },
    })
  }

  #decided(witness: Witness, claim: Claim, answer: Answer): void {
    const owner = answer.granted === true ? answer.owner : claim.owner
    witness.decided({ ...claim, owner }, answer, this.process)
  }

  #port(server: ModelServer): ObservableNode {
    const { node, name } = server
    const ask = <T>(what: string, answer: () => T, done: NodeCallback<T>): void =>
      this.#send(server, what, answer, done)
    const page = (key: string) => ({ views: node.inspect(key), crowded: [], next: undefined })
    return {
      name,
      vote: (question, done) => ask('vote', () => node.vote(question, this.process.label), done),
      raise: (items, done) => ask('raise', () => node.raise(items), done),
      renew: (question, done) => ask('renew', () => node.renew(question, this.process.label), done),
      release: (items, done) => ask('release', () => node.release(items), done),
      identify: (request, done) => ask('identify', () => node.identify(request), done),
      admit: (admission, done) => ask('admit', () => node.admit(admission), done),
      list: (_prefix, _from, done) => ask('list', () => ({ views: [], crowded: [], next: undefined }), done),
      inspect: (key, _from, done) => ask('inspect', () => page(key), done),
      revoke: (key, done) => ask('revoke', () => node.revoke(key), done),
      time: (done) => ask('time', () => Math.floor(this.#sim.now), done),
    }
  }

  /** Lost, broken or slow on either way; nothing keeps its order. */
  #send<T>(server: ModelServer, what: string, answer: () => T, done: NodeCallback<T>): void {
    const { process } = this
    const sim = this.#sim
    const w = this.#weather
    const call = `${what} #${++this.calls} ${server.name}`
    const strike = this.#faults.draw([
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
    if (sim.trace) sim.note(process, `→ ${call}${strike ? ` [${strike.id} ${Math.round(slow)} ms]` : ''}`)
    const fail = (at: number): void => process.deliver(at, 'answer', () => done(new Error('connection reset')))
    if (fate === 'loseRequest') return
    if (fate === 'breakRequest') return fail(process.local + this.#latency())
    sim.plan(process.local + this.#latency() + (fate === 'slowRequest' ? slow : 0), () => {
      const outage = server.outages.find(({ from, to }) => from <= sim.now && sim.now < to)
      if (outage) return outage.how === 'refused' ? fail(sim.now + this.#latency()) : undefined
      const said = answer()
      if (sim.trace) sim.note(undefined, `${process.label} ${call}: ${JSON.stringify(said, texts)}`)
      const back = sim.now + this.#latency() + (fate === 'slowReply' ? slow : 0)
      if (fate === 'loseReply') return
      if (fate === 'breakReply') return fail(back)
      process.deliver(back, 'answer', () => done(said))
    })
  }

  #latency(): number {
    return this.#random.between(...(this.#clear ? ([0.1, 0.9] as const) : this.#weather.latency))
  }

  #line(server: ModelServer): NodeConnection {
    const adapter = {
      attend: () => {},
      rest: () => {},
      detach: () => {},
      ready: () => true,
      closed: () => false,
      listen: (_address: string, on: SubscriberEvents) => this.#listen(server, on),
    }
    return { name: server.name, adapter: adapter as unknown as NodeConnection['adapter'] }
  }

  #listen(server: ModelServer, on: SubscriberEvents): RedisSubscriber {
    const { process } = this
    const sim = this.#sim
    const listener: ModelListener = {
      channels: new Set(),
      hear: (channel, text) => this.#push(() => server.listeners.has(listener) && on.message(channel, text), text),
      broken: () => {
        server.listeners.delete(listener)
        process.deliver(sim.now, 'push', () => on.broken(new Error('connection reset')))
      },
    }
    server.listeners.add(listener)
    return {
      subscribe: (channels) =>
        new Promise((resolve) => {
          sim.plan(process.local + this.#latency(), () => {
            for (const channel of channels) listener.channels.add(channel)
            process.deliver(sim.now + this.#latency(), 'answer', () => resolve())
          })
        }),
      unsubscribe: (channels) => {
        for (const channel of channels) listener.channels.delete(channel)
      },
      // Over a connection that a restart has ended meanwhile, the answer never arrives.
      serverRun: () =>
        new Promise((resolve) => {
          sim.plan(process.local + this.#latency(), () => {
            const { run } = server.node
            if (server.listeners.has(listener)) process.deliver(sim.now + this.#latency(), 'answer', () => resolve(run))
          })
        }),
      close: () => void server.listeners.delete(listener),
      ping: async () => 'PONG',
      supportsGrantInbox: async () => false,
      popGrants: async () => undefined,
    }
  }

  #push(hear: () => void, text: string): void {
    const { process } = this
    const sim = this.#sim
    const w = this.#weather
    if (process.crashed) return
    const strike = this.#pushFaults.draw([
      ['lose', w.losePush],
      ['late', w.latePush],
      ['double', w.doublePush],
    ])
    if (sim.trace) sim.note(undefined, `push to ${process.label}: ${text}${strike ? ` [${strike.id}]` : ''}`)
    if (strike) process.disturbances.push({ from: sim.now, to: sim.now + w.slowMs[1] })
    if (strike?.kind === 'lose') return
    const delay = strike ? strike.random.spread(...w.slowMs) : 0
    process.deliver(sim.now + this.#latency() + (strike?.kind === 'late' ? delay : 0), 'push', hear)
    if (strike?.kind === 'double') process.deliver(sim.now + this.#latency() + delay, 'push', hear)
  }
}

function texts(_name: string, value: unknown): unknown {
  return typeof value === 'bigint' ? String(value) : value
}
