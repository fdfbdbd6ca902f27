import { StoreUnavailableError } from '../../errors.js'
import type { World } from '../../kit/world.js'
import type { RedlockNode } from './node.js'

/** What every part of the algorithm needs to know. Sets of nodes are bit masks throughout. */
export interface Cluster {
  readonly nodes: readonly RedlockNode[]
  /** How many nodes make a majority: more than half of them, or two majorities need not meet. */
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

/**
 * How long a lease of this ttl may be trusted, counted from before the question was sent. Two milliseconds more than
 * the drift: Redis expires by whole milliseconds, and so do we.
 */
export function trustedFor(ttlMs: number, drift: number): number {
  return ttlMs - (ttlMs * drift + 2)
}

/** For what came in while this process was busy: read before the time limit is judged. */
const LAST_CALL_MS = 1

/**
 * A time limit for answers. After a busy stretch timers run before the answers that are waiting to be read; so when the
 * time is up, one more turn of the event loop passes before anybody is called silent.
 */
export function limit(world: World, ms: number, run: () => void): () => void {
  let cancel = world.after(ms, () => {
    cancel = world.after(LAST_CALL_MS, run)
  })
  return () => cancel()
}

/** A node that cannot be counted, and why. */
export class NodeError extends Error {
  readonly node: string

  constructor(node: string, reason: string, options?: ErrorOptions) {
    super(`${node} ${reason}`, options)
    this.name = 'NodeError'
    this.node = node
  }
}

/** Why a node does not count. Told only when asked: with one of five nodes gone, nobody will want to know. */
export type Cause = () => Error

/** Names every node that is missing, and says what it said. */
export function unavailable(cluster: Cluster, causes: readonly (Cause | undefined)[]): StoreUnavailableError {
  const missing = causes.filter((cause) => cause !== undefined).map((cause) => cause())
  const size = cluster.nodes.length
  const counted = `${size - missing.length} of ${size} nodes can be counted, a majority is ${cluster.majority}`
  const reasons = missing.map((cause) => cause.message).join('; ')
  return new StoreUnavailableError(`redlock: ${counted}: ${reasons}`, { cause: new AggregateError(missing, reasons) })
}

/** Enough nodes answered, and neither those that have a lease nor those that do not are a majority. */
export class Disagreement extends StoreUnavailableError {
  constructor(yes: number, no: number, majority: number) {
    super(`redlock: the nodes disagree: ${yes} have the lease and ${no} do not, a majority is ${majority}`)
  }
}

/** Why a node could not be counted, in one sentence that names it. */
export function blame(node: RedlockNode, error: Error): NodeError {
  return error instanceof NodeError
    ? error
    : new NodeError(node.name, `failed: ${error.message || error.name}`, { cause: error })
}
