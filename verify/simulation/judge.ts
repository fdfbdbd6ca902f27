import { inspect } from 'node:util'
import type { Answer, Claim } from '../../src/store.js'
import type { Actor } from './actor.js'
import type { SimProcess } from './process.js'
import { Allowances, Results, TickBook } from './records.js'
import type { IsBack, Witness } from './server.js'
import type { Simulation } from './simulation.js'
import { Victims } from './victims.js'

/** A promise that was broken. */
export interface Violation {
  /** Short and stable: failures of one rule are one class. */
  rule: string
  text: string
  at: number
}

/** An operation that asked for a lock and waits. */
export interface Wait {
  actor: Actor
  process: SimProcess
  key: string
  name: string
  asked: number
  /** How much time the process had lost until then. */
  pausedMs: number
  waitMs: number
  ttlMs: number
  exclusive: boolean
  /** It is served first come, first served. */
  inTurn: boolean
  /** How many others of this instance waited for this key already. */
  before: number
  settled: number | undefined
  granted: number | undefined
  /** Of the grant, as far as its user can see it. */
  token: bigint | undefined
}

/** A process that believes to hold a lock. */
export interface Belief {
  actor: Actor
  process: SimProcess
  key: string
  weight: number
  capacity: number
  /** Unknown to users of `DistributedLock`. */
  token: bigint | undefined
  asked: number
  start: number
  /** Whether the process would say so if it looked now. */
  held: () => boolean
  over: boolean
  /** When it was over. */
  end: number
  /** It was taken away by force: it may not know yet. */
  revoked: boolean
  what: string
  /** The longest that it was asked for. */
  ttlMs: number
  /** Heartbeats prolong it. */
  renews: boolean
}

/** What is known of a grant. */
export type Facts = Pick<Belief, 'weight' | 'capacity' | 'token' | 'held' | 'what'> &
  Partial<Pick<Belief, 'ttlMs' | 'renews'>>

export const ALL: number = 2 ** 31 - 1

/** For so long after its grant a lease may be passed on inside a process: waiters of other processes wait meanwhile. */
const TENANCY_MS = 15

/** The judge knows what processes asked for, what they were answered and what they see, and nothing of the library's internals. */
export class Judge implements Witness {
  readonly violations: Violation[] = []
  readonly waits: Wait[] = []
  readonly actors: Actor[] = []
  readonly results: Results = new Results((rule, text) => this.accuse(rule, text))
  readonly ticks: TickBook = new TickBook((rule, text) => this.accuse(rule, text))
  readonly allowances: Allowances = new Allowances((rule, text) => this.accuse(rule, text))
  readonly decidedAt: Map<bigint, number> = new Map()
  readonly #victims: Victims
  readonly #sim: Simulation
  readonly #active = new Map<string, Belief[]>()
  readonly #history = new Map<string, Belief[]>()
  readonly #written = new Map<string, bigint>()
  readonly #tokens = new Map<string, bigint>()
  readonly #revokedTokens = new Map<bigint, IsBack | undefined>()
  readonly #revokedEarly = new Map<string, IsBack | undefined>()
  readonly #refusals = new Map<string, number[]>()
  /** By token that the server reserved with a grant: the token of that grant. */
  readonly #reserved = new Map<bigint, bigint>()
  grants = 0
  refusals = 0
  /** Locks that were passed on inside a process, without a call to the server. */
  passedOn = 0

  constructor(sim: Simulation) {
    this.#sim = sim
    this.#victims = new Victims(sim, (rule, text) => this.accuse(rule, text))
    sim.onSeen = (process) => this.#seen(process)
    sim.onThrow = (process, error) => this.accuse('uncaught', `${process?.label}: ${inspect(error)}`)
  }

