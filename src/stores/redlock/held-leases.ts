/**
 * Renewals and releases of leases that exist, decided by a majority.
 *
 * @module
 */
import type { LeaseId, Released, Renewal, Renewed } from '../../store.js'
import type { Attempts, OwnAttempt } from './attempts.js'
import type { BackgroundReleases } from './background-releases.js'
import type { Census } from './census.js'
import { type Cluster, type ItemAnswer, nodeAt, poll, type PollOutcome, trustedFor } from './cluster.js'
import { type Cause, Disagreement, nodeFailure } from './errors.js'
import type { NodeRelease, NodeReleased, NodeRenewal, NodeRenewed, Vote } from './node.js'

/** MAX_RENEWALS: how often a renewal is asked for while the nodes disagree, before it is answered as unknown. */
const MAX_RENEWALS = 3
/** MIN_RENEWAL_PAUSE_MS: the pause between two of them. A release that is under way has to arrive at the other nodes first. */
const MIN_RENEWAL_PAUSE_MS = 5

export interface HeldLeasesParts {
  cluster: Cluster
  census: Census
  attempts: Attempts
  releases: BackgroundReleases
  /** Whether this process watches the key. */
  hasWaiters: (key: string) => boolean
  /** How long an acquisition takes, of late, in milliseconds. */
  usualMs: () => number
}

export class HeldLeases {
  readonly #cluster: Cluster
  readonly #census: Census
  readonly #attempts: Attempts
  readonly #parts: HeldLeasesParts

  constructor(parts: HeldLeasesParts) {
    this.#cluster = parts.cluster
    this.#census = parts.census
    this.#attempts = parts.attempts
    this.#parts = parts
  }

