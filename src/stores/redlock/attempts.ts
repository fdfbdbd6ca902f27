/**
 * Attempts to acquire: who they belong to, how far each of them is, which token is guessed for it, and what is answered when it
 * is refused. Every attempt
 * has an owner of its own on the nodes, so that what arrives late of an earlier one can neither help nor harm the next.
 *
 * @module
 */
import { ALL, type Answer, type Blocker, type Claim, type Refusal } from '../../store.js'
import type { World } from '../../util/world.js'
import { type Cluster, count } from './cluster.js'
import { isNewer } from './inspect.js'
import { attemptOwner } from './keys.js'
import type { NodeRefusal, Raise, Vote, VoteReply } from './node.js'

/** What this process knows of one acquisition: an attempt that is being decided, or the grant that came of it. */
export interface OwnAttempt {
  key: string
  /** The owner of the acquisition, as the core knows it. */
  claimedBy: string
  /** The owner of the attempt, as the nodes know it. */
  owner: string
  shared: boolean
  token: bigint
  /** When its holder can no longer trust it, by our clock. */
  until: number
  /** Of the value kept beside the lease. */
  version: number
  /** Gives it up while it is being decided; undefined: it is a grant. */
  abandon: (() => void) | undefined
  /** Nodes that were never sent a vote for it, such as one that is silent: there is nothing to release. */
  unsent: number
  /** Nodes that were sent its release and have not answered. */
  releasing: number
  /** Nodes of these whose vote arrived meanwhile. */
  lateVotes: number
}

/** SWEEP_EVERY: attempts between two searches for grants that ended unreleased. More often costs time, less often memory. */
const SWEEP_EVERY = 1_000

/**
 * Which attempt belongs to which owner. An owner that asks again for what it holds gets its grant again, and an owner that
 * releases by the name it asked under gives up its attempt: it may never have learned the attempt's own name.
 */
export class Attempts {
  /** By the owner of the acquisition and by that of its attempt. Mostly one each; several where an owner asked for several keys. */
  readonly #entries = new Map<string, OwnAttempt[]>()
  readonly #instance: string
  #attempts = 0
  #sinceSweep = 0

  constructor(random: () => number) {
    const digits = (): string => Math.floor((1 + random()) * 36 ** 4).toString(36)
    this.#instance = digits() + digits()
  }

