/**
 * The algorithm of the store, the same code, with modelled nodes in virtual time. One seed is one schedule: which messages
 * are lost, how late the others are, what expires early, which nodes restart and with what on their disks.
 *
 * @module
 */
import type { World } from '../../../src/util/world.js'
import { ALL, type Answer, type Claim } from '../../../src/store.js'
import type { NodeCallback, RedlockNode, VoteRequest, VoteReply } from '../../../src/stores/redlock/node.js'
import { Quorum } from '../../../src/stores/redlock/quorum.js'
import { RedlockJudge, type RedlockViolation, type SimulatedGrant } from './judge.js'
import { ModelNode, type NodeMutant } from './model-node.js'
import { chance, VirtualTimeline } from './timeline.js'

/**
 * What goes wrong besides lost, late and overtaken messages.
 *
 * - `expiry`: keys vanish at any moment, and some clients steal. Exclusion is impossible then; tokens must still be unique and grow.
 * - `losses`: nodes restart empty or with old data, never so many that a majority does not vote.
 * - `restarts`: any number of nodes restart at any time, but keep their data.
 */
export const REGIMES = ['expiry', 'losses', 'restarts'] as const
export type Regime = (typeof REGIMES)[number]

/** One mistake: of the nodes, or of the clients. */
export type RedlockMutation = NodeMutant | 'majority of half' | 'trust beyond the ttl'

/** Mistakes that the simulation must catch. */
export const REDLOCK_MUTATIONS: readonly RedlockMutation[] = [
  'raise without still mine',
  'max of increments',
  'majority of half',
  'no sitting out',
  'sitting out in client memory',
  'counters per name that expire',
  'writer blind to readers',
  'release without owner check',
  'a guess is always good',
  'a batch is blind to what it raises',
  'raises behind a steal',
  'trust beyond the ttl',
]

export interface RedlockSchedule {
  seed: number
  regime: Regime
  mutation?: RedlockMutation | undefined
}

export interface ScheduleOutcome {
  violations: RedlockViolation[]
  grants: number
  refusals: number
  restarts: number
}

const MAX_TTL_MS = 160
const TTLS = [50, 100, MAX_TTL_MS]
const NODE_TIMEOUT_MS = 25
const HORIZON_MS = 600
const KEYS = ['lock:a', 'lock:b']

export function simulate(schedule: RedlockSchedule): ScheduleOutcome {
  const simulation = new RedlockSimulation(schedule)
  simulation.run()
  const { judge, refusals, restarts } = simulation
  return { violations: judge.violations, grants: judge.grants, refusals, restarts }
}

class RedlockSimulation {
  readonly judge: RedlockJudge
  readonly random: () => number
  readonly timeline = new VirtualTimeline()
  readonly nodes: ModelNode[]
  readonly majority: number
  readonly drift: number
  /** How much of the traffic is lost, and how much is very late. Some schedules have a quiet network. */
  readonly loss: number
  readonly tail: number
  clients = 0
  refusals = 0
  restarts = 0
  /** No client asks for anything until then, so that what a node forgot is not soon overwritten by what comes next. */
  quietUntil = 0
  readonly regime: Regime
  readonly #trueMajority: number

  constructor({ seed, regime, mutation }: RedlockSchedule) {
    this.random = chance(seed * 2654435761)
    this.regime = regime
    this.judge = new RedlockJudge(regime !== 'expiry')
    const size = 3 + this.pick(3)
    this.#trueMajority = Math.floor(size / 2) + 1
    this.majority = mutation === 'majority of half' ? Math.ceil(size / 2) : this.#trueMajority
    this.drift = mutation === 'trust beyond the ttl' ? -0.5 : 0.01
    this.loss = [0, 0.02, 0.1][this.pick(3)] as number
    this.tail = [0, 0.03, 0.1][this.pick(3)] as number
    const mutant = mutation === 'majority of half' || mutation === 'trust beyond the ttl' ? undefined : mutation
    // Useless clocks: only the counters keep tokens apart here. A clock long ago also spoils every guess, so that the next
    // guess is the next number.
    const micros = this.random() < 0.5 ? 0 : -1e12
    this.nodes = Array.from({ length: size }, (_, i) => {
      const rate = this.clockRate()
      const clock = (): number => this.timeline.now * rate
      return new ModelNode({
        name: `node ${i + 1}`,
        size,
        maxTtlMs: MAX_TTL_MS,
        clock,
        micros: () => micros,
        mutant,
        onHeld: (node, key, owner) => this.judge.held(node, key, owner),
      })
    })
  }