  accuse(rule: string, text: string): void {
    this.#sim.note(this.#sim.current, `VIOLATION ${rule}: ${text}`)
    this.violations.push({ rule, text, at: this.#sim.now })
  }

  // What the server decides.

  decided(claim: Claim, answer: Answer, process: SimProcess): void {
    if (answer.granted === true) {
      if (!this.decidedAt.has(answer.token)) this.decidedAt.set(answer.token, this.#moment)
      this.#tokens.set(claim.owner, answer.token)
      this.#reserve(answer.token, answer.tokens)
      if (this.#revokedEarly.has(claim.owner)) {
        this.#revokedTokens.set(answer.token, this.#revokedEarly.get(claim.owner))
      }
    } else if (answer.granted === false) {
      this.refusals++
      this.requestOpened(claim, process)
    }
  }

  requestOpened(claim: Claim, process: SimProcess): void {
    const id = `${process.label} ${keyOf(claim.key)}`
    const times = this.#refusals.get(id)
    if (times) times.push(this.#sim.now)
    else this.#refusals.set(id, [this.#sim.now])
  }

  pushedGrant(_key: string, owner: string, token: bigint, tokens?: number): void {
    this.decidedAt.set(token, this.#moment)
    this.#tokens.set(owner, token)
    this.#reserve(token, tokens)
  }

  #reserve(token: bigint, tokens = 1): void {
    for (let i = 1; i < tokens; i++) this.#reserved.set(token + BigInt(i), token)
  }

  /** The token that the server knows the lease by. */
  grantOf(token: bigint): bigint {
    return this.#reserved.get(token) ?? token
  }

  revoked(key: string, owner: string, isBack?: IsBack): void {
    const token = this.#tokens.get(owner)
    // Stolen in the batch that granted it: its token is known a moment later.
    if (token === undefined) return void this.#revokedEarly.set(owner, isBack)
    this.#revokedTokens.set(token, isBack)
    for (const belief of this.#active.get(keyOf(key)) ?? []) {
      if (belief.token === undefined || this.grantOf(belief.token) !== token || belief.revoked) continue
      belief.revoked = true
      this.#victims.add(belief, { early: false, isBack })
    }
  }

  // What processes do.

  asks(
    actor: Actor,
    key: string,
    name: string,
    waitMs: number,
    how: { exclusive: boolean; ttlMs?: number; inTurn?: boolean },
  ): Wait {
    const { process } = actor
    const { exclusive, ttlMs = Number.POSITIVE_INFINITY, inTurn = false } = how
    const before = this.waits.filter((each) => each.settled === undefined && each.actor === actor && each.key === key)
    const wait: Wait = {
      actor,
      process,
      key,
      name,
      asked: process.local,
      pausedMs: process.pausedMs,
      waitMs,
      ttlMs,
      exclusive,
      inTurn: inTurn && waitMs > 0,
      before: before.length,
      settled: undefined,
      granted: undefined,
      token: undefined,
    }
    this.waits.push(wait)
    return wait
  }

  begins(wait: Wait, facts: Facts): Belief {
    const { actor, process, key, asked, ttlMs } = wait
    wait.settled ??= process.local
    wait.granted ??= process.local
    wait.token ??= facts.token
    this.grants++
    const grant = facts.token === undefined ? undefined : this.grantOf(facts.token)
    if (grant !== facts.token) this.passedOn++
    const revoked = grant !== undefined && this.#revokedTokens.has(grant)
    const known = {
      actor,
      process,
      key,
      asked,
      start: process.local,
      over: false,
      end: Number.POSITIVE_INFINITY,
      revoked,
      ttlMs,
      renews: true,
    }
    const belief: Belief = { ...known, ...facts }
    if (revoked) this.#victims.add(belief, { early: true, isBack: this.#revokedTokens.get(grant) })
    if (this.#sim.trace)
      this.#sim.note(process, `HOLDS ${key} (${facts.what}), token …${String(facts.token).slice(-8)}`)
    let active = this.#active.get(key)
    if (!active) this.#active.set(key, (active = []))
    active.push(belief)
    this.#compareTokens(belief)
    this.#checkReserved(belief)
    return belief
  }

  /** The server has granted this token, or reserved it. */
  #checkReserved({ actor, key, token, what }: Belief): void {
    const { redlock, odd } = actor.shape
    if (redlock || odd || token === undefined || !key.startsWith('lock:') || this.decidedAt.has(this.grantOf(token)))
      return
    this.accuse('token order', `${key}: ${token} (${what}) was never granted`)
  }

  ends(belief: Belief): void {
    if (belief.over) return
    belief.over = true
    belief.end = belief.process.local
    if (this.#sim.trace) this.#sim.note(belief.process, `no longer wants ${belief.key} (${belief.what})`)
    const active = this.#active.get(belief.key) as Belief[]
    active.splice(active.indexOf(belief), 1)
  }

  /** A process works under this grant, or has not noticed yet that it is over. */
  believes(token: bigint): boolean {
    const isIt = (belief: Belief): boolean => belief.token !== undefined && this.grantOf(belief.token) === token
    for (const active of this.#active.values()) if (active.some(isIt)) return true
    return false
  }

  /** A write to a fenced resource, by a process that has just seen that it holds the lock. */
  writes(belief: Belief): void {
    const newest = this.#written.get(belief.key)
    if (belief.revoked || belief.weight !== belief.capacity || belief.token === undefined) return
    if (newest !== undefined && belief.token < newest) {
      const facts = `${belief.process.label} writes with ${belief.token}, after ${newest}`
      this.accuse('fence', `${belief.key}: ${facts}`)
    } else this.#written.set(belief.key, belief.token)
  }

  /** First come, first served: within an instance, and between the first waiters of instances. `slackMs`: requests so close together may overtake each other on the way. */
  compareTurns(slackMs: number): void {
    // A waiter whose lease was taken before it knew of its turn asks again, behind the others.
    if (this.actors.some((actor) => actor.takenAt.length > 0)) return
    const granted = this.waits.filter((wait) => wait.inTurn && wait.exclusive && wait.granted !== undefined)
    for (const early of granted) {
      for (const late of granted) {
        if (early.key !== late.key || (late.granted as number) >= (early.granted as number)) continue
        const same = early.actor === late.actor
        // A waiter that waits for the turn of its own process has no entry in the store's queue meanwhile.
        const slack = slackMs + TENANCY_MS
        if (same ? early.asked >= late.asked : early.before > 0 || early.asked + slack >= late.asked) continue
        if (!same && this.#isInTurn(late, slackMs)) continue
        const facts = `${late.actor.label} asked ${(late.asked - early.asked).toFixed(1)} ms after ${early.actor.label}`
        return this.accuse('overtaken', `${early.key}: ${facts} and was served first`)
      }
    }
  }

  /** Its lease was passed on inside its process, soon enough after the grant. */
  #isInTurn({ token, granted }: Wait, slackMs: number): boolean {
    if (token === undefined || this.grantOf(token) === token) return false
    const decided = this.decidedAt.get(this.grantOf(token))
    return decided !== undefined && (granted as number) <= decided + TENANCY_MS + slackMs
  }

  crashed(process: SimProcess): void {
    for (const active of this.#active.values()) {
      for (const belief of [...active]) if (belief.process === process) this.ends(belief)
    }
  }

  /** The server refused this process, for this key, between these moments. */
  wasRefused(process: SimProcess, key: string, from: number, to: number): boolean {
    return (this.#refusals.get(`${process.label} ${key}`) ?? []).some((at) => at >= from && at <= to)
  }

  /** An instance of this process held the key at some time since `from`: those behind it know that it was busy. */
  wasHeldBy(process: SimProcess, key: string, from: number): boolean {
    return (this.#history.get(key) ?? []).some((each) => each.process === process && each.end >= from)
  }

  /** Now, by the process whose code runs. */
  get #moment(): number {
    return this.#sim.current?.local ?? this.#sim.now
  }

  /** After each event that a process has seen. */
  #seen(process: SimProcess): void {
    for (const active of this.#active.values()) {
      if (active.length < 2) continue
      const key = (active[0] as Belief).key
      if (!active.some((belief) => belief.process === process)) continue
      if (process.local <= this.#sim.now) this.#count(key)
      // Its code has come further than the others: what they believe then is known when they are there.
      else this.#sim.plan(process.local, () => this.#count(key))
    }
  }

  /** What is believed to be held of a key at this moment. */
  #count(key: string): void {
    const active = this.#active.get(key) ?? []
    const held = this.#sim.probe(() => active.filter((belief) => !belief.revoked && belief.held()))
    if (held.length < 2) return
    const sum = held.reduce((total, belief) => total + belief.weight, 0)
    const capacity = Math.min(...held.map((belief) => belief.capacity))
    if (sum <= capacity) return
    const who = held.map(({ process, token, what }) => `${process.label} (${what}, token ${token})`).join(', ')
    this.accuse('capacity', `${key} is believed to be held by ${who}`)
    // One violation per overlap is enough.
    for (const belief of held) belief.revoked = true
  }

  #compareTokens(belief: Belief): void {
    let history = this.#history.get(belief.key)
    if (!history) this.#history.set(belief.key, (history = []))
    if (belief.token === undefined) return
    const exclusive = belief.weight === belief.capacity
    for (const earlier of history) {
      const was = earlier.weight === earlier.capacity
      if (!was && !exclusive) continue
      const known = earlier.start < belief.asked || (earlier.over && !earlier.revoked && !belief.revoked)
      if (known && earlier.token !== undefined && earlier.token >= belief.token) {
        this.accuse(
          'token order',
          `${belief.key}: ${belief.token} after ${earlier.token} (${earlier.what}, ${belief.what})`,
        )
      }
    }
    history.push(belief)
  }
}

/** Slots of a semaphore count as the semaphore, and run-once has an old and a new word. */
export function keyOf(key: string): string {
  return key.replace(/#\d+$/, '').replace(/^run-once:/, 'once:')
}
