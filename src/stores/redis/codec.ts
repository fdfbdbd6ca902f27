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
  type LeaseId,
  type Limit,
  type LimitState,
  type Released,
  type TakeAnswer,
  type TakeRequest,
  type WaiterView,
} from '../../store.js'
import { type RedisReply, maybeText, text } from '../../clients/redis/adapter.js'
import { StoreUnavailableError } from '../../errors.js'
import { unavailable } from './errors.js'
import { RESERVED_TOKENS } from './grant-inbox.js'
import { ALGORITHM_CODES, type Keys } from './keys.js'

/** The answers to the items of a call that failed. */
export const undecided = (error: unknown): Failure => ({ granted: 'unknown', error })
export const unknown = (error: unknown): { outcome: 'unknown'; error: unknown } => ({ outcome: 'unknown', error })

/** HALF_A_DAY_MS: from here on a lease might outlive its index, unless the slow path prolongs the index. */
const HALF_A_DAY_MS = 43_200_000

/** Redis counts whole milliseconds. Never more than asked for, and never none. */
export function wholeMs(ms: number): number {
  return Math.max(Math.floor(ms), 1)
}

/** An exclusive claim without further wishes. Long leases take the slow path, which sees to it that the index outlives them. */
function isSimple({ weight, announce, steal, value, ttlMs }: Claim): boolean {
  return weight === ALL && !announce && !steal && value === undefined && ttlMs < HALF_A_DAY_MS
}

function queueTerm(queueMs: number | undefined): string {
  return queueMs !== undefined && queueMs > 0 ? String(wholeMs(queueMs)) : ''
}

function termsOfClaim(claim: Claim): string {
  const entry = queueTerm(claim.queueMs)
  if (isSimple(claim) && !claim.tokens) return entry
  const { weight, capacity, announce, steal, value, tokens } = claim
  const flags = `${announce ? 'a' : ''}${steal ? 's' : ''}${value === undefined ? '' : 'v'}${tokens ? 't' : ''}`
  return `${weight}:${capacity}:${entry || '0'}:${flags}:${value ?? ''}`
}

/** The arguments of acquire.lua, which says how. Most claims want the same: that is said once, and written once per deadline. */
export class AcquireHeader {
  #deadline = ''
  #subscriber = ''
  #queueMs: number | undefined
  #text = ''

  argsOf(claims: readonly Claim[], atomic: boolean, deadline: string, subscriber: string): string[] {
    const { ttlMs, queueMs, tokens } = claims[0] as Claim
    const isLone = claims.length === 1
    let uniform = !atomic
    for (let i = 0; uniform && i < claims.length; i++) {
      const claim = claims[i] as Claim
      uniform = claim.ttlMs === ttlMs && claim.queueMs === queueMs && isSimple(claim) && (isLone || !claim.tokens)
    }
    if (!uniform) {
      const args = [`${atomic ? '*' : '-'}${deadline}|:${subscriber}`]
      for (const claim of claims) args.push(claim.owner, String(wholeMs(claim.ttlMs)), termsOfClaim(claim))
      return args
    }
    const header = this.#uniform(deadline, subscriber, queueMs)
    const args = [tokens ? `+${header.slice(1)}` : header, String(wholeMs(ttlMs))]
    for (const { owner } of claims) args.push(owner)
    return args
  }

  #uniform(deadline: string, subscriber: string, queueMs: number | undefined): string {
    const isSame = deadline === this.#deadline && subscriber === this.#subscriber && queueMs === this.#queueMs
    if (isSame && this.#text !== '') return this.#text
    this.#deadline = deadline
    this.#subscriber = subscriber
    this.#queueMs = queueMs
    this.#text = `=${deadline}|${queueTerm(queueMs)}:${subscriber}`
    return this.#text
  }
}

/** A lone answer is not in a list: the usual case spares the client a nested reply. */
export function answersOf(reply: RedisReply, count: number): RedisReply[] {
  return count === 1 ? [reply] : (reply as RedisReply[])
}

/** A reply that answers several items at once, each with the same. */
const isForAll = (reply: RedisReply, count: number): boolean => count > 1 && !Array.isArray(reply)

/** True: the one reply 1 says yes to all `count` items. Throws for another single reply, which answers none of them. */
export function isYesForAll(reply: RedisReply, count: number): boolean {
  if (!isForAll(reply, count)) return false
  if (Number(reply) === 1) return true
  throw new StoreUnavailableError(`redis answered ${count} requests with one reply that is not 1`)
}

