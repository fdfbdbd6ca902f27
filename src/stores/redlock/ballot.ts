/**
 * Two rounds make a lock. Round 1 sets the key on every node where it is absent and reads each node's counter. With a
 * majority held, the token is larger than every counter read. Round 2 raises the counters to the token on those nodes,
 * where the key is still ours; with a majority of these, within the time that the lease can be trusted, it is a grant.
 *
 * Why tokens are unique and grow: two grants share a node on which both were raised. There one held after the other, and
 * what the earlier one raised, the later one found. Hence a raise may be counted only on a node whose counter went into
 * the token.
 *
 * Mostly one round is enough: its request carries a guess, and a node whose counter is smaller raises it together with
 * its vote. With a majority of these the guess is the token, for the same reason. Otherwise it is forgotten. A steal is never
 * raised with its vote: in one batch its victim may be, to the same guess.
 *
 * @module
 */
import type { Answer, Claim, Failure, Refusal } from '../../store.js'
import { type BallotAttempt, countHeld, hasPlurality, isSplit, raiseOf, refusalOf, startAttempt } from './attempts.js'
import { acceptGuess, forgetSilent, noteUnsent, startRaise, type TokenGuess, voteAgain, voteOf } from './attempts.js'
import type { BackgroundReleases } from './background-releases.js'
import type { Census } from './census.js'
import { BallotTimers, type Cluster, count, nodeAt, trustedFor } from './cluster.js'
import { type Cause, nodeFailure, nodeTimeout, NotSent, tooLate, unavailable } from './errors.js'
import type { Vote, VoteReply } from './node.js'

/** STRAGGLER_FACTOR: where most nodes answered and disagree, the slow ones get this times what the others needed. */
const STRAGGLER_FACTOR = 3
/** MIN_STRAGGLER_MS: the least that slow nodes get. Less than a timer's precision would leave them out by chance. */
const MIN_STRAGGLER_MS = 5
/**
 * MAX_PAUSES: how often the attempt with the most votes asks again for those that the others are about to return. After
 * that it retries like the others: a holder that died may never return its votes.
 */
const MAX_PAUSES = 3

export interface BallotParts {
  cluster: Cluster
  census: Census
  releases: BackgroundReleases
  guesses: TokenGuess
  freshOwner: (claim: Claim) => string
  /** Whether the lease of an attempt that was granted has not ended since. */
  isHeld: (attempt: BallotAttempt) => boolean
  /** Whether this process watches the key, or did a moment ago: then other processes may wait for it too. */
  hasWaiters: (key: string) => boolean
}

/** One attempt for each claim of a batch: one message per node and round, each claim decided on its own. */
export class Ballot {
  readonly attempts: readonly BallotAttempt[]
  readonly #parts: BallotParts
  readonly #done: (answers: Answer[]) => void
  readonly #startedAt: number
  /** When votes were last asked for. */
  #roundAt: number
  readonly #causes: (Cause | undefined)[]
  readonly #roundMs: number
  readonly #timers: BallotTimers
  /**
   * One guess for all of them. Two of a batch can hold the same key if they share it, and then they may share this; or if
   * one steals it from the other, and then its token comes from the counters, which the guess of its victim has raised.
   */
  readonly #guess: number
  readonly #notifyWaiters: boolean
  #votes: Vote[] | undefined
  #unsettled: number
  /** Nodes whose last answer is missing: something of ours may be there. */
  #uncertain = 0

  constructor(parts: BallotParts, claims: readonly Claim[], done: (answers: Answer[]) => void) {
    const { cluster } = parts
    this.#parts = parts
    this.#done = done
    this.#startedAt = this.#roundAt = cluster.world.now()
    this.#causes = cluster.nodes.map(() => undefined)
    this.attempts = claims.map((claim) => startAttempt(claim, parts.freshOwner(claim), cluster.nodes.length))
    this.#unsettled = claims.length
    this.#roundMs = Math.min(cluster.nodeTimeoutMs, Math.max(0, ...claims.map(({ ttlMs }) => ttlMs)))
    this.#timers = new BallotTimers(cluster.world, this.#roundMs, () => this.#endRound())
    this.#guess = parts.guesses.next()
    this.#notifyWaiters = claims.some(({ key }) => parts.hasWaiters(key))
  }

  /** Called once, when a majority may vote. */
  start(): void {
    const { nodes } = this.#parts.cluster
    for (const attempt of this.attempts) attempt.asked = 2 ** nodes.length - 1
    this.#startRound()
    for (let i = 0; i < nodes.length && this.#unsettled > 0; i++) this.#askVotes(i, this.attempts)
  }

  #startRound(): void {
    this.#roundAt = this.#parts.cluster.world.now()
    this.#timers.startRound()
  }

  /** The caller has given up: whatever comes of this attempt is released. */
  abandon(attempt: BallotAttempt): void {
    if (attempt.phase === 'granted' || attempt.phase === 'failed') return
    this.#fail(attempt, { granted: false })
    this.#finish()
  }

