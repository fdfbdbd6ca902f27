import type { Answer, Claim } from '../../src/store.js'
import type { Actor } from './actor.js'
import type { SimProcess } from './process.js'
import { Allowances, Results, TickBook } from './records.js'
import type { Witness } from './server.js'
import type { Simulation } from './simulation.js'

/** A promise that was broken. */
export interface Violation {
  /** Short and stable: failures of one rule are one class. */
  rule: string
  text: string
  at: number
}

/** Somebody who asked for something and waits. */
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
}

/** Somebody who believes to hold something. */
export interface Belief {
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
  /** It was taken away by force: it may not know yet. */
  revoked: boolean
  what: string
}

export const ALL: number = 2 ** 31 - 1

/** Knows what processes asked for, what they were told and what they see. Knows nothing of how that came about. */
export class Judge implements Witness {
  readonly violations: Violation[] = []
  readonly waits: Wait[] = []
  readonly actors: Actor[] = []
  readonly results: Results = new Results((rule, text) => this.accuse(rule, text))
  readonly ticks: TickBook = new TickBook((rule, text) => this.accuse(rule, text))
  readonly allowances: Allowances = new Allowances((rule, text) => this.accuse(rule, text))
  readonly decidedAt: Map<bigint, number> = new Map()
  readonly #sim: Simulation
  readonly #active = new Map<string, Belief[]>()
  readonly #history = new Map<string, Belief[]>()
  readonly #written = new Map<string, bigint>()
  readonly #tokens = new Map<string, bigint>()
  readonly #revokedTokens = new Set<bigint>()
  readonly #revokedEarly = new Set<string>()
  readonly #refusals = new Map<string, number[]>()
  grants = 0
  refusals = 0

  constructor(sim: Simulation) {
    this.#sim = sim
    sim.onSeen = (process) => this.#seen(process)
    sim.onThrow = (process, error) => this.accuse('uncaught', `${process?.label}: ${String(error)}`)
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
      if (this.#revokedEarly.has(claim.owner)) this.#revokedTokens.add(answer.token)
    } else if (answer.granted === false) {
      this.refusals++
      const id = `${process.label} ${keyOf(claim.key)}`
      const times = this.#refusals.get(id)
      if (times) times.push(this.#sim.now)
      else this.#refusals.set(id, [this.#sim.now])
    }
  }

  pushedGrant(_key: string, owner: string, token: bigint): void {
    this.decidedAt.set(token, this.#moment)
    this.#tokens.set(owner, token)
  }

  revoked(key: string, owner: string): void {
    const token = this.#tokens.get(owner)
    // Stolen in the batch that granted it: its token is known a moment later.
    if (token === undefined) return void this.#revokedEarly.add(owner)
    this.#revokedTokens.add(token)
    for (const belief of this.#active.get(keyOf(key)) ?? []) if (belief.token === token) belief.revoked = true
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
    }
    this.waits.push(wait)
    return wait
  }

  begins(wait: Wait, facts: Pick<Belief, 'weight' | 'capacity' | 'token' | 'held' | 'what'>): Belief {
    const { process, key, asked } = wait
    wait.settled ??= process.local
    wait.granted ??= process.local
    this.grants++
    const revoked = facts.token !== undefined && this.#revokedTokens.has(facts.token)
    const belief: Belief = { process, key, asked, start: process.local, over: false, revoked, ...facts }
    this.#sim.trace && this.#sim.note(process, `HOLDS ${key} (${facts.what}), token …${String(facts.token).slice(-8)}`)
    let active = this.#active.get(key)
    if (!active) this.#active.set(key, (active = []))
    active.push(belief)
    this.#compareTokens(belief)
    return belief
  }

  ends(belief: Belief): void {
    if (belief.over) return
    belief.over = true
    this.#sim.trace && this.#sim.note(belief.process, `no longer wants ${belief.key} (${belief.what})`)
    const active = this.#active.get(belief.key) as Belief[]
    active.splice(active.indexOf(belief), 1)
  }

  /** A write to a resource that knows the newest token it has seen. Called by those who have just seen that they hold the lock. */
  writes(belief: Belief): void {
    const newest = this.#written.get(belief.key)
    if (belief.revoked || belief.weight !== belief.capacity || belief.token === undefined) return
    if (newest !== undefined && belief.token < newest) {
      const facts = `${belief.process.label} writes with ${belief.token}, after ${newest}`
      this.accuse('fence', `${belief.key}: ${facts}`)
    } else this.#written.set(belief.key, belief.token)
  }

  /** First come, first served: within an instance, and between those who were first in theirs. `slackMs`: on the way. */
  compareTurns(slackMs: number): void {
    // Who was cut off before it knew of its turn asks again behind the others.
    if (this.actors.some((actor) => actor.takenAt.length > 0)) return
    const granted = this.waits.filter((wait) => wait.inTurn && wait.exclusive && wait.granted !== undefined)
    for (const early of granted) {
      for (const late of granted) {
        if (early.key !== late.key || (late.granted as number) >= (early.granted as number)) continue
        const same = early.actor === late.actor
        if (same ? early.asked >= late.asked : early.before > 0 || early.asked + slackMs >= late.asked) continue
        const facts = `${late.actor.label} asked ${(late.asked - early.asked).toFixed(1)} ms after ${early.actor.label}`
        return this.accuse('overtaken', `${early.key}: ${facts} and was served first`)
      }
    }
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

  /** Anybody of this process holds or held it between these moments. */
  wasHeldBy(process: SimProcess, key: string, from: number): boolean {
    return (this.#history.get(key) ?? []).some((each) => each.process === process && (!each.over || each.start >= from))
  }

  /** Now, for the one whose code runs. */
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
    // Said once.
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
