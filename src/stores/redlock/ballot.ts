/**
 * Two rounds make a lock. Round 1 sets the key on every node where it is absent and hears each node's counter. With a
 * majority held, the token is larger than every counter heard. Round 2 raises the counters to the token on those nodes,
 * where the key is still ours; with a majority of these, within the time that the lease can be trusted, it is a grant.
 *
 * Why tokens are unique and grow: two grants share a node on which both were raised. There one held after the other, and
 * what the earlier one raised, the later one found. Hence a raise may be counted only on a node whose counter went into
 * the token.
 *
 * Mostly one round is enough: its question carries a guess, and a node whose counter is smaller raises it together with
 * its vote. With a majority of these the guess is the token, for the same reason. Otherwise it is forgotten. A steal is never
 * raised with its vote: in one batch its victim may be, to the same guess.
 *
 * @module
 */
import type { Answer, Claim, Failure, Refusal } from '../../store.js'
import { type Candidate, nominate, raiseOf, tooLate, voteOf } from './candidate.js'
import { type Census, silence } from './census.js'
import type { Cleaner } from './cleaner.js'
import { type Cause, type Cluster, blame, count, limit, trustedFor, unavailable } from './cluster.js'
import type { Foresight } from './foresight.js'
import type { RedlockNode, Vote, Votes } from './node.js'
import { leads, refusal } from './obstacles.js'

/** Where some nodes are slow and the others disagree, wait for the slow ones no longer than this times the usual. */
const PATIENCE = 3
const SHORTEST_PATIENCE_MS = 5
/** How often the one with the most votes asks again for those that the others are about to give back. */
const STAYS_AT_MOST = 3

export interface BallotTools {
  cluster: Cluster
  census: Census
  cleaner: Cleaner
  foresight: Foresight
  freshOwner: (claim: Claim) => string
  /** Whether anybody here waits for this key, or did a moment ago: then others elsewhere may too. */
  awaited: (key: string) => boolean
}

/** One attempt for each claim of a batch: one message per node and round, each claim decided on its own. */
export class Ballot {
  readonly candidates: readonly Candidate[]
  readonly #tools: BallotTools
  readonly #done: (answers: Answer[]) => void
  readonly #startedAt: number
  readonly #causes: (Cause | undefined)[]
  readonly #roundMs: number
  /**
   * One guess for all of them. Two of a batch can hold the same key if they share it, and then they may share this; or if
   * one steals it from the other, and then it goes by the counters, which the guess of its victim has raised.
   */
  readonly #guess: number
  readonly #aloud: boolean
  #votes: Vote[] | undefined
  #unsettled: number
  /** Nodes that said nothing for certain: something of ours may be there. */
  #uncertain = 0
  #cancelRound: (() => void) | undefined
  #cancelPatience: (() => void) | undefined
  #cancelHedge: (() => void) | undefined

  constructor(tools: BallotTools, claims: readonly Claim[], done: (answers: Answer[]) => void) {
    const { cluster } = tools
    this.#tools = tools
    this.#done = done
    this.#startedAt = cluster.world.now()
    this.#causes = cluster.nodes.map(() => undefined)
    this.candidates = claims.map((claim) => nominate(claim, tools.freshOwner(claim), cluster.nodes.length))
    this.#unsettled = claims.length
    const longest = claims.reduce((most, claim) => Math.max(most, claim.ttlMs), 0)
    this.#roundMs = Math.min(cluster.nodeTimeoutMs, longest)
    this.#guess = tools.foresight.next()
    this.#aloud = claims.some(({ key }) => tools.awaited(key))
  }