  /** Where the nodes disagree, the lease is being released or revoked: a moment later they agree. */
  renew(renewals: readonly Renewal[], done: (answers: Renewed[]) => void, tries: number = MAX_RENEWALS): void {
    // There is no queue, so no owner has an entry in it.
    const isGone = (renewal: Renewal): boolean => renewal.queued === true || this.#isOfAnotherGrant(renewal)
    if (renewals.some(isGone)) return exceptGone(renewals, isGone, (rest, then) => this.renew(rest, then, tries), done)
    this.#renewOnce(renewals, (answers) => {
      const undecided = [...answers.keys()].filter((i) => isDisagreement(answers[i] as Renewed))
      if (undecided.length === 0 || tries <= 1) return done(answers)
      this.#cluster.world.after(Math.max(this.#parts.usualMs(), MIN_RENEWAL_PAUSE_MS), () => {
        const again = undecided.map((i) => renewals[i] as Renewal)
        const fill = (later: Renewed[]): void => {
          for (const [at, position] of undecided.entries()) answers[position] = later[at] as Renewed
          done(answers)
        }
        this.renew(again, fill, tries - 1)
      })
    })
  }

  /** Never creates. Where a majority still has the lease and a node has lost it, that node is asked to hold it again. */
  #renewOnce(renewals: readonly Renewal[], done: (answers: Renewed[]) => void): void {
    if (renewals.length === 0) return done([])
    const { world, drift } = this.#cluster
    const sentAt = world.now()
    const entries = renewals.map(({ key, owner }) => this.#attempts.find(key, owner))
    const items = renewals.map((renewal, i) => this.#renewal(renewal, entries[i]))
    const absent = new Array<number>(items.length).fill(0)
    const taken = new Array<number>(items.length).fill(0)
    let outcomes: PollOutcome[] = []
    const settle = (polled: PollOutcome[]): void => {
      outcomes = polled
      const elapsed = world.now() - sentAt
      done(
        items.map((item, i): Renewed => {
          const outcome = outcomes[i] as PollOutcome
          const ttlMs = trustedFor(item.ttlMs, drift)
          const entry = entries[i]
          if (outcome === 'no') {
            if (entry) this.#attempts.remove(entry)
            return { outcome: 'gone' }
          }
          if (outcome !== 'yes') return { outcome: 'unknown', error: outcome }
          if (elapsed >= ttlMs)
            return { outcome: 'unknown', error: new Error('the answer took longer than the ttl lasts') }
          if (entry) entry.until = Math.max(entry.until, sentAt + ttlMs)
          return { outcome: 'ours', ttlMs }
        }),
      )
    }
    this.#census.enter((error) => {
      if (error) return settle(items.map(() => error))
      poll({
        cluster: this.#cluster,
        size: items.length,
        ask: (i, answer) => this.#askRenewal(i, items, { absent, taken }, answer),
        done: settle,
        closed: () => {
          this.#restore(items, entries, outcomes, absent)
          this.#releaseLost(items, outcomes, { absent, taken })
        },
      })
    })
  }

  release(leases: readonly LeaseId[], done: (answers: Released[]) => void): void {
    const isGone = (lease: LeaseId): boolean => this.#isOfAnotherGrant(lease)
    if (leases.some(isGone)) return exceptGone(leases, isGone, (rest, then) => this.release(rest, then), done)
    if (leases.length === 0) return done([])
    const everyone = 2 ** this.#cluster.nodes.length - 1
    const entries = leases.map(({ key, owner }) => this.#attempts.find(key, owner))
    const items = leases.map(({ key, owner }, at): NodeRelease => {
      const entry = entries[at]
      if (!entry) return { key, owner, quiet: false }
      this.#attempts.remove(entry)
      entry.abandon?.()
      entry.releasing = everyone
      return { key, owner: entry.owner, quiet: false }
    })
    const subscribers = new Array<number>(items.length).fill(0)
    const answerOf = (released: NodeReleased | Error, at: number): ItemAnswer => {
      if (released instanceof Error) return () => released
      if (released === 'gone') return 'no'
      subscribers[at] = Math.max(subscribers[at] as number, released)
      return 'yes'
    }
    // This process's own subscription is no other waiter.
    const hasWaiters = ({ key }: NodeRelease, at: number): boolean =>
      (subscribers[at] as number) > (this.#parts.hasWaiters(key) ? 1 : 0)
    const releasedOf = (outcome: PollOutcome, at: number): Released => {
      if (outcome === 'yes') return { outcome: 'released', hasWaiters: hasWaiters(items[at] as NodeRelease, at) }
      return outcome === 'no' ? { outcome: 'gone' } : { outcome: 'unknown', error: outcome }
    }
    const retry = (node: number): void => this.#parts.releases.retry(node, items, this.#cluster.maxTtlMs)
    poll({
      cluster: this.#cluster,
      size: items.length,
      ask: (i, answer) => {
        if (entries.every((entry) => entry && entry.unsent & (1 << i))) return answer(() => this.#census.cause(i))
        nodeAt(this.#cluster, i).release(items, (reply) => {
          this.#releaseAgain(i, entries, reply)
          if (reply instanceof Error) {
            retry(i)
            answer(() => nodeFailure(nodeAt(this.#cluster, i), reply))
          } else answer(reply.map(answerOf))
        })
      },
      done: (outcomes) => done(outcomes.map(releasedOf)),
      // What is lost on the way to a node would stay there until its ttl ends.
      closed: (silent) => {
        for (const entry of entries) if (entry) entry.releasing = 0
        for (let i = 0; silent >> i; i++) if (silent & (1 << i)) retry(i)
      },
    })
  }

  /**
   * A vote that arrived while the release was under way was not released on its own: on one connection the release comes behind it.
   * If the release found nothing although the node has voted, it has overtaken the vote, and the key would stay until it expires.
   */
  #releaseAgain(
    i: number,
    entries: readonly (OwnAttempt | undefined)[],
    reply: readonly (NodeReleased | Error)[] | Error,
  ): void {
    const bit = 1 << i
    let found = false
    for (const [at, entry] of entries.entries()) {
      if (!entry) continue
      entry.releasing &= ~bit
      // A release that failed as a whole is tried again anyway.
      if (!(entry.lateVotes & bit) || reply instanceof Error || typeof reply[at] === 'number') continue
      found = true
      this.#parts.releases.add(bit, [entry.owner, { key: entry.key, ttlMs: this.#cluster.maxTtlMs }], false)
    }
    if (found) this.#parts.releases.flush()
  }

  /**
   * Whether a token is given that is not the one of what this owner has. Where nothing is known of it here, the nodes compare:
   * every attempt has an owner of its own there, with one token, so comparing owners is comparing tokens. (The token in the
   * entry of a node would not do: it may be a guess that was not accepted.)
   */
  #isOfAnotherGrant({ key, owner, token }: LeaseId): boolean {
    if (token === undefined) return false
    const entry = this.#attempts.find(key, owner)
    return entry !== undefined && (entry.abandon !== undefined || entry.token !== token)
  }

  #renewal({ key, owner, ttlMs, value }: Renewal, entry: OwnAttempt | undefined): NodeRenewal {
    if (entry && value !== undefined) entry.version++
    return {
      key,
      owner: entry?.owner ?? owner,
      ttlMs: Math.min(ttlMs, this.#cluster.maxTtlMs),
      token: Number(entry?.token ?? 0n),
      value,
      version: entry?.version ?? 2,
    }
  }

  #askRenewal(
    i: number,
    items: readonly NodeRenewal[],
    { absent, taken }: Missing,
    answer: (answers: readonly ItemAnswer[] | Cause) => void,
  ): void {
    const node = nodeAt(this.#cluster, i)
    const census = this.#census
    const run = census.runs[i] as string
    if (run === '') return answer(() => census.cause(i))
    node.renew({ run, items }, (reply) => {
      if (reply instanceof Error) return answer(() => nodeFailure(node, reply))
      if (!census.observe(i, reply.standing)) return answer(() => census.cause(i))
      const answers = reply.items.map((renewed: NodeRenewed | Error, at): ItemAnswer => {
        const missing = renewed === 'absent' ? absent : renewed === 'taken' ? taken : undefined
        if (missing) missing[at] = (missing[at] as number) | (1 << i)
        return renewed instanceof Error ? () => nodeFailure(node, renewed) : renewed === 'ours' ? 'yes' : 'no'
      })
      answer(answers)
    })
  }

  /**
   * Votes for a lease on the nodes where its key is missing. Without it a lease held for weeks would wear away: each node that
   * is replaced forgets it. Its holder has a majority, so nobody else can have one, and it may vote for itself.
   */
  #restore(
    items: readonly NodeRenewal[],
    entries: readonly (OwnAttempt | undefined)[],
    outcomes: readonly PollOutcome[],
    absent: readonly number[],
  ): void {
    for (const [i, run] of this.#census.runs.entries()) {
      const votes: Vote[] = []
      for (const [at, { key, owner, ttlMs }] of items.entries()) {
        const entry = entries[at]
        if (!entry || outcomes[at] !== 'yes' || !((absent[at] as number) & (1 << i))) continue
        // Released meanwhile: a vote would bring it back.
        if (this.#attempts.find(key, owner) !== entry) continue
        if (run !== '') entry.unsent &= ~(1 << i)
        votes.push({ key, owner, ttlMs, shared: entry.shared, steal: false, announce: false, value: undefined })
      }
      if (votes.length === 0 || run === '') continue
      nodeAt(this.#cluster, i).vote({ run, items: votes, token: 0, notifyWaiters: false }, () => {
        // Released or lost while the vote was on its way: it would block the key on this node until it expires.
        const ended = votes.filter(({ key, owner }) => !this.#attempts.find(key, owner))
        for (const vote of ended) this.#parts.releases.add(1 << i, [vote.owner, vote], false)
        this.#parts.releases.flush()
      })
    }
  }

  /**
   * Releases what is left of leases that a majority of the nodes does not have any more. A node that was not told of a
   * revocation keeps the key, and together with a vote that arrives late, that can be a majority which nobody holds.
   */
  #releaseLost(items: readonly NodeRenewal[], outcomes: readonly PollOutcome[], { absent, taken }: Missing): void {
    const { nodes } = this.#cluster
    for (const [at, item] of items.entries()) {
      if (outcomes[at] !== 'no') continue
      const left = (2 ** nodes.length - 1) & ~((absent[at] as number) | (taken[at] as number))
      if (left !== 0) this.#parts.releases.add(left, [item.owner, item], false)
    }
    this.#parts.releases.flush()
  }
}

/** By item: the set of nodes on which the key is absent, and of those on which another owner has it. */
interface Missing {
  absent: number[]
  taken: number[]
}

function isDisagreement(answer: Renewed): boolean {
  return answer.outcome === 'unknown' && answer.error instanceof Disagreement
}

/** Answers `gone` to some items, and asks for the others. */
function exceptGone<Item, Answered extends Renewed | Released>(
  items: readonly Item[],
  isGone: (item: Item) => boolean,
  ask: (rest: readonly Item[], done: (answers: Answered[]) => void) => void,
  done: (answers: Answered[]) => void,
): void {
  const gone = items.map(isGone)
  ask(
    items.filter((_, i) => !gone[i]),
    (answers) => {
      const rest = answers.values()
      done(gone.map((isOne) => (isOne ? ({ outcome: 'gone' } as Answered) : (rest.next().value as Answered))))
    },
  )
}