/** `!` and the error, for an item that failed by itself. */
export function failureOf(reply: RedisReply): Error | undefined {
  if (typeof reply === 'number' || Array.isArray(reply)) return undefined
  const said = text(reply)
  return said.startsWith('!') ? unavailable(new Error(said.slice(1))) : undefined
}

/** `@` and the server's time, for a question that arrived after its asker had given up. */
export function tooLate(reply: RedisReply): number | undefined {
  if (Array.isArray(reply)) return undefined
  const said = text(reply)
  return said.startsWith('@') ? Number(said.slice(1)) : undefined
}

/** The claim was not decided, because the others of its batch took long enough: it has to be asked again. */
function isLeftOver(reply: RedisReply): boolean {
  return !Array.isArray(reply) && text(reply) === '+'
}

/** The answers of acquire.lua to these claims, up to the first one that is left over. */
export function answersToClaims(
  reply: RedisReply,
  claims: readonly Claim[],
  heard: (micros: number) => void,
): Answer[] {
  if (isForAll(reply, claims.length)) return grantsFrom(BigInt(text(reply)), claims)
  const replies = answersOf(reply, claims.length)
  const left = claims.length > 1 && isLeftOver(replies.at(-1)) ? replies.findIndex(isLeftOver) : claims.length
  const answers: Answer[] = []
  for (let i = 0; i < left; i++) answers.push(answerOf(replies[i], claims[i] as Claim, heard))
  return answers
}

/** All granted, with this token and those that follow it. */
function grantsFrom(first: bigint, claims: readonly Claim[]): Answer[] {
  let token = first
  return claims.map(({ owner, ttlMs }) => ({ granted: true, owner, token: token++, ttlMs: wholeMs(ttlMs) }))
}

/** `heard`: what the server's clock said, in microseconds. */
function answerOf(reply: RedisReply, claim: Claim, heard: (micros: number) => void): Answer {
  if (!Array.isArray(reply)) {
    const error = failureOf(reply)
    if (error) return { granted: 'unknown', error }
    const said = text(reply)
    const { owner } = claim
    const ttlMs = wholeMs(claim.ttlMs)
    // Written out: spreading shows in the price of a lock.
    if (!said.endsWith('+')) return { granted: true, owner, token: BigInt(said), ttlMs }
    return { granted: true, owner, token: BigInt(said.slice(0, -1)), ttlMs, tokens: RESERVED_TOKENS }
  }
  const [ahead, newest, now, owner, left, token, value, foreign] = reply as RedisReply[]
  heard(Number(now))
  const refusal = { granted: false, ahead: Number(ahead), newest: BigInt(text(newest)) } as const
  if (owner === undefined || owner === null) return refusal
  const blocker: Blocker = { owner: text(owner), ...remaining(left), ...tokenOf(token), ...valueOf(value) }
  if (Number(foreign) === 1) blocker.foreign = true
  return { ...refusal, blocker }
}

/** As the index has it. */
export function entryOf(owner: string, token: bigint | undefined): string {
  return token === undefined ? `:${owner}` : `${token}:${owner}`
}

/** The arguments of release.lua, which says how. */
export function termsOfReleases(leases: readonly LeaseId[]): string[] {
  const args: string[] = []
  for (const { owner, token } of leases) args.push(entryOf(owner, token))
  return args
}

/** The answers of release.lua to so many leases. */
export function answersToReleases(reply: RedisReply, count: number): Released[] {
  if (isYesForAll(reply, count)) return Array.from({ length: count }, () => ({ outcome: 'released' }))
  return answersOf(reply, count).map(releasedOf)
}

/** The same to a lone one. */
export function answerToRelease(reply: RedisReply): Released[] {
  return [releasedOf(reply)]
}