  freshOwner(owner: string): string {
    return attemptOwner(owner, this.#instance, this.#attempts++)
  }

  add(entry: OwnAttempt, now: number): void {
    if (++this.#sinceSweep >= SWEEP_EVERY) this.#sweep(now)
    const before = this.find(entry.key, entry.claimedBy)
    if (before) this.remove(before)
    for (const name of [entry.claimedBy, entry.owner]) {
      const entries = this.#entries.get(name)
      if (entries) entries.push(entry)
      else this.#entries.set(name, [entry])
    }
  }

  find(key: string, name: string): OwnAttempt | undefined {
    const entries = this.#entries.get(name)
    if (entries) for (const entry of entries) if (entry.key === key) return entry
    return undefined
  }

  remove(entry: OwnAttempt): void {
    for (const name of [entry.claimedBy, entry.owner]) {
      const entries = this.#entries.get(name)
      const at = entries ? entries.indexOf(entry) : -1
      if (!entries || at < 0) continue
      if (entries.length === 1) this.#entries.delete(name)
      else entries.splice(at, 1)
    }
  }

  /** Removes grants whose holders never released them. */
  #sweep(now: number): void {
    this.#sinceSweep = 0
    for (const entry of [...this.#entries.values()].flat()) {
      if (!entry.abandon && entry.until <= now) this.remove(entry)
    }
  }
}

/** One claim in a ballot. Sets of nodes are bit masks. */
export interface BallotAttempt {
  readonly claim: Claim
  /** Fresh for each attempt. */
  readonly owner: string
  /** What this process remembers of it. */
  entry: OwnAttempt | undefined
  phase: 'voting' | 'pausing' | 'raising' | 'granted' | 'failed'
  /** Nodes whose vote was asked for and has not arrived. */
  asked: number
  held: number
  refused: number
  /** By node: who holds the key there. */
  refusals: (NodeRefusal | undefined)[]
  /** The largest counter and clock among the nodes that hold the key for us. */
  counter: number
  micros: number
  token: number
  /** Nodes that raised their counter to the guessed token together with the vote. */
  guessed: number
  /** Nodes that hold the key, whose counter went into the token, and that were not asked to raise yet. */
  raisable: number
  raising: number
  raised: number
  /** How often it waited for the votes that others are about to return. */
  pauses: number
  answer: Answer | undefined
}

export function startAttempt(claim: Claim, owner: string, nodes: number): BallotAttempt {
  return {
    claim,
    owner,
    entry: undefined,
    phase: 'voting',
    asked: 0,
    held: 0,
    refused: 0,
    refusals: new Array(nodes),
    counter: 0,
    micros: 0,
    token: 0,
    guessed: 0,
    raisable: 0,
    raising: 0,
    raised: 0,
    pauses: 0,
    answer: undefined,
  }
}

export function voteOf({ claim, owner }: BallotAttempt): Vote {
  const { key, ttlMs, weight, steal, announce, value } = claim
  return { key, owner, ttlMs, shared: weight !== ALL, steal: steal === true, announce: announce === true, value }
}

export function raiseOf({ claim, owner, token }: BallotAttempt): Raise {
  const { key, value } = claim
  return { key, owner, token, announce: claim.announce === true, value }
}

/** The node holds the key for this attempt, which is still being decided. `counter`: of the node, with this vote. */
export function countHeld(attempt: BallotAttempt, bit: number, counter: number, micros: number, raised: boolean): void {
  attempt.held |= bit
  attempt.refused &= ~bit
  if (attempt.phase === 'voting' || attempt.phase === 'pausing') {
    attempt.counter = Math.max(attempt.counter, counter)
    attempt.micros = Math.max(attempt.micros, micros)
    attempt.raisable |= bit
    if (raised) attempt.guessed |= bit
  } else if (counter < attempt.token) attempt.raisable |= bit
}

/** The vote was not sent to this node. */
export function noteUnsent(attempts: readonly BallotAttempt[], bit: number): void {
  for (const { entry } of attempts) if (entry) entry.unsent |= bit
}

/** Whether most nodes answered and they disagree. */
export function isSplit({ phase, refused, asked }: BallotAttempt, { nodes, majority }: Cluster): boolean {
  return phase === 'voting' && refused !== 0 && nodes.length - count(asked) >= majority
}

/** The guess was right: a majority has raised its counters to it already. */
export function acceptGuess(attempt: BallotAttempt, guess: number): BallotAttempt {
  attempt.phase = 'raising'
  attempt.token = guess
  attempt.raised = attempt.guessed
  return attempt
}

export function startRaise(attempt: BallotAttempt, bit: number): void {
  attempt.raisable &= ~bit
  attempt.raising |= bit
}

/** Time is up: returns the nodes that did not answer, which are not waited for any more. */
export function forgetSilent(attempt: BallotAttempt): number {
  const { phase, asked, raising } = attempt
  attempt.asked = 0
  attempt.raising = 0
  return phase === 'voting' ? asked : phase === 'raising' ? raising : 0
}

/**
 * Returns the nodes to ask again: only those that refused. A second vote where the first one held could hide that it was
 * lost in between.
 */
export function voteAgain(attempt: BallotAttempt): number {
  const again = attempt.refused
  attempt.phase = 'voting'
  attempt.asked |= again
  attempt.refused = 0
  return again
}

/** By owner: on how many of the nodes that refused us it holds the key. */
function tally({ refusals, refused }: BallotAttempt): Map<string, number> {
  const votes = new Map<string, number>()
  for (const [i, refusal] of refusals.entries()) {
    if (refusal && refused & (1 << i)) votes.set(refusal.owner, (votes.get(refusal.owner) ?? 0) + 1)
  }
  return votes
}

/**
 * Whether this attempt has the most votes of all that want the same key, and so is the one that should keep them. Among
 * equals the owners' names decide: every attempt that was answered by all nodes comes to the same conclusion.
 */
export function hasPlurality(attempt: BallotAttempt): boolean {
  const mine = count(attempt.held)
  if (mine === 0) return false
  for (const [owner, votes] of tally(attempt)) {
    if (votes > mine || (votes === mine && owner < attempt.owner)) return false
  }
  return true
}

/** MIN_SCATTER_MS: after a split vote, each loser asks again after a random part of this at least. Shorter splits the next vote too. */
const MIN_SCATTER_MS = 5

/** The answer "busy", with the holder as far as the nodes that refused us can tell. */
export function refusalOf(attempt: BallotAttempt, cluster: Cluster, elapsedMs: number): Refusal {
  const votes = [...tally(attempt)]
  if (votes.length === 0) return { granted: false, ahead: 0 }
  const [owner, most] = votes.reduce((best, next) => (next[1] > best[1] ? next : best))
  const unknown = cluster.nodes.length - count(attempt.held | attempt.refused)
  const blocker = blockerOf(
    attempt.refusals.filter((refusal, i) => refusal?.owner === owner && attempt.refused & (1 << i)) as NodeRefusal[],
  )
  // No attempt has a majority, so all of them are returning their votes. The next attempt that comes alone gets them all;
  // hence each retries at a random moment, and the more there are, the farther apart.
  if (most + unknown < cluster.majority && !blocker.foreign) {
    const scatter = Math.max(MIN_SCATTER_MS, elapsedMs * 2 * (votes.length + 1))
    blocker.ttlMs = cluster.world.random() * scatter
    // An attempt without a majority is no holder: its token and value mean nothing.
    blocker.token = blocker.value = undefined
  }
  return { granted: false, ahead: 0, blocker }
}

/** One owner as several nodes see it: what was written last counts. */
function blockerOf(refusals: readonly NodeRefusal[]): Blocker {
  const newest = refusals.reduce((best, next) => (isNewer(next, best) ? next : best))
  const { owner, token, value, foreign } = newest
  const expirations = refusals.map((refusal) => refusal.ttlMs ?? Number.POSITIVE_INFINITY)
  const ttlMs = Math.max(...expirations)
  return { owner, token, value, ttlMs: Number.isFinite(ttlMs) ? ttlMs : undefined, ...(foreign ? { foreign } : {}) }
}

/**
 * AHEAD_MS: how far ahead of the nodes' clocks a token is guessed. A request takes some time to arrive, and a guess that is
 * behind a node's clock by then costs the second round.
 */
const AHEAD_MS = 5

/**
 * Guesses tokens. A guess that is larger than every token of a majority, and not behind its clocks, is as good as a token
 * that was found by asking, and saves the second round. A wrong guess costs nothing.
 */
export class TokenGuess {
  readonly #world: World
  /** How far each node's clock is ahead of ours, in microseconds. */
  readonly #offsets: number[]
  #hasAnswers = false
  #largest = 0

  constructor(world: World, nodes: number) {
    this.#world = world
    this.#offsets = new Array<number>(nodes).fill(Number.NEGATIVE_INFINITY)
  }

  /** A node answered a request that was sent at `sentAt`. */
  observe(node: number, { counter, micros }: VoteReply, sentAt: number): void {
    this.#hasAnswers = true
    this.#offsets[node] = micros - sentAt * 1_000
    this.observeToken(counter)
  }

  /** Such a token exists. */
  observeToken(token: number): void {
    if (token > this.#largest) this.#largest = token
  }

  /** 0: no node has answered yet, so there is nothing to guess from. */
  next(): number {
    if (!this.#hasAnswers) return 0
    const clock = Math.floor(Math.max(...this.#offsets) + (this.#world.now() + AHEAD_MS) * 1_000)
    this.#largest = Math.max(this.#largest + 1, clock)
    return this.#largest
  }
}