  #askVotes(i: number, attempts: readonly BallotAttempt[]): void {
    const { cluster, census } = this.#parts
    const run = census.runs[i] as string
    if (run === '') {
      this.#causes[i] = () => census.cause(i)
      noteUnsent(attempts, 1 << i)
      return this.#countVotes(i, attempts, undefined)
    }
    // Nearly always the same for all nodes: encoding them once depends on it being the same array.
    const items = attempts === this.attempts ? (this.#votes ??= attempts.map(voteOf)) : attempts.map(voteOf)
    this.#uncertain |= 1 << i
    const sentAt = cluster.world.now()
    const request = { run, items, token: this.#guess, notifyWaiters: this.#notifyWaiters }
    nodeAt(cluster, i).vote(request, (reply) => this.#handleVotes(i, attempts, reply, sentAt))
  }

  #handleVotes(i: number, attempts: readonly BallotAttempt[], reply: VoteReply | Error, sentAt: number): void {
    const { cluster, census, guesses } = this.#parts
    if (reply instanceof Error) {
      this.#causes[i] = () => nodeFailure(nodeAt(cluster, i), reply)
      // Who is asked a second time has refused before: nothing of ours is there either.
      if (reply instanceof NotSent) noteUnsent(attempts, 1 << i)
      return this.#countVotes(i, attempts, undefined)
    }
    this.#uncertain &= ~(1 << i)
    const counts = census.observe(i, reply.standing)
    if (counts) guesses.observe(i, reply, sentAt)
    else this.#causes[i] = () => census.cause(i)
    this.#countVotes(i, attempts, counts ? reply : undefined)
  }

  /** What one node answers to all its attempts; undefined: nothing that counts. */
  #countVotes(i: number, attempts: readonly BallotAttempt[], reply: VoteReply | undefined): void {
    const { cluster } = this.#parts
    const bit = 1 << i
    for (const [at, attempt] of attempts.entries()) {
      attempt.asked &= ~bit
      const vote = reply?.items[at]
      if (vote === undefined || vote instanceof Error) {
        if (vote) this.#causes[i] = () => nodeFailure(nodeAt(cluster, i), vote)
      } else if (typeof vote === 'string') this.#countHeld(bit, attempt, reply as VoteReply, vote === 'raised')
      else {
        attempt.refused |= bit
        attempt.refusals[i] = vote
      }
    }
    this.#advance(attempts)
    if (attempts.some((attempt) => isSplit(attempt, cluster))) this.#limitStragglers()
  }

  #countHeld(bit: number, attempt: BallotAttempt, { counter, micros }: VoteReply, raised: boolean): void {
    const { owner, claim, phase } = attempt
    // The vote arrived after the attempt had failed, or after its lease had ended: it would block the key until it expires.
    if (phase === 'failed') return this.#parts.releases.add(bit, [owner, claim], true)
    if (phase === 'granted' && !this.#parts.isHeld(attempt)) {
      const { entry } = attempt
      // A release is on its way to this node, mostly behind the vote: its answer tells whether another one is needed.
      if (entry && entry.releasing & bit) entry.lateVotes |= bit
      else this.#parts.releases.add(bit, [owner, claim], false)
      return
    }
    countHeld(attempt, bit, raised ? this.#guess : counter, micros, raised)
  }