function releasedOf(reply: RedisReply): Released {
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
export function viewOf(reply: RedisReply, key: string): KeyView {
  const error = failureOf(reply)
  if (error) throw error
  const [holders, waiting, waiters, more, shares, now] = reply as [
    RedisReply[][],
    RedisReply,
    RedisReply[][],
    RedisReply,
    RedisReply[],
    RedisReply,
  ]
  const rows = shares.length > 0 ? rowsOf(shares, Number(now)) : holders
  return {
    more: Number(more) === 1,
    holders: rows.map((row) => holderOf(row, key, Number(waiting))),
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

/** Shares as they are written (`shares` in common.lua), as rows of holders. */
function rowsOf(shares: readonly RedisReply[], now: number): RedisReply[][] {
  const rows: RedisReply[][] = []
  for (let i = 0; i < shares.length; i += 3) {
    const [, weight, capacity, token, flags = '', value] =
      /^(\d+):(\d+):(\d+):([a-z]*):([^]*)$/i.exec(maybeText(shares[i + 2]) ?? '') ?? []
    if (token === undefined) continue
    const left = Math.max(Number(text(shares[i + 1])) - now, 0)
    const held = Math.max(Math.round(now - Number(token) / 1_000), 0)
    rows.push([shares[i], weight, capacity, token, left, held, flags.includes('v') ? value : null, 0])
  }
  return rows
}

function holderOf(row: RedisReply[], key: string, waiting: number): HolderView {
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

/** The answers of take.lua to so many requests. */
export function answersToTakes(reply: RedisReply, count: number): (TakeAnswer | Failure)[] {
  const said = reply as RedisReply[]
  const answers: (TakeAnswer | Failure)[] = []
  for (let at = 0; answers.length < count && at < said.length; at++) {
    const first = said[at]
    const error = failureOf(first)
    if (error) answers.push({ granted: 'unknown', error })
    else if (Array.isArray(first)) answers.push(takenOf(first))
    else {
      at++
      answers.push({ allowed: true, remaining: Number(first), retryAfterMs: 0, resetMs: Number(said[at]) / 1_000 })
    }
  }
  return answers
}

/** One take of which there is more to say than that it is allowed. */
function takenOf(reply: readonly RedisReply[]): TakeAnswer {
  const retryAfter = Number(reply[2])
  const answer: TakeAnswer = {
    allowed: Number(reply[0]) === 1,
    remaining: Number(reply[1]),
    retryAfterMs: retryAfter < 0 ? Number.POSITIVE_INFINITY : retryAfter / 1_000,
    resetMs: Number(reply[3]) / 1_000,
  }
  if (reply.length > 4) answer.limits = limitStatesOf(reply.slice(4))
  return answer
}

/** -1: a key without expiry. -2: it ended while we looked. */
function remaining(left: RedisReply): { ttlMs?: number } {
  const ms = Number(left)
  return left === null || left === undefined || ms === -1 ? {} : { ttlMs: Math.max(ms, 0) }
}

function tokenOf(token: RedisReply): { token?: bigint } {
  const said = maybeText(token)
  return said === undefined ? {} : { token: BigInt(said) }
}

function valueOf(value: RedisReply): { value?: string } {
  const said = maybeText(value)
  return said === undefined ? {} : { value: said }
}

/** The keys of take.lua. */
export function metersOf(requests: readonly TakeRequest[], keys: Keys): string[] {
  const meters: string[] = []
  for (const { key, limits } of requests) {
    for (let i = 0; i < limits.length; i++) meters.push(keys.meter(key, i, limits[i] as Limit))
  }
  return meters
}

/** The arguments of take.lua, which says how. Most takes are of one limiter and cost the same: that is then said once. */
export function termsOfTakes(requests: readonly TakeRequest[]): string[] {
  const first = requests[0] as TakeRequest
  const isSame = ({ limits, cost, reset }: TakeRequest): boolean =>
    limits === first.limits && cost === first.cost && reset === first.reset
  if (requests.every(isSame)) return ['1', ...termsOfLimits(first.limits), '=', '1', costOf(first)]
  const sets = new Map<readonly Limit[], number>()
  const args: string[] = ['']
  for (const { limits } of requests) {
    if (sets.has(limits)) continue
    sets.set(limits, sets.size + 1)
    args.push(...termsOfLimits(limits))
  }
  args[0] = String(sets.size)
  for (const request of requests) args.push(String(sets.get(request.limits)), costOf(request))
  return args
}

function termsOfLimits(limits: readonly Limit[]): string[] {
  const terms = [String(limits.length)]
  for (const { algorithm, limit, perMs, burst, blockMs = '', blockGrowth = '' } of limits) {
    const code = ALGORITHM_CODES[algorithm]
    terms.push(code, String(limit), String(perMs), String(burst), String(blockMs), String(blockGrowth))
  }
  return terms
}

function costOf({ cost, reset }: TakeRequest): string {
  return reset ? 'x' : String(cost)
}

/** Where each limit stands: flat, as take.lua tells it. */
function limitStatesOf(reply: readonly RedisReply[]): LimitState[] {
  const states: LimitState[] = []
  for (let i = 0; i + 1 < reply.length; i += 2) {
    states.push({ remaining: Number(reply[i]), nextMs: Number(reply[i + 1]) / 1_000 })
  }
  return states
}
