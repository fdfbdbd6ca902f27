import { REVOKED, runChannel, wakeupChannel } from '../../src/stores/redlock/keys.js'
import { ModelNode, type ModelOptions } from './redlock/model-node.js'
import { EPOCH } from './process.js'
import { mix, Random } from './random.js'
import type { Place, Witness } from './server.js'
import type { Simulation } from './simulation.js'
import type { Outage, Weather } from './weather.js'

export const MAX_TTL_MS = 60_000

/** A subscriber connection to one node. */
export interface ModelListener {
  channels: Set<string>
  hear: (channel: string, text: string) => void
  broken: () => void
}

/** A model of one server, and its subscriber connections. */
export class ModelServer {
  readonly node: ModelNode
  readonly listeners: Set<ModelListener> = new Set()
  outages: Outage[] = []

  constructor(
    readonly name: string,
    make: (server: Pick<ModelOptions, 'tell' | 'isWitnessed'>) => ModelNode,
  ) {
    this.node = make({ tell: (key, text) => this.#tell(key, text), isWitnessed: (run) => this.#isWitnessed(run) })
  }

  #isWitnessed(run: string): boolean {
    return [...this.listeners].some(({ channels }) => channels.has(runChannel(run)))
  }

  #tell(key: string | undefined, text: string): number {
    const channel = key === undefined ? REVOKED : wakeupChannel(key)
    const reached = [...this.listeners].filter(({ channels }) => channels.has(channel))
    for (const { hear } of reached) hear(channel, key === undefined ? text : `${reached.length} ${text}`)
    return reached.length
  }
}

/** Redlock's nodes, each by a clock of its own. Where one of them fails, the others go on. */
export class RedlockCluster implements Place {
  readonly keys: Set<string> = new Set()
  readonly unheard: ReadonlySet<string> = new Set()
  readonly servers: ModelServer[]
  readonly openRequests = 0
  readonly #sim: Simulation
  readonly #weather: Weather
  readonly #random: Random
  readonly #majority: number
  /** Which of them fail in this schedule: never so many that the others are no majority. */
  readonly #fragile: readonly ModelServer[]
  /** Attempts that were cut off. */
  readonly #cut = new Set<string>()

  constructor(sim: Simulation, weather: Weather, witness: Witness, seed: number) {
    this.#sim = sim
    this.#weather = weather
    this.#random = new Random(mix(seed, 801))
    const size = this.#random.pick([3, 5])
    this.#majority = Math.floor(size / 2) + 1
    this.servers = Array.from({ length: size }, (_, i) => this.#server(`node ${i + 1}`, size, witness))
    const first = this.#random.below(size)
    this.#fragile = Array.from(
      { length: size - this.#majority },
      (_, i) => this.servers[(first + i) % size] as ModelServer,
    )
    for (const { node } of this.servers) node.settle()
  }

  get subscriptions(): number {
    return this.servers.reduce((sum, { listeners }) => sum + [...listeners].reduce((n, l) => n + l.channels.size, 0), 0)
  }

  /** What a majority has. */
  inspect(key: string): { holders: { owner: string; token: bigint | undefined }[]; waiters: never[] } {
    const found = new Map<string, { owner: string; token: bigint | undefined; nodes: number }>()
    for (const { node } of this.servers) {
      for (const { owner, token } of node.inspect(key)) {
        const known = found.get(owner)
        found.set(owner, { owner, token: token ?? known?.token, nodes: (known?.nodes ?? 0) + 1 })
      }
    }
    return { holders: [...found.values()].filter(({ nodes }) => nodes >= this.#majority), waiters: [] }
  }

  /**
   * One node at a time. It may come back without its data, and a client that notices this only in the next round does not
   * count its votes for the longest ttl from then on: so all nodes that ever fail together are a minority.
   */
  roughen(): void {
    for (const { from, to, how, restart } of this.#weather.outages) {
      const server = this.#random.pick(this.#fragile)
      const forgets = this.#random.chance(0.5)
      const { now } = this.#sim
      server.outages.push({ from: now + from, to: now + to, how, restart })
      this.#sim.plan(now + from, () =>
        this.#sim.note(undefined, `${server.name} is out for ${Math.round(to - from)} ms`),
      )
      this.#sim.plan(now + to, () => {
        if (restart) server.node.restart(forgets ? undefined : server.node.snapshot())
        for (const listener of [...server.listeners]) listener.broken()
      })
    }
  }

  #server(name: string, size: number, witness: Witness): ModelServer {
    const rate = this.#weather.drift ? this.#random.between(0.996, 1.004) : 1
    const clock = (): number => EPOCH + this.#sim.now * rate
    const micros = (): number => Math.floor(clock() * 1_000)
    return new ModelServer(name, ({ tell = () => 0, isWitnessed }) => {
      const publish = (key: string | undefined, text: string): number => {
        if (key === undefined) this.#revoked(text, witness)
        return tell(key, text)
      }
      return new ModelNode({ name, size, maxTtlMs: MAX_TTL_MS, clock, micros, isWitnessed, tell: publish })
    })
  }

  #revoked(text: string, witness: Witness): void {
    const [key, ...owners] = JSON.parse(text) as [string, ...string[]]
    for (const owner of owners) {
      // With fewer than a majority left, another may be granted it.
      const left = this.servers.filter(({ node }) => node.inspect(key).some((view) => view.owner === owner))
      if (left.length < this.#majority && !this.#cut.has(owner)) {
        this.#cut.add(owner)
        witness.revoked(key, owner, () => this.inspect(key).holders.some((each) => each.owner === owner))
      }
    }
  }
}