  run(): void {
    // Half of the schedules begin with a cluster that is not founded yet.
    if (this.random() < 0.5) for (const node of this.nodes) node.settle()
    const clients = this.random() < 0.7 ? 2 : 3
    for (let i = 0; i < clients; i++)
      new SimulatedClient(this).begin(this.random() < 0.7 ? this.random() * 5 : this.random() * 300)
    if (this.regime === 'expiry') this.#plan(8, () => this.#expireSomething())
    else this.#plan(this.regime === 'losses' ? 5 : 4, () => this.#restartSomething())
    this.timeline.run(HORIZON_MS)
  }

  pick(many: number): number {
    return Math.floor(this.random() * many)
  }

  /** Two clocks differ by less than the drift that leases are shortened by. */
  clockRate(): number {
    return 1 + (this.random() - 0.5) * 0.008
  }

  delay(): number {
    return this.random() < this.tail ? 5 + this.random() * 2 * MAX_TTL_MS : 0.5 + this.random() * 5
  }

  #plan(most: number, fault: () => void): void {
    for (let i = this.pick(most + 1); i > 0; i--) this.timeline.at(20 + this.random() * HORIZON_MS, fault)
  }

  #expireSomething(): void {
    const key = KEYS[this.pick(KEYS.length)] as string
    const everywhere = this.random() < 0.2
    for (const node of this.nodes) if (everywhere || this.random() < 0.4) node.expire(key)
  }

  #restartSomething(): void {
    if (this.regime === 'restarts') {
      for (const node of this.nodes) if (this.random() < 0.4) this.#restart(node, node.snapshot())
      return
    }
    const node = this.nodes[this.pick(this.nodes.length)] as ModelNode
    const voting = this.nodes.filter((other) => other.votes).length
    // More would be a majority that forgets: no algorithm survives that, and this one does not promise to.
    if (node.votes && voting - 1 < this.#trueMajority) return
    const how = this.random()
    if (this.random() < 0.5) this.quietUntil = this.timeline.now + MAX_TTL_MS * 1.1
    if (how < 0.5) this.#restart(node, undefined)
    else if (how < 0.7) this.#flush(node)
    else {
      const old = node.snapshot()
      this.timeline.at(this.timeline.now + this.random() * 100, () => {
        const stillVoting = this.nodes.filter((other) => other.votes).length
        if (!node.votes || stillVoting - 1 >= this.#trueMajority) this.#restart(node, old)
      })
    }
  }

  #restart(node: ModelNode, disk: unknown): void {
    this.restarts++
    node.restart(disk)
  }

  #flush(node: ModelNode): void {
    this.restarts++
    node.flush()
  }
}

/** A process with a clock of its own that takes locks, holds, renews, releases, forgets, and sometimes dies. */
class SimulatedClient {
  alive = true
  readonly #simulation: RedlockSimulation
  readonly #name: string
  readonly #rate: number
  readonly #quorum: Quorum
  #acquisitions = 0