  /** Decides what can be decided, and sends what follows from it: one message per node for all of them. */
  #advance(attempts: readonly BallotAttempt[]): void {
    const { majority } = this.#parts.cluster
    const elected: BallotAttempt[] = []
    for (const attempt of attempts) {
      if (attempt.phase === 'voting') {
        const held = count(attempt.held)
        if (count(attempt.guessed) >= majority) this.#decideRaise(acceptGuess(attempt, this.#guess))
        else if (held >= majority) elected.push(attempt)
        else if (held + count(attempt.asked) < majority) this.#lose(attempt)
      } else if (attempt.phase === 'raising') this.#decideRaise(attempt)
    }
    if (elected.length > 0) this.#elect(elected)
    this.#finish()
  }

  #elect(attempts: readonly BallotAttempt[]): void {
    for (const attempt of attempts) {
      attempt.phase = 'raising'
      attempt.token = Math.max(attempt.counter + 1, attempt.micros)
      this.#parts.guesses.observeToken(attempt.token)
    }
    this.#timers.startRound()
    this.#raise(attempts)
    // A node may have frozen since it voted. Nodes that voted later are as good, and are asked after a while.
    this.#timers.hedge(this.#stragglerMs, () => this.#raise(this.attempts))
  }

  /** Round 2 on all nodes that can be raised: at first the majority that was quickest, later the others. */
  #raise(attempts: readonly BallotAttempt[]): void {
    const { cluster } = this.#parts
    for (let i = 0; i < cluster.nodes.length; i++) {
      const bit = 1 << i
      const here = attempts.filter((attempt) => attempt.phase === 'raising' && attempt.raisable & bit)
      if (here.length === 0) continue
      for (const attempt of here) startRaise(attempt, bit)
      nodeAt(cluster, i).raise(here.map(raiseOf), (reply) => this.#handleRaise(i, here, reply))
    }
  }

  #handleRaise(i: number, attempts: readonly BallotAttempt[], reply: readonly (boolean | Error)[] | Error): void {
    const node = nodeAt(this.#parts.cluster, i)
    const bit = 1 << i
    for (const [at, attempt] of attempts.entries()) {
      attempt.raising &= ~bit
      const raised = reply instanceof Error ? reply : reply[at]
      if (raised === true) attempt.raised |= bit
      else if (raised instanceof Error) this.#causes[i] = () => nodeFailure(node, raised)
    }
    this.#advance(attempts)
  }

  #decideRaise(attempt: BallotAttempt): void {
    const { majority, drift } = this.#parts.cluster
    const { claim, owner, token } = attempt
    const raised = count(attempt.raised)
    if (raised >= majority) {
      const elapsed = this.#elapsed
      const ttlMs = trustedFor(claim.ttlMs, drift)
      if (elapsed < ttlMs) this.#settle(attempt, 'granted', { granted: true, owner, token: BigInt(token), ttlMs })
      else this.#fail(attempt, tooLate(elapsed, claim.ttlMs))
      return
    }
    const possible = raised + count(attempt.raising)
    if (possible >= majority) return
    if (possible + count(attempt.raisable) >= majority) this.#raise([attempt])
    else if (possible + count(attempt.raisable | attempt.asked) < majority) this.#fail(attempt, this.#answerTo(attempt))
  }

  /** No majority can come of this. */
  #lose(attempt: BallotAttempt): void {
    const { cluster } = this.#parts
    const contested = count(attempt.held | attempt.refused | attempt.asked) >= cluster.majority
    if (!contested || attempt.refused === 0) return this.#fail(attempt, this.#answerTo(attempt))
    if (attempt.pauses < MAX_PAUSES && hasPlurality(attempt)) this.#pause(attempt)
    else this.#fail(attempt, refusalOf(attempt, cluster, this.#elapsed))
  }

  /** Each attempt has some votes and none has enough. All see the same, so all but one release theirs: wait for that. */
  #pause(attempt: BallotAttempt): void {
    const { world, nodes } = this.#parts.cluster
    attempt.phase = 'pausing'
    attempt.pauses++
    // The others need about one round for it. Longer pauses would use up short waits, and report a busy key as an outage.
    const roundMs = world.now() - this.#roundAt
    world.after(roundMs * (0.5 + world.random()) + 0.2, () => {
      if (attempt.phase !== 'pausing') return
      const again = voteAgain(attempt)
      this.#startRound()
      for (let i = 0; i < nodes.length; i++) if (again & (1 << i)) this.#askVotes(i, [attempt])
    })
  }

  /** Unknown if too many nodes could not be counted; refused if what we held was taken away between the rounds. */
  #answerTo(attempt: BallotAttempt): Refusal | Failure {
    const { cluster } = this.#parts
    const missing = this.#causes.filter(Boolean).length
    if (cluster.nodes.length - missing >= cluster.majority) return refusalOf(attempt, cluster, this.#elapsed)
    return { granted: 'unknown', error: unavailable(cluster.majority, this.#causes) }
  }

  #fail(attempt: BallotAttempt, answer: Answer): void {
    const { releases, cluster } = this.#parts
    // An attempt that had a majority may have been announced as taken, and its release has to wake the waiters again. One
    // that never had a majority was believed by no waiter, and is released without a notification.
    const quiet = attempt.phase !== 'raising' && count(attempt.held | this.#uncertain) < cluster.majority
    this.#settle(attempt, 'failed', answer)
    releases.add(attempt.held | this.#uncertain, [attempt.owner, attempt.claim], quiet)
  }

  #settle(attempt: BallotAttempt, phase: 'granted' | 'failed', answer: Answer): void {
    attempt.phase = phase
    attempt.answer = answer
    this.#unsettled--
  }

  #finish(): void {
    this.#parts.releases.flush()
    if (this.#unsettled !== 0) return
    this.#unsettled = -1
    this.#timers.cancel()
    this.#done(this.attempts.map((attempt) => attempt.answer as Answer))
  }

  #endRound(): void {
    for (const attempt of this.attempts) {
      const silent = forgetSilent(attempt)
      for (const [i, node] of this.#parts.cluster.nodes.entries()) {
        if (silent & (1 << i)) this.#causes[i] ??= () => nodeTimeout(node, this.#roundMs)
      }
    }
    this.#advance(this.attempts)
    if (this.#unsettled > 0) this.#timers.startRound()
  }

  /**
   * Most nodes answered and disagree. The slow ones could still decide it, but a frozen one must not hold up the whole
   * batch for its time limit: they get a little more than the others needed.
   */
  #limitStragglers(): void {
    this.#timers.stragglers(this.#stragglerMs, () => {
      for (const attempt of this.attempts) {
        if (attempt.phase === 'voting' && attempt.refused !== 0) attempt.asked = 0
      }
      this.#advance(this.attempts)
    })
  }

  get #stragglerMs(): number {
    return Math.max(MIN_STRAGGLER_MS, this.#elapsed * STRAGGLER_FACTOR)
  }

  get #elapsed(): number {
    return this.#parts.cluster.world.now() - this.#startedAt
  }
}
