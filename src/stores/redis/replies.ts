/**
 * What the scripts answer, in the words of the contract.
 *
 * @module
 */
import type {
  Answer,
  Blocker,
  Claim,
  Failure,
  HolderView,
  Released,
  Renewed,
  TakeAnswer,
  WaiterView,
} from '../../store.js'
import { type Reply, maybeText, text } from '../../clients/redis/adapter.js'
import { statesOf } from './takes.js'
import { unavailable } from './trouble.js'

/** A lone answer is not in a list: the usual case spares the client a nested reply. */
export function answersOf(reply: Reply, count: number): Reply[] {
  return count === 1 ? [reply] : (reply as Reply[])
}

/** `!` and the error, for an item that failed by itself. */
function failureOf(reply: Reply): Error | undefined {
  if (typeof reply === 'number' || Array.isArray(reply)) return undefined
  const said = text(reply)
  return said.startsWith('!') ? unavailable(new Error(said.slice(1))) : undefined
}

/** `@` and the server's time, for a question that arrived after its asker had given up. */
export function tooLate(reply: Reply): number | undefined {
  if (Array.isArray(reply)) return undefined
  const said = text(reply)
  return said.startsWith('@') ? Number(said.slice(1)) : undefined
}

export function answerOf(reply: Reply, claim: Claim, ttlMs: number): Answer {
  if (!Array.isArray(reply)) {
    const error = failureOf(reply)
    if (error) return { granted: 'unknown', error }
    return { granted: true, owner: claim.owner, token: BigInt(text(reply)), ttlMs }
  }
  const [ahead, owner, left, token, value, foreign] = reply as Reply[]
  if (owner === undefined || owner === null) return { granted: false, ahead: Number(ahead) }
  const blocker: Blocker = { owner: text(owner), ...remaining(left), ...tokenOf(token), ...valueOf(value) }
  if (Number(foreign) === 1) blocker.foreign = true
  return { granted: false, ahead: Number(ahead), blocker }
}

export function renewedOf(reply: Reply, ttlMs: number): Renewed {
  const error = failureOf(reply)
  if (error) return { outcome: 'unknown', error }
  return Number(reply) === 1 ? { outcome: 'ours', ttlMs } : { outcome: 'gone' }
}

export function releasedOf(reply: Reply): Released {
  const error = failureOf(reply)
  if (error) return { outcome: 'unknown', error }
  return { outcome: Number(reply) === 1 ? 'released' : 'gone' }
}

/** One key, as look.lua sees it. */
export function viewOf(reply: Reply, key: string): { holders: HolderView[]; waiters: WaiterView[] } {
  const error = failureOf(reply)
  if (error) throw error
  const [holders, waiting, waiters] = reply as [Reply[][], Reply, Reply[][]]
  return {
    holders: holders.map((row) => holderOf(row, key, Number(waiting))),
    waiters: waiters.map(([owner, weight, capacity, waited, value]) => ({
      key,
      owner: text(owner),
      weight: Number(weight),
      capacity: Number(capacity),
      waitedMs: Number(waited),
      ...valueOf(value),
    })),
  }
}

function holderOf(row: Reply[], key: string, waiting: number): HolderView {
  const [owner, weight, capacity, token, left, held, value, foreign] = row
  const view: HolderView = {
    key,
    owner: text(owner),
    weight: Number(weight),
    capacity: Number(capacity),
    ...tokenOf(token),
    ...remaining(left),
    ...valueOf(value),
    waiting,
  }
  if (held !== null && held !== undefined) view.heldMs = Number(held)
  if (Number(foreign) === 1) view.foreign = true
  return view
}

/** The four numbers of one take. */
export function takenOf(replies: readonly Reply[], at: number): TakeAnswer | Failure {
  const error = failureOf(replies[at])
  if (error) return { granted: 'unknown', error }
  const retryAfter = Number(replies[at + 2])
  const limits = statesOf(replies[at + 4])
  return {
    ...(limits ? { limits } : {}),
    allowed: Number(replies[at]) === 1,
    remaining: Number(replies[at + 1]),
    retryAfterMs: retryAfter < 0 ? Number.POSITIVE_INFINITY : retryAfter / 1_000,
    resetMs: Number(replies[at + 3]) / 1_000,
  }
}

/** -1: a key without expiry. -2: it ended while we looked. */
function remaining(left: Reply): { ttlMs?: number } {
  const ms = Number(left)
  return left === null || left === undefined || ms === -1 ? {} : { ttlMs: Math.max(ms, 0) }
}

function tokenOf(token: Reply): { token?: bigint } {
  const said = maybeText(token)
  return said === undefined ? {} : { token: BigInt(said) }
}

function valueOf(value: Reply): { value?: string } {
  const said = maybeText(value)
  return said === undefined ? {} : { value: said }
}
