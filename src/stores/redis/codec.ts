/**
 * Requests as the scripts want them, and what the scripts answer, in the words of the contract.
 *
 * @module
 */
import {
  ALL,
  type Answer,
  type Blocker,
  type Claim,
  type Failure,
  type HolderView,
  type Released,
  type Renewal,
  type Renewed,
  type TakeAnswer,
  type WaiterView,
} from '../../store.js'
import { type Reply, maybeText, text } from '../../clients/redis/adapter.js'
import { unavailable } from './errors.js'
import { statesOf } from './takes.js'

const HALF_A_DAY_MS = 43_200_000

/** Redis counts whole milliseconds. Never more than asked for, and never none. */
export function wholeMs(ms: number): number {
  return Math.max(Math.floor(ms), 1)
}

/** acquire.lua says how. An exclusive claim without further wishes, the usual one, is written as short as can be. */
export function termsOfClaim({ weight, capacity, placeMs, announce, steal, value, ttlMs }: Claim): string {
  const queueMs = placeMs !== undefined && placeMs > 0 ? String(wholeMs(placeMs)) : ''
  // Long leases take the slow path, which sees to it that the index outlives them.
  if (weight === ALL && !announce && !steal && value === undefined && ttlMs < HALF_A_DAY_MS) return queueMs
  const flags = `${announce ? 'a' : ''}${steal ? 's' : ''}${value === undefined ? '' : 'v'}`
  return `${weight}:${capacity}:${queueMs || '0'}:${flags}:${value ?? ''}`
}

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

/** The claim was not decided, because the others of its batch took long enough: it has to be asked again. */
export function isLeftOver(reply: Reply): boolean {
  return !Array.isArray(reply) && text(reply) === '+'
}

/** `heard`: what the server's clock said, in microseconds. */
export function answerOf(reply: Reply, claim: Claim, ttlMs: number, heard: (micros: number) => void): Answer {
  if (!Array.isArray(reply)) {
    const error = failureOf(reply)
    if (error) return { granted: 'unknown', error }
    return { granted: true, owner: claim.owner, token: BigInt(text(reply)), ttlMs }
  }
  const [ahead, newest, now, owner, left, token, value, foreign] = reply as Reply[]
  heard(Number(now))
  const refusal = { granted: false, ahead: Number(ahead), newest: BigInt(text(newest)) } as const
  if (owner === undefined || owner === null) return refusal
  const blocker: Blocker = { owner: text(owner), ...remaining(left), ...tokenOf(token), ...valueOf(value) }
  if (Number(foreign) === 1) blocker.foreign = true
  return { ...refusal, blocker }
}

/** The arguments of renew.lua for one lease. */
export function termsOfRenewal({ owner, token, ttlMs, value, queued }: Renewal): string[] {
  const what = queued ? '?' : value === undefined ? '' : `=${value}`
  return [owner, token === undefined ? '' : String(token), String(wholeMs(ttlMs)), what]
}

export function renewedOf(reply: Reply, ttlMs: number, heard: (micros: number) => void): Renewed {
  if (Array.isArray(reply)) {
    const [kind, token, now, ms] = reply as Reply[]
    heard(Number(now))
    if (Number(kind) === 2) return { outcome: 'granted', token: BigInt(text(token)), ttlMs: Math.max(Number(ms), 0) }
    const waiting = { outcome: 'waiting', newest: BigInt(text(token)) } as const
    if (reply.length === 3) return { ...waiting, ahead: 1 }
    return ms === null || Number(ms) < 0 ? { ...waiting, ahead: 0 } : { ...waiting, ahead: 0, blockedMs: Number(ms) }
  }
  const error = failureOf(reply)
  if (error) return { outcome: 'unknown', error }
  return Number(reply) === 1 ? { outcome: 'ours', ttlMs } : { outcome: 'gone' }
}

export function releasedOf(reply: Reply): Released {
  const error = failureOf(reply)
  if (error) return { outcome: 'unknown', error }
  return { outcome: Number(reply) === 1 ? 'released' : 'gone' }
}

/** One key, or one page of it. */
export interface KeyView {
  holders: HolderView[]
  waiters: WaiterView[]
  /** There are more of either. */
  more: boolean
}

/** As inspect.lua says it. */
export function viewOf(reply: Reply, key: string): KeyView {
  const error = failureOf(reply)
  if (error) throw error
  const [holders, waiting, waiters, more] = reply as [Reply[][], Reply, Reply[][], Reply]
  return {
    more: Number(more) === 1,
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

/** The five answers of one take. */
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