  constructor(simulation: RedlockSimulation) {
    this.#simulation = simulation
    this.#name = `client ${simulation.clients++}`
    this.#rate = simulation.clockRate()
    const { majority, drift } = simulation
    this.#quorum = new Quorum({
      nodes: simulation.nodes.map((node, i) => this.#port(node, i)),
      majority,
      drift,
      world: this.#world(),
      maxTtlMs: MAX_TTL_MS,
      nodeTimeoutMs: NODE_TIMEOUT_MS,
    })
  }

  begin(inMs: number): void {
    this.#later(inMs, () => this.#ask())
  }

  #ask(): void {
    const { random, timeline, quietUntil } = this.#simulation
    if (timeline.now > HORIZON_MS - 50) return
    if (quietUntil > timeline.now) return this.#later(quietUntil - timeline.now + random() * 5, () => this.#ask())
    const claims = this.#claims()
    const startedAt = timeline.now
    const localStart = this.#now()
    this.#quorum.acquire(claims, (answers) => {
      let pause = random() * 60
      const owners = new Set<string>()
      for (const [i, answer] of answers.entries()) {
        const { key, owner, ttlMs } = claims[i] as Claim
        if (answer.granted === true) {
          pause = Math.max(pause, random() * ttlMs)
          // An owner that asked twice has one grant.
          if (!owners.has(answer.owner)) this.#hold(claims[i] as Claim, answer, startedAt, localStart)
          owners.add(answer.owner)
        } else if (answer.granted === false) this.#simulation.refusals++
        else {
          pause = Math.max(pause, 20 + random() * 80)
          // What was granted to the same owner stays.
          const isHeld = answers.some((other, j) => other.granted === true && claims[j]?.owner === owner)
          if (random() < 0.5 && !isHeld) this.#quorum.release([{ key, owner }], () => {})
        }
      }
      this.#later(pause, () => (random() < 0.06 ? this.#die() : this.#ask()))
    })
  }

  /** One batch: of one or several claims, for one key or for both, by several owners, some of which ask twice or steal. */
  #claims(): Claim[] {
    const { random, regime } = this.#simulation
    const size = random() < 0.6 ? 1 : 2 + this.#simulation.pick(3)
    const claims: Claim[] = []
    for (let i = 0; i < size; i++) {
      const twice = i > 0 && random() < 0.05
      const owner = twice ? (claims[i - 1] as Claim).owner : `${this.#name}/${this.#acquisitions++}`
      const key = random() < 0.85 ? 'lock:a' : 'lock:b'
      const ttlMs = TTLS[this.#simulation.pick(TTLS.length)] as number
      const weight = random() < 0.35 ? 1 : ALL
      const steal = regime === 'expiry' && random() < (i === 0 ? 0.1 : 0.3)
      claims.push({ key, owner, weight, capacity: ALL, ttlMs, steal })
    }
    return claims
  }

  #hold(claim: Claim, answer: Answer & { granted: true }, startedAt: number, localStart: number): void {
    const { timeline, judge, random } = this.#simulation
    const until = this.#globally(localStart + answer.ttlMs)
    const { key, ttlMs } = claim
    const shared = claim.weight !== ALL
    const { owner, token } = answer
    const grant: SimulatedGrant = { key, owner, shared, token, startedAt, grantedAt: timeline.now, until }
    judge.granted(grant)
    this.#later(random() * ttlMs * 1.1, () => this.#carryOn(grant, ttlMs))
  }

  #carryOn(grant: SimulatedGrant, ttlMs: number): void {
    const { timeline, judge, random } = this.#simulation
    const { key, owner } = grant
    if (random() < 0.4 && grant.until > timeline.now) {
      const sentAt = this.#now()
      this.#quorum.renew([{ key, owner, ttlMs }], ([renewed]) => {
        // A holder that is answered too late has lost it already.
        if (renewed?.outcome === 'ours' && grant.until > timeline.now) {
          grant.until = this.#globally(sentAt + renewed.ttlMs)
          judge.believed(grant, timeline.now)
        }
        this.#later(random() * ttlMs, () => this.#carryOn(grant, ttlMs))
      })
    } else if (random() < 0.9) {
      grant.until = Math.min(grant.until, timeline.now)
      this.#quorum.release([{ key, owner }], () => {})
    }
  }

  /** Another process takes its place, and knows nothing. */
  #die(): void {
    this.alive = false
    new SimulatedClient(this.#simulation).begin(this.#simulation.random() * 30)
  }

  #port(node: ModelNode, i: number): RedlockNode {
    const send = <T>(answer: () => T, done: NodeCallback<T>): void => this.#send(answer, done)
    return {
      name: `node ${i + 1}`,
      vote: (request, done) => send(() => this.#vote(node, request), done),
      raise: (items, done) => send(() => node.raise(items), done),
      renew: (request, done) => send(() => node.renew(request, this.#name), done),
      release: (items, done) => send(() => node.release(items), done),
      identify: (request, done) => send(() => node.identify(request), done),
      admit: (admission, done) => send(() => node.admit(admission), done),
    }
  }

  /** A vote may be lost before the second round arrives. */
  #vote(node: ModelNode, request: VoteRequest): VoteReply {
    const { regime, random, timeline } = this.#simulation
    const key = request.items[0]?.key as string
    if (regime === 'expiry' && random() < 0.08) timeline.at(timeline.now + random() * 12, () => node.expire(key))
    return node.vote(request, this.#name)
  }

  /** Lost on the way there, lost on the way back, or late; later messages overtake earlier ones. */
  #send<T>(answer: () => T, done: NodeCallback<T>): void {
    const { timeline, random, loss } = this.#simulation
    if (random() < loss) return
    timeline.at(timeline.now + this.#simulation.delay(), () => {
      const said = answer()
      if (random() < loss) return
      timeline.at(timeline.now + this.#simulation.delay(), () => {
        if (this.alive) done(said)
      })
    })
  }

  #world(): World {
    const { timeline, random } = this.#simulation
    return {
      now: () => this.#now(),
      date: () => this.#now(),
      random,
      bytes: () => new Uint8Array(16),
      after: (ms, run) => {
        const event = timeline.at(timeline.now + Math.max(ms, 0) / this.#rate, () => {
          if (this.alive) run()
        })
        return () => {
          event.cancelled = true
        }
      },
    }
  }

  #later(ms: number, run: () => void): void {
    const { timeline } = this.#simulation
    timeline.at(timeline.now + ms, () => {
      if (this.alive) run()
    })
  }

  #now(): number {
    return this.#simulation.timeline.now * this.#rate
  }

  #globally(local: number): number {
    return local / this.#rate
  }
}
