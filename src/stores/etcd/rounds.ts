/**
 * Which claims of a call are decided together, in the same transaction and in the same round.
 *
 * @module
 */
import { type Attempt, MOST_ENDED } from './attempt.js'
import { encodeRecord } from './codec.js'
import type { Directory } from './directory.js'
import { inPartsOf, MOST_BYTES, tooLarge } from './sizes.js'

/** Claims decided in one transaction: etcd takes 128 operations, and smaller ones let client and server work at the same time. */
const AT_ONCE = 40
/** Claims of one key that enter its queue in one transaction. */
const MOST_QUEUED = 100

/** One claim of each key, because two must not be decided on the same reading; or several that can only enter its queue. */
export function byKey(attempts: readonly Attempt[]): Attempt[][] {
  const groups = new Map<string, Attempt[]>()
  for (const attempt of attempts) {
    const group = groups.get(attempt.claim.key)
    if (!group) groups.set(attempt.claim.key, [attempt])
    else if (canJoin(attempt, group)) group.push(attempt)
  }
  for (const group of groups.values()) {
    for (const [i, attempt] of group.entries()) attempt.readsBack = i === group.length - 1
  }
  return [...groups.values()]
}

/** An owner once: a transaction must not write a key twice. */
function canJoin(attempt: Attempt, group: readonly Attempt[]): boolean {
  if (!attempt.onlyQueues || !group[0]?.onlyQueues) return false
  if (group.some(({ claim }) => claim.owner === attempt.claim.owner)) return false
  return inPartsOf([...group, attempt], MOST_QUEUED, ({ size }) => size).length === 1
}

/** Transactions of about AT_ONCE claims, without tearing those of one key apart: their order is the order of the queue. */
export function inParts(groups: readonly Attempt[][]): Attempt[][] {
  const parts: Attempt[][] = []
  const common: Attempt[] = []
  for (const group of groups) {
    const [first, ...others] = group
    if (!first) continue
    // Several of one key, or a steal, whose holders are more operations than a transaction has left beside others.
    if (others.length > 0 || first.claim.steal) parts.push(group)
    else common.push(first)
  }
  return [...parts, ...inPartsOf(common, AT_ONCE, ({ size }) => size)]
}

/** What was read for a claim that was refused tells the others of the same key that they have to wait too. */
export function shareReading(groups: readonly Attempt[][], open: readonly Attempt[]): void {
  const readings = new Map<string, Directory>()
  for (const { answer, directory, claim } of groups.flat()) {
    if (answer?.granted === false && directory) readings.set(claim.key, directory)
  }
  for (const attempt of open) if (!attempt.answer) attempt.directory ??= readings.get(attempt.claim.key)
}

/** Whether all fit, also those that name the same key. */
export function areAdmitted(attempts: readonly Attempt[]): boolean {
  const taken = new Map<string, number>()
  return attempts.every((attempt) => {
    if (attempt.own?.record?.state === 'held') return true
    const { key, weight } = attempt.claim
    const besides = taken.get(key) ?? 0
    taken.set(key, besides + weight)
    return attempt.isAdmitted(besides)
  })
}

/** Why they cannot be taken in one step. Found before anything is touched: etcd would refuse it after leases were asked for. */
export function impossibleTogether(attempts: readonly Attempt[]): Error | undefined {
  const bytes = attempts.reduce((sum, { size }) => sum + size, 0)
  if (bytes <= MOST_BYTES) return undefined
  return tooLarge('metadata', Buffer.concat(attempts.map((attempt) => encodeRecord(attempt.record('held')))))
}

/** Those that take their key by force, if the holders of all are too many for one transaction. */
export function tooManyHolders(attempts: readonly Attempt[]): Attempt[] {
  const stealing = attempts.filter(({ claim, directory }) => claim.steal && directory)
  const holders = stealing.reduce((sum, { victims }) => sum + victims.length, 0)
  return holders > MOST_ENDED ? stealing.filter(({ victims }) => victims.length > 0) : []
}
