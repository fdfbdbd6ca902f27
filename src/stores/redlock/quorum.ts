import { InvalidOptionError, UnsupportedError } from '../../errors.js'
import { ALL, type Answer, type Claim, type LeaseId, type Released, type Renewal, type Renewed } from '../../store.js'
import { Attempts, type OwnAttempt, TokenGuess } from './attempts.js'
import { BackgroundReleases } from './background-releases.js'
import { Ballot, type BallotParts } from './ballot.js'
import { Census } from './census.js'
import type { Cluster } from './cluster.js'
import { HeldLeases } from './held-leases.js'

/** The algorithm, whole: production gives it servers and the real clock, the simulation models and a virtual one. */
export class Quorum {
  readonly census: Census
  /** How long an acquisition takes, of late, in milliseconds. */
  usualMs = 1
  readonly #cluster: Cluster
  readonly #attempts: Attempts
  readonly #parts: BallotParts
  readonly #held: HeldLeases

  /** `hasWaiters`: whether this process watches the key. */
  constructor(cluster: Cluster, hasWaiters: (key: string) => boolean = () => false) {
    const attempts = new Attempts(cluster.world.random)
    const census = new Census(cluster)
    const releases = new BackgroundReleases(cluster)
    this.#cluster = cluster
    this.#attempts = attempts
    this.census = census
    this.#parts = {
      cluster,
      census,
      releases,
      guesses: new TokenGuess(cluster.world, cluster.nodes.length),
      freshOwner: (claim) => attempts.freshOwner(claim.owner),
      isHeld: ({ claim, owner }) => attempts.find(claim.key, owner) !== undefined,
      hasWaiters,
    }
    this.#held = new HeldLeases({ cluster, census, attempts, releases, hasWaiters, usualMs: () => this.usualMs })
  }

  close(): void {
    this.#parts.releases.close()
  }

  renew(renewals: readonly Renewal[], done: (answers: Renewed[]) => void): void {
    this.#held.renew(renewals, done)
  }

  release(leases: readonly LeaseId[], done: (answers: Released[]) => void): void {
    this.#held.release(leases, done)
  }

  /** One attempt each. An owner that holds what it asks for gets it again, with the same token. */
  acquire(claims: readonly Claim[], done: (answers: Answer[]) => void): void {
    if (this.#areNew(claims)) return this.#vote(claims, done)
    const repeat = firstRepeat(claims)
    if (repeat > 0) {
      // In one request, the second attempt of an owner would be refused by its first. So it is sent when the first has been
      // answered, and the claims behind it after that, so that the order of the batch is kept.
      return this.acquire(claims.slice(0, repeat), (first) => {
        this.acquire(claims.slice(repeat), (rest) => done([...first, ...rest]))
      })
    }
    const answers: (Answer | undefined)[] = claims.map((claim) => this.#unsupported(claim))
    const entries = claims.map((claim) => this.#attempts.find(claim.key, claim.owner))
    const now = this.#cluster.world.now()
    const isHeld = (entry: OwnAttempt | undefined): boolean =>
      entry !== undefined && !entry.abandon && entry.until > now
    const open = [...claims.keys()].filter((i) => !answers[i])
    const held = open.filter((i) => isHeld(entries[i]))
    const fresh = held.length === 0 ? open : open.filter((i) => !held.includes(i))
    let missing = open.length
    const fill = (positions: readonly number[], given: readonly Answer[]): void => {
      for (const [i, position] of positions.entries()) answers[position] = given[i]
      missing -= positions.length
      if (missing === 0) done(answers as Answer[])
    }
    const vote = (positions: readonly number[]): void => {
      this.#vote(
        positions.map((i) => claims[i] as Claim),
        (given) => fill(positions, given),
      )
    }
    if (open.length === 0) return done(answers as Answer[])
    if (fresh.length > 0) vote(fresh)
    if (held.length > 0) {
      const again = held.map((i) => ({ entry: entries[i] as OwnAttempt, ttlMs: (claims[i] as Claim).ttlMs }))
      this.#confirm(again, (given) => {
        const lost = held.filter((_, i) => !given[i])
        fill(
          held.filter((_, i) => given[i]),
          given.filter((answer) => answer !== undefined),
        )
        if (lost.length > 0) vote(lost)
      })
    }
  }

  /** The usual case: every claim can be served, and no owner may hold already what it asks for. */
  #areNew(claims: readonly Claim[]): boolean {
    const owners = new Set<string>()
    for (const claim of claims) {
      if (this.#unsupported(claim) || this.#attempts.find(claim.key, claim.owner)) return false
      owners.add(claim.owner)
    }
    return claims.length > 0 && owners.size === claims.length
  }

  /** The answer to a claim that this store cannot serve. */
  #unsupported({ weight, capacity, ttlMs }: Claim): Answer | undefined {
    const { maxTtlMs } = this.#cluster
    if (capacity !== ALL || (weight !== ALL && weight !== 1)) {
      const message =
        'redlock grants a whole lock or one of any number of readers; counting by majority admits too many'
      return { granted: 'unknown', error: new UnsupportedError(message) }
    }
    if (ttlMs <= maxTtlMs) return undefined
    return {
      granted: 'unknown',
      error: new InvalidOptionError('ttl', ttlMs, `at most maxTtl, which is ${maxTtlMs} ms`),
    }
  }

  #vote(claims: readonly Claim[], done: (answers: Answer[]) => void, isSecond = false): void {
    const { world, nodeTimeoutMs } = this.#cluster
    this.census.enter((error) => {
      if (error) return done(claims.map(() => ({ granted: 'unknown', error })))
      const startedAt = world.now()
      const asked = [...this.census.runs]
      const ballot = new Ballot(this.#parts, claims, (answers) => {
        const elapsed = world.now() - startedAt
        if (answers.some((answer) => answer.granted !== 'unknown')) this.#observeLatency(elapsed)
        const hasFailed = answers.some((answer) => answer.granted === 'unknown')
        // A second ballot fits into the time limit of the call only if no node has used up its own in the first.
        if (hasFailed && !isSecond && elapsed < nodeTimeoutMs)
          this.#voteAgain({ claims, entries, asked }, answers, finish)
        else finish(answers)
      })
      const finish = (answers: Answer[]): void => {
        for (const [i, answer] of answers.entries()) this.#remember(entries[i] as OwnAttempt, answer, startedAt)
        done(answers)
      }
      const entries = ballot.attempts.map((attempt): OwnAttempt => {
        const { claim, owner } = attempt
        this.#attempts.find(claim.key, claim.owner)?.abandon?.()
        const entry: OwnAttempt = {
          key: claim.key,
          claimedBy: claim.owner,
          owner,
          shared: claim.weight !== ALL,
          token: 0n,
          until: 0,
          version: 1,
          abandon: () => ballot.abandon(attempt),
          unsent: 0,
          releasing: 0,
          lateVotes: 0,
        }
        attempt.entry = entry
        this.#attempts.add(entry, startedAt)
        return entry
      })
      ballot.start()
    })
  }

  /**
   * Too few nodes could be counted, for example because one was restarted. If another node votes that was not asked, because it
   * said nothing when this process last looked, those claims are decided anew: a majority is there, so it is no outage.
   */
  #voteAgain(
    { claims, entries, asked }: { claims: readonly Claim[]; entries: readonly OwnAttempt[]; asked: readonly string[] },
    answers: Answer[],
    done: (answers: Answer[]) => void,
  ): void {
    this.census.findNewVoter(asked, (found) => {
      const isOpen = ({ key, claimedBy }: OwnAttempt, i: number): boolean =>
        // Released meanwhile: its caller wants no grant any more.
        answers[i]?.granted === 'unknown' && this.#attempts.find(key, claimedBy) === entries[i]
      const again = found ? [...entries.keys()].filter((i) => isOpen(entries[i] as OwnAttempt, i)) : []
      if (again.length === 0) return done(answers)
      const fill = (given: Answer[]): void => {
        for (const [at, position] of again.entries()) answers[position] = given[at] as Answer
        done(answers)
      }
      this.#vote(
        again.map((i) => claims[i] as Claim),
        fill,
        true,
      )
    })
  }

  /**
   * A slow acquisition weighs little: it is an exception, such as the very first. A process that took it for usual would
   * pause for so long that every other waiter asks before it.
   */
  #observeLatency(ms: number): void {
    this.usualMs += (ms - this.usualMs) / (ms > this.usualMs ? 8 : 2)
  }

  #remember(entry: OwnAttempt, answer: Answer, startedAt: number): void {
    entry.abandon = undefined
    if (answer.granted !== true) return this.#attempts.remove(entry)
    entry.token = answer.token
    entry.until = startedAt + answer.ttlMs
  }

  /** Undefined: not held any more. */
  #confirm(
    held: readonly { entry: OwnAttempt; ttlMs: number }[],
    done: (answers: (Answer | undefined)[]) => void,
  ): void {
    const renewals = held.map(({ entry, ttlMs }) => ({ key: entry.key, owner: entry.owner, ttlMs }))
    this.renew(renewals, (renewed) => {
      const answers = renewed.map((answer, i): Answer | undefined => {
        const { owner, token } = (held[i] as { entry: OwnAttempt }).entry
        if (answer.outcome === 'unknown') return { granted: 'unknown', error: answer.error }
        return answer.outcome === 'ours' ? { granted: true, owner, token, ttlMs: answer.ttlMs } : undefined
      })
      done(answers)
    })
  }
}

/** The position of the first claim for a key that its owner has asked for already, in the same batch; 0: there is none. */
function firstRepeat(claims: readonly Claim[]): number {
  const seen = new Set<string>()
  for (const [i, { key, owner }] of claims.entries()) {
    const id = JSON.stringify([key, owner])
    if (seen.has(id)) return i
    seen.add(id)
  }
  return 0
}
