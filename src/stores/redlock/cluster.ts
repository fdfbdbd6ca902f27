/**
 * All nodes together: what every part of the algorithm needs to know of them, and one request to all of them at once.
 * Sets of nodes are bit masks throughout.
 *
 * @module
 */
import type { World } from '../../util/world.js'
import { type Cause, Disagreement, nodeTimeout, unavailable } from './errors.js'
import type { RedlockNode } from './node.js'

export interface Cluster {
  readonly nodes: readonly RedlockNode[]
  /** How many nodes make a majority: more than half of them, or two majorities need not share a node. */
  readonly majority: number
  readonly world: World
  /** The longest lease. A node that lost its data sits out this long, so no lease can outlive what it forgot. */
  readonly maxTtlMs: number
  /** How much faster than ours a node's clock may run, as a share of the ttl. */
  readonly drift: number
  /** How long one node may take to answer before the others decide without it. */
  readonly nodeTimeoutMs: number
}

/** How many nodes are in a set. */
export function count(set: number): number {
  let rest = set
  let members = 0
  while (rest !== 0) {
    rest &= rest - 1
    members++
  }
  return members
}

export function nodeAt(cluster: Cluster, i: number): RedlockNode {
  return cluster.nodes[i] as RedlockNode
}

/**
 * How long a lease of this ttl may be trusted, counted from before its request was sent. Two milliseconds less than the
 * drift alone: Redis expires by whole milliseconds, and so does the holder.
 */
export function trustedFor(ttlMs: number, drift: number): number {
  return ttlMs - (ttlMs * drift + 2)
}

/**
 * LAST_READ_MS: what a time limit waits for replies that arrived while this process was busy. One turn of the event loop is
 * enough, and a timer takes a millisecond at least.
 */
const LAST_READ_MS = 1

/**
 * A time limit for answers. After a busy stretch, timers run before the replies that are waiting to be read: without one
 * more turn of the event loop, nodes that answered in time would be judged silent.
 */
export function limit(world: World, ms: number, run: () => void): () => void {
  let cancel = world.after(ms, () => {
    cancel = world.after(LAST_READ_MS, run)
  })
  return () => cancel()
}

/** The timers of one ballot: each may run again once it has fired. */
export class BallotTimers {
  readonly #world: World
  readonly #roundMs: number
  readonly #endRound: () => void
  #round: (() => void) | undefined
  #stragglers: (() => void) | undefined
  #hedge: (() => void) | undefined

  constructor(world: World, roundMs: number, endRound: () => void) {
    this.#world = world
    this.#roundMs = roundMs
    this.#endRound = endRound
  }

  /** Starts the time limit of a round anew. It holds for all nodes together. */
  startRound(): void {
    this.#round?.()
    this.#round = limit(this.#world, this.#roundMs, this.#endRound)
  }

  /** Does nothing while this limit runs: attempts of one batch share it. */
  stragglers(ms: number, run: () => void): void {
    this.#stragglers ??= limit(this.#world, ms, () => {
      this.#stragglers = undefined
      run()
    })
  }

  /** Does nothing while this timer runs. */
  hedge(ms: number, run: () => void): void {
    this.#hedge ??= this.#world.after(ms, () => {
      this.#hedge = undefined
      run()
    })
  }

  cancel(): void {
    this.#round?.()
    this.#stragglers?.()
    this.#hedge?.()
  }
}

/** What one node answers for one item: yes, no, or nothing that counts. */
export type ItemAnswer = 'yes' | 'no' | Cause

/** `yes`: a majority said so. `no`: so many said no that no majority can say yes. An error: neither, and which node said what. */
export type PollOutcome = 'yes' | 'no' | Error

export interface PollOptions {
  cluster: Cluster
  /** How many items the request has. */
  size: number
  /** Asks one node; calls back with an answer per item, or with why it has none. */
  ask: (node: number, done: (answers: readonly ItemAnswer[] | Cause) => void) => void
  done: (outcomes: PollOutcome[]) => void
  /** Called when all nodes have answered, or their time is up; with the set of those that said nothing. */
  closed?: ((silent: number) => void) | undefined
}

/** Asks all nodes at once. The outcome comes with the majority, never with the slowest node. */
export function poll({ cluster, size, ask, done, closed }: PollOptions): void {
  const { nodes, majority, world, nodeTimeoutMs } = cluster
  const everyone = 2 ** nodes.length - 1
  const yes = new Array<number>(size).fill(0)
  const no = new Array<number>(size).fill(0)
  const outcomes = new Array<PollOutcome | undefined>(size).fill(undefined)
  const causes = new Array<Cause | undefined>(nodes.length).fill(undefined)
  let undecided = size
  let answered = 0

  const decide = (item: number, outcome: PollOutcome): void => {
    if (outcomes[item] !== undefined) return
    outcomes[item] = outcome
    if (--undecided === 0) done(outcomes as PollOutcome[])
  }
  const close = (): void => {
    cancel()
    const silent = everyone & ~answered
    answered = everyone
    if (undecided > 0) {
      const error = unavailable(majority, causes)
      for (let item = 0; item < size; item++) {
        const [has, hasNot] = [count(yes[item] as number), count(no[item] as number)]
        decide(item, has + hasNot < majority ? error : new Disagreement(has, hasNot, majority))
      }
    }
    closed?.(silent)
  }
  const cancel = limit(world, nodeTimeoutMs, () => {
    for (const [i, node] of nodes.entries()) {
      if (!(answered & (1 << i))) causes[i] = () => nodeTimeout(node, nodeTimeoutMs)
    }
    close()
  })
  for (let i = 0; i < nodes.length; i++) {
    const bit = 1 << i
    ask(i, (answers) => {
      if (answered & bit) return
      answered |= bit
      if (typeof answers === 'function') causes[i] = answers
      else {
        for (const [item, answer] of answers.entries()) {
          if (answer === 'yes') yes[item] = (yes[item] as number) | bit
          else if (answer === 'no') no[item] = (no[item] as number) | bit
          else causes[i] = answer
          if (count(yes[item] as number) >= majority) decide(item, 'yes')
          else if (count(no[item] as number) > nodes.length - majority) decide(item, 'no')
        }
      }
      if (answered === everyone) close()
    })
  }
}
