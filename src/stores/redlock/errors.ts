import { StoreUnavailableError } from '../../errors.js'
import type { Failure } from '../../store.js'
import { formatDuration } from '../../util/duration.js'

/** A node that cannot be counted, and why. */
export class NodeError extends Error {
  readonly node: string

  constructor(node: string, reason: string, options?: ErrorOptions) {
    super(`${node} ${reason}`, options)
    this.name = 'NodeError'
    this.node = node
  }
}

/** The request never left this process: nothing can come of it on the node. */
export class NotSent extends NodeError {}

/** Why a node does not count. Built only when it is needed: while a majority answers, nobody reads it. */
export type Cause = () => Error

/** Why a node could not be counted, in one sentence that names it. */
export function nodeFailure({ name }: { name: string }, error: Error): NodeError {
  return error instanceof NodeError
    ? error
    : new NodeError(name, `failed: ${error.message || error.name}`, { cause: error })
}

/** A node that let its time limit pass. */
export function nodeTimeout({ name }: { name: string }, nodeTimeoutMs: number): NodeError {
  return new NodeError(name, `did not answer within ${formatDuration(nodeTimeoutMs)}`)
}

/** Names every node that is missing, and what it answered. `causes`: one per node, undefined for those that count. */
export function unavailable(majority: number, causes: readonly (Cause | undefined)[]): StoreUnavailableError {
  const missing = causes.filter((cause) => cause !== undefined).map((cause) => cause())
  const size = causes.length
  const counted = `${size - missing.length} of ${size} nodes can be counted, a majority is ${majority}`
  const reasons = missing.map((cause) => cause.message).join('; ')
  return new StoreUnavailableError(`redlock: ${counted}: ${reasons}`, { cause: new AggregateError(missing, reasons) })
}

/** Enough nodes answered, and neither those that have a lease nor those that do not are a majority. */
export class Disagreement extends StoreUnavailableError {
  constructor(yes: number, no: number, majority: number) {
    super(`redlock: the nodes disagree: ${yes} have the lease and ${no} do not, a majority is ${majority}`)
  }
}

/** A majority granted the lease, but so late that its holder could not trust it. */
export function tooLate(elapsedMs: number, ttlMs: number): Failure {
  const message = `redlock: a majority took ${Math.ceil(elapsedMs)} ms, and a lease of ${ttlMs} ms is not to be trusted after that`
  return { granted: 'unknown', error: new StoreUnavailableError(message) }
}