  /** Once, when a majority may vote. */
  start(): void {
    const { nodes } = this.#tools.cluster
    const everyone = 2 ** nodes.length - 1
    for (const candidate of this.candidates) candidate.asked = everyone
    this.#armRound()
    for (let i = 0; i < nodes.length && this.#unsettled > 0; i++) this.#askVotes(i, this.candidates)
  }

  /** The one who asked has gone: whatever comes of it is given back. */
  abandon(candidate: Candidate): void {
    if (candidate.phase === 'granted' || candidate.phase === 'failed') return
    this.#fail(candidate, { granted: false })
    this.#finish()
  }

  #askVotes(i: number, candidates: readonly Candidate[]): void {
    const { cluster, census } = this.#tools
    const node = cluster.nodes[i] as RedlockNode
    const run = census.runs[i] as string
    if (run === '') {
      this.#causes[i] = () => census.cause(i)
      return this.#countVotes(i, candidates, undefined)
    }
    // Nearly always the same for all nodes.
    const items = candidates === this.candidates ? (this.#votes ??= candidates.map(voteOf)) : candidates.map(voteOf)
    this.#uncertain |= 1 << i
    const sentAt = cluster.world.now()
    node.vote({ run, items, token: this.#guess, aloud: this.#aloud }, (reply) =>
      this.#hearVotes(i, candidates, reply, sentAt),
    )
  }

  #hearVotes(i: number, candidates: readonly Candidate[], reply: Votes | Error, sentAt: number): void {
    if (reply instanceof Error) {
      this.#causes[i] = () => blame(this.#tools.cluster.nodes[i] as RedlockNode, reply)
      return this.#countVotes(i, candidates, undefined)
    }
    this.#uncertain &= ~(1 << i)
    if (this.#tools.census.heard(i, reply.standing)) {
      this.#tools.foresight.heard(i, reply, sentAt)
      return this.#countVotes(i, candidates, reply)
    }
    this.#causes[i] = () => this.#tools.census.cause(i)
    this.#countVotes(i, candidates, undefined)
  }

  /** What one node says to all its candidates; undefined: nothing that counts. */
  #countVotes(i: number, candidates: readonly Candidate[], votes: Votes | undefined): void {
    const bit = 1 << i
    for (const [at, candidate] of candidates.entries()) {
      candidate.asked &= ~bit
      const vote = votes?.items[at]
      if (vote === undefined || vote instanceof Error) {
        if (vote) this.#causes[i] = () => blame(this.#tools.cluster.nodes[i] as RedlockNode, vote)
      } else if (typeof vote === 'string') this.#countHeld(i, candidate, votes as Votes, vote === 'raised')
      else {
        candidate.refused |= bit
        candidate.obstacles[i] = vote
      }
    }
    this.#advance(candidates)
    const { nodes, majority } = this.#tools.cluster
    const torn = ({ phase, refused, asked }: Candidate): boolean =>
      phase === 'voting' && refused !== 0 && nodes.length - count(asked) >= majority
    if (candidates.some(torn)) this.#armPatience()
  }

