import { InvalidOptionError, UnsupportedError } from '../../errors.js'
import { ALL, type Answer, type Claim, type Lease, type Released, type Renewal, type Renewed } from '../../store.js'
import { Ballot, type BallotTools } from './ballot.js'
import { Census } from './census.js'
import { Cleaner } from './cleaner.js'
import { type Cause, type Cluster, blame, trustedFor } from './cluster.js'
import { Foresight } from './foresight.js'
import type { NodeRelease, NodeReleased, NodeRenewal, NodeRenewed, Vote } from './node.js'
import { nodeAt, type Outcome, poll, type Said } from './poll.js'
import { type Entry, Register } from './register.js'

/** The algorithm, whole: production gives it servers and the real clock, the simulation models and a virtual one. */
export class Quorum {
  readonly census: Census
  /** How long it takes to be answered, of late. */
  usualMs = 1
  readonly #cluster: Cluster
  readonly #register: Register
  readonly #tools: BallotTools

  constructor(cluster: Cluster, awaited: (key: string) => boolean = () => false) {
    this.#cluster = cluster
    this.#register = new Register(cluster.world.random)
    this.census = new Census(cluster)
    this.#tools = {
      cluster,
      census: this.census,
      cleaner: new Cleaner(cluster),
      foresight: new Foresight(cluster.world, cluster.nodes.length),
      freshOwner: (claim) => this.#register.freshOwner(claim.owner),
      awaited,
    }
  }

  close(): void {
    this.#tools.cleaner.close()
  }

  /** One attempt each. Whoever holds what it asks for gets it again, with the same token. */
  acquire(claims: readonly Claim[], done: (answers: Answer[]) => void): void {
    if (this.#areNew(claims)) return this.#elect(claims, done)
    const repeat = firstRepeat(claims)
    if (repeat > 0) {
      // In one question, the second attempt of an owner would be refused by its first: it asks when that has been answered,
      // and whoever stands behind it after that, so that the order of the batch is kept.
      return this.acquire(claims.slice(0, repeat), (first) => {
        this.acquire(claims.slice(repeat), (rest) => done([...first, ...rest]))
      })
    }
    const answers: (Answer | undefined)[] = claims.map((claim) => this.#refuse(claim))
    const entries = claims.map((claim) => this.#register.find(claim.key, claim.owner))
    const now = this.#cluster.world.now()
    const isHeld = (entry: Entry | undefined): boolean => entry !== undefined && !entry.attempt && entry.until > now
    const open = [...claims.keys()].filter((i) => !answers[i])
    const held = open.filter((i) => isHeld(entries[i]))
    const fresh = held.length === 0 ? open : open.filter((i) => !held.includes(i))
    let missing = open.length
    const fill = (at: readonly number[], given: readonly Answer[]): void => {
      for (const [i, place] of at.entries()) answers[place] = given[i]
      missing -= at.length
      if (missing === 0) done(answers as Answer[])
    }
    const elect = (at: readonly number[]): void => {
      this.#elect(
        at.map((i) => claims[i] as Claim),
        (given) => fill(at, given),
      )
    }
    if (open.length === 0) return done(answers as Answer[])
    if (fresh.length > 0) elect(fresh)
    if (held.length > 0) {
      const again = held.map((i) => ({ entry: entries[i] as Entry, ttlMs: (claims[i] as Claim).ttlMs }))
      this.#confirm(again, (given) => {
        const lost = held.filter((_, i) => !given[i])
        fill(
          held.filter((_, i) => given[i]),
          given.filter((answer) => answer !== undefined),
        )
        if (lost.length > 0) elect(lost)
      })
    }
  }

  /** Never creates. Where a majority still has the lease and a node has lost it, that node is asked to hold it again. */
  renew(renewals: readonly Renewal[], done: (answers: Renewed[]) => void): void {
    // There is no queue, so nobody has an entry in it.
    const isGone = (renewal: Renewal): boolean => renewal.queued === true || this.#isOfAnotherGrant(renewal)
    if (renewals.some(isGone)) return exceptGone(renewals, isGone, (rest, then) => this.renew(rest, then), done)
    if (renewals.length === 0) return done([])
    const { world, drift } = this.#cluster
    const sentAt = world.now()
    const entries = renewals.map(({ key, owner }) => this.#register.find(key, owner))
    const items = renewals.map((renewal, i) => this.#renewal(renewal, entries[i]))
    const absent = new Array<number>(items.length).fill(0)
    let outcomes: Outcome[] = []
    const settle = (polled: Outcome[]): void => {
      outcomes = polled
      const elapsed = world.now() - sentAt
      done(
        items.map((item, i): Renewed => {
          const outcome = outcomes[i] as Outcome
          const ttlMs = trustedFor(item.ttlMs, drift)
          const entry = entries[i]
          if (outcome === 'no') {
            if (entry) this.#register.remove(entry)
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
    this.census.enter((error) => {
      if (error) return settle(items.map(() => error))
      poll({
        cluster: this.#cluster,
        size: items.length,
        ask: (i, said) => this.#askRenewal(i, items, absent, said),
        done: settle,
        closed: () => this.#mend(items, entries, outcomes, absent),
      })
    })
  }

  release(leases: readonly Lease[], done: (answers: Released[]) => void): void {
    const isGone = (lease: Lease): boolean => this.#isOfAnotherGrant(lease)
    if (leases.some(isGone)) return exceptGone(leases, isGone, (rest, then) => this.release(rest, then), done)
    if (leases.length === 0) return done([])
    const items = leases.map(({ key, owner }): NodeRelease => {
      const entry = this.#register.find(key, owner)
      if (!entry) return { key, owner, quiet: false }
      this.#register.remove(entry)
      entry.attempt?.ballot.abandon(entry.attempt.candidate)
      return { key, owner: entry.owner, quiet: false }
    })
    const listeners = new Array<number>(items.length).fill(0)
    const hear = (word: NodeReleased | Error, at: number): Said => {
      if (word instanceof Error) return () => word
      if (word === 'gone') return 'no'
      listeners[at] = Math.max(listeners[at] as number, word)
      return 'yes'
    }
    // Our own ears do not count.
    const awaited = ({ key }: NodeRelease, at: number): boolean =>
      (listeners[at] as number) > (this.#tools.awaited(key) ? 1 : 0)
    poll({
      cluster: this.#cluster,
      size: items.length,
      ask: (i, said) => {
        nodeAt(this.#cluster, i).release(items, (answer) => {
          if (answer instanceof Error) {
            this.#tools.cleaner.retry(i, items, this.#cluster.maxTtlMs)
            said(() => blame(nodeAt(this.#cluster, i), answer))
          } else said(answer.map(hear))
        })
      },
      done: (outcomes) =>
        done(
          outcomes.map((outcome, at) =>
            outcome === 'yes'
              ? { outcome: 'released', awaited: awaited(items[at] as NodeRelease, at) }
              : outcome === 'no'
                ? { outcome: 'gone' }
                : { outcome: 'unknown', error: outcome },
          ),
        ),
    })
  }

  /**
   * Whether a token is given that is not the one of what this owner has. Where nothing is known of it here, the nodes compare:
   * every attempt has an owner of its own there, with one token, so comparing owners is comparing tokens. (The token in the
   * entry of a node would not do: it may be a guess that did not hold.)
   */
  #isOfAnotherGrant({ key, owner, token }: Lease): boolean {
    if (token === undefined) return false
    const entry = this.#register.find(key, owner)
    return entry !== undefined && (entry.attempt !== undefined || entry.token !== token)
  }

  /** As nearly always: nothing to refuse, and nobody who may hold already what it asks for. */
  #areNew(claims: readonly Claim[]): boolean {
    const owners = new Set<string>()
    for (const claim of claims) {
      if (this.#refuse(claim) || this.#register.find(claim.key, claim.owner)) return false
      owners.add(claim.owner)
    }
    return claims.length > 0 && owners.size === claims.length
  }

  /** What this store cannot carry. */
  #refuse({ weight, capacity, ttlMs }: Claim): Answer | undefined {
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

  #elect(claims: readonly Claim[], done: (answers: Answer[]) => void): void {
    const { world } = this.#cluster
    this.census.enter((error) => {
      if (error) return done(claims.map(() => ({ granted: 'unknown', error })))
      const startedAt = world.now()
      const ballot = new Ballot(this.#tools, claims, (answers) => {
        if (answers.some((answer) => answer.granted !== 'unknown')) this.#tookMs(world.now() - startedAt)
        for (const [i, answer] of answers.entries()) this.#enter(entries[i] as Entry, answer, startedAt)
        done(answers)
      })
      const entries = ballot.candidates.map((candidate): Entry => {
        const { claim, owner } = candidate
        const before = this.#register.find(claim.key, claim.owner)
        before?.attempt?.ballot.abandon(before.attempt.candidate)
        const attempt = { ballot, candidate }
        const entry: Entry = {
          key: claim.key,
          claimedBy: claim.owner,
          owner,
          shared: claim.weight !== ALL,
          token: 0n,
          until: 0,
          version: 1,
          attempt,
        }
        this.#register.add(entry, startedAt)
        return entry
      })
      ballot.start()
    })
  }

  /** Slow ones are exceptions, such as the first of all: whoever judged by these would ask after everybody else. */
  #tookMs(ms: number): void {
    this.usualMs += (ms - this.usualMs) / (ms > this.usualMs ? 8 : 2)
  }

  #enter(entry: Entry, answer: Answer, startedAt: number): void {
    entry.attempt = undefined
    if (answer.granted !== true) return this.#register.remove(entry)
    entry.token = answer.token
    entry.until = startedAt + answer.ttlMs
  }

  /** Undefined: not held any more. */
  #confirm(held: readonly { entry: Entry; ttlMs: number }[], done: (answers: (Answer | undefined)[]) => void): void {
    const renewals = held.map(({ entry, ttlMs }) => ({ key: entry.key, owner: entry.owner, ttlMs }))
    this.renew(renewals, (renewed) => {
      const answers = renewed.map((answer, i): Answer | undefined => {
        const { owner, token } = (held[i] as { entry: Entry }).entry
        if (answer.outcome === 'unknown') return { granted: 'unknown', error: answer.error }
        return answer.outcome === 'ours' ? { granted: true, owner, token, ttlMs: answer.ttlMs } : undefined
      })
      done(answers)
    })
  }

  #renewal({ key, owner, ttlMs, value }: Renewal, entry: Entry | undefined): NodeRenewal {
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
    absent: number[],
    said: (words: readonly Said[] | Cause) => void,
  ): void {
    const node = nodeAt(this.#cluster, i)
    const run = this.census.runs[i] as string
    if (run === '') return said(() => this.census.cause(i))
    node.renew({ run, items }, (reply) => {
      if (reply instanceof Error) return said(() => blame(node, reply))
      if (!this.census.heard(i, reply.standing)) return said(() => this.census.cause(i))
      const words = reply.items.map((answer: NodeRenewed | Error, at): Said => {
        if (answer === 'absent') absent[at] = (absent[at] as number) | (1 << i)
        return answer instanceof Error ? () => blame(node, answer) : answer === 'ours' ? 'yes' : 'no'
      })
      said(words)
    })
  }

  /**
   * A lease held for weeks would wear away: each node that is replaced forgets it. Its holder has a majority, so nobody
   * else can, and it may vote for itself where its key is missing.
   */
  #mend(
    items: readonly NodeRenewal[],
    entries: readonly (Entry | undefined)[],
    outcomes: readonly Outcome[],
    absent: readonly number[],
  ): void {
    for (const [i, run] of this.census.runs.entries()) {
      const votes: Vote[] = []
      for (const [at, { key, owner, ttlMs }] of items.entries()) {
        const entry = entries[at]
        if (!entry || outcomes[at] !== 'yes' || !((absent[at] as number) & (1 << i))) continue
        // Released meanwhile: it would come back.
        if (this.#register.find(key, owner) !== entry) continue
        votes.push({ key, owner, ttlMs, shared: entry.shared, steal: false, announce: false, value: undefined })
      }
      if (votes.length > 0 && run !== '')
        nodeAt(this.#cluster, i).vote({ run, items: votes, token: 0, aloud: false }, () => {})
    }
  }
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

/** The place of the first claim for a key that its owner has asked for already, in the same batch; 0: there is none. */
function firstRepeat(claims: readonly Claim[]): number {
  const seen = new Set<string>()
  for (const [i, { key, owner }] of claims.entries()) {
    const id = JSON.stringify([key, owner])
    if (seen.has(id)) return i
    seen.add(id)
  }
  return 0
}