  #countHeld(i: number, candidate: Candidate, votes: Votes, raised: boolean): void {
    const bit = 1 << i
    const counter = raised ? this.#guess : votes.counter
    // It came after all, when nobody wanted it any more.
    if (candidate.phase === 'failed') return this.#tools.cleaner.clean(bit, [candidate.owner, candidate.claim], true)
    candidate.held |= bit
    candidate.refused &= ~bit
    if (candidate.phase === 'voting' || candidate.phase === 'staying') {
      candidate.counter = Math.max(candidate.counter, counter)
      candidate.micros = Math.max(candidate.micros, votes.micros)
      candidate.spare |= bit
      if (raised) candidate.foreseen |= bit
    } else if (counter < candidate.token) candidate.spare |= bit
  }

  /** Decides what can be decided, and sends what follows from it: one message per node for all of them. */
  #advance(candidates: readonly Candidate[]): void {
    const { majority } = this.#tools.cluster
    const elected: Candidate[] = []
    for (const candidate of candidates) {
      if (candidate.phase === 'voting') {
        const held = count(candidate.held)
        if (count(candidate.foreseen) >= majority) this.#foretold(candidate)
        else if (held >= majority) elected.push(candidate)
        else if (held + count(candidate.asked) < majority) this.#lose(candidate)
      } else if (candidate.phase === 'raising') this.#judgeRaise(candidate)
    }
    if (elected.length > 0) this.#elect(elected)
    this.#finish()
  }

  /** Guessed right: it has been raised already. */
  #foretold(candidate: Candidate): void {
    candidate.phase = 'raising'
    candidate.token = this.#guess
    candidate.raised = candidate.foreseen
    this.#judgeRaise(candidate)
  }

  #elect(candidates: readonly Candidate[]): void {
    for (const candidate of candidates) {
      candidate.phase = 'raising'
      candidate.token = Math.max(candidate.counter + 1, candidate.micros)
      this.#tools.foresight.made(candidate.token)
    }
    this.#armRound()
    this.#raise(candidates)
    // One of them may have frozen since it voted. Those that came later are as good.
    this.#cancelHedge ??= this.#tools.cluster.world.after(this.#patience, () => {
      this.#cancelHedge = undefined
      this.#raise(this.candidates)
    })
  }

  /** Round 2 on the nodes that are spare: at first the majority that was quickest, later whoever is left. */
  #raise(candidates: readonly Candidate[]): void {
    const { nodes } = this.#tools.cluster
    for (let i = 0; i < nodes.length; i++) {
      const bit = 1 << i
      const here = candidates.filter((candidate) => candidate.phase === 'raising' && candidate.spare & bit)
      if (here.length === 0) continue
      for (const candidate of here) {
        candidate.spare &= ~bit
        candidate.raising |= bit
      }
      const items = here.map(raiseOf)
      ;(nodes[i] as RedlockNode).raise(items, (reply) => this.#hearRaise(i, here, reply))
    }
  }

  #hearRaise(i: number, candidates: readonly Candidate[], reply: readonly (boolean | Error)[] | Error): void {
    const node = this.#tools.cluster.nodes[i] as RedlockNode
    const bit = 1 << i
    for (const [at, candidate] of candidates.entries()) {
      candidate.raising &= ~bit
      const raised = reply instanceof Error ? reply : reply[at]
      if (raised === true) candidate.raised |= bit
      else if (raised instanceof Error) this.#causes[i] = () => blame(node, raised)
    }
    this.#advance(candidates)
  }

  #judgeRaise(candidate: Candidate): void {
    const { majority, world, drift } = this.#tools.cluster
    const { claim, owner, token } = candidate
    const raised = count(candidate.raised)
    if (raised >= majority) {
      const elapsed = world.now() - this.#startedAt
      const ttlMs = trustedFor(claim.ttlMs, drift)
      if (elapsed < ttlMs) this.#settle(candidate, 'granted', { granted: true, owner, token: BigInt(token), ttlMs })
      else this.#fail(candidate, tooLate(elapsed, claim.ttlMs))
      return
    }
    const possible = raised + count(candidate.raising)
    if (possible >= majority) return
    if (possible + count(candidate.spare) >= majority) this.#raise([candidate])
    else if (possible + count(candidate.spare | candidate.asked) < majority)
      this.#fail(candidate, this.#verdict(candidate))
  }

  /** No majority can come of this. */
  #lose(candidate: Candidate): void {
    const { cluster } = this.#tools
    const contested = count(candidate.held | candidate.refused | candidate.asked) >= cluster.majority
    if (!contested || candidate.refused === 0) return this.#fail(candidate, this.#verdict(candidate))
    if (candidate.stays < STAYS_AT_MOST && leads(candidate)) this.#stay(candidate)
    else this.#fail(candidate, refusal(candidate, cluster, this.#elapsed))
  }

  /** Everybody has some votes and nobody enough. All see the same, so all but one give theirs back: wait for that. */
  #stay(candidate: Candidate): void {
    const { world, nodes } = this.#tools.cluster
    candidate.phase = 'staying'
    candidate.stays++
    world.after(this.#elapsed * (0.5 + world.random()) + 0.2, () => {
      if (candidate.phase !== 'staying') return
      candidate.phase = 'voting'
      // Only where it was refused: a second vote where the first one held could hide that it was lost in between.
      const again = candidate.refused
      candidate.asked |= again
      candidate.refused = 0
      this.#armRound()
      for (let i = 0; i < nodes.length; i++) if (again & (1 << i)) this.#askVotes(i, [candidate])
    })
  }

  /** Neither busy nor granted: too many nodes could not be counted, or what we held was taken away between the rounds. */
  #verdict(candidate: Candidate): Refusal | Failure {
    const { cluster } = this.#tools
    const missing = this.#causes.filter(Boolean).length
    if (cluster.nodes.length - missing >= cluster.majority) return refusal(candidate, cluster, this.#elapsed)
    return { granted: 'unknown', error: unavailable(cluster, this.#causes) }
  }

  #fail(candidate: Candidate, answer: Answer): void {
    const { cleaner, cluster } = this.#tools
    // Others may have heard that it was taken, and wait for it; what never had a majority is given back in silence.
    const quiet = candidate.phase !== 'raising' && count(candidate.held | this.#uncertain) < cluster.majority
    this.#settle(candidate, 'failed', answer)
    cleaner.clean(candidate.held | this.#uncertain, [candidate.owner, candidate.claim], quiet)
  }

  #settle(candidate: Candidate, phase: 'granted' | 'failed', answer: Answer): void {
    candidate.phase = phase
    candidate.answer = answer
    this.#unsettled--
  }

  #finish(): void {
    this.#tools.cleaner.flush()
    if (this.#unsettled !== 0) return
    this.#unsettled = -1
    this.#cancelRound?.()
    this.#cancelPatience?.()
    this.#cancelHedge?.()
    this.#done(this.candidates.map((candidate) => candidate.answer as Answer))
  }

  /** The time limit of a round, for all nodes together. A new round starts it anew. */
  #armRound(): void {
    this.#cancelRound?.()
    this.#cancelRound = limit(this.#tools.cluster.world, this.#roundMs, () => this.#giveUp())
  }

  #giveUp(): void {
    const { nodes } = this.#tools.cluster
    for (const candidate of this.candidates) {
      const silent =
        candidate.phase === 'voting' ? candidate.asked : candidate.phase === 'raising' ? candidate.raising : 0
      for (const [i, node] of nodes.entries()) {
        if (silent & (1 << i)) this.#causes[i] ??= () => silence(node, this.#roundMs)
      }
      candidate.asked = 0
      candidate.raising = 0
    }
    this.#advance(this.candidates)
    if (this.#unsettled > 0) this.#armRound()
  }

  /**
   * Most nodes answered and disagree. The slow ones could still decide it, but a frozen one must not hold up the whole
   * batch for its time limit: they get a little more than the others needed.
   */
  #armPatience(): void {
    if (this.#cancelPatience) return
    this.#cancelPatience = limit(this.#tools.cluster.world, this.#patience, () => {
      this.#cancelPatience = undefined
      for (const candidate of this.candidates) {
        if (candidate.phase === 'voting' && candidate.refused !== 0) candidate.asked = 0
      }
      this.#advance(this.candidates)
    })
  }

  get #patience(): number {
    return Math.max(SHORTEST_PATIENCE_MS, this.#elapsed * PATIENCE)
  }

  get #elapsed(): number {
    return this.#tools.cluster.world.now() - this.#startedAt
  }
}
