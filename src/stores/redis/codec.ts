/**
 * Renewals, releases and takes as the scripts want them, and what the scripts answer, in the words of the contract. Claims are in
 * acquire.ts, pushed messages in grant-inbox.ts.
 *
 * @module
 */
import type {
  Failure,
  HolderView,
  LeaseId,
  Limit,
  LimitState,
  Released,
  Renewal,
  Renewed,
  TakeAnswer,
  TakeRequest,
  WaiterView,
} from '../../store.js'
import { type RedisReply, maybeText, text } from '../../clients/redis/adapter.js'
import { StoreUnavailableError } from '../../errors.js'
import { unavailable } from './errors.js'
import { ALGORITHM_CODES, type Keys } from './keys.js'

/** The answers to the items of a call that failed. */
export const undecided = (error: unknown): Failure => ({ granted: 'unknown', error })
export const unknown = (error: unknown): { outcome: 'unknown'; error: unknown } => ({ outcome: 'unknown', error })

/** Redis counts whole milliseconds. Never more than asked for, and never none. */
export function wholeMs(ms: number): number {
  return Math.max(Math.floor(ms), 1)
}

/** A lone answer is not in a list: the usual case spares the client a nested reply. */
export function answersOf(reply: RedisReply, count: number): RedisReply[] {
  return count === 1 ? [reply] : (reply as RedisReply[])
}

/** A reply that answers several items at once, each with the same. */
export const isForAll = (reply: RedisReply, count: number): boolean => count > 1 && !Array.isArray(reply)

/** True: the one reply 1 says yes to all `count` items. Throws for another single reply, which answers none of them. */
function isYesForAll(reply: RedisReply, count: number): boolean {
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

/** What is said once for all: nothing, the ttl of leases, or the ttl of queue entries. */
export type RenewalForm = 'mixed' | 'leases' | 'entries'

/** Most leases of a heartbeat want the same ttl, and all queue entries do. */
export function formOf(renewals: readonly Renewal[]): RenewalForm {
  const first = renewals[0] as Renewal
  for (let i = 0; i < renewals.length; i++) {
    const { ttlMs, value, queued } = renewals[i] as Renewal
    if (ttlMs !== first.ttlMs || value !== undefined || queued !== first.queued) return 'mixed'
  }
  return first.queued ? 'entries' : 'leases'
}

/** The arguments of renew.lua, which says how. */
export function termsOfRenewals(renewals: readonly Renewal[], form: RenewalForm): string[] {
  const ttl = String(wholeMs((renewals[0] as Renewal).ttlMs))
  const args = [form === 'mixed' ? '' : form === 'entries' ? `?${ttl}` : ttl]
  for (const { owner, token, ttlMs, value, queued } of renewals) {
    args.push(form === 'entries' ? owner : entryOf(owner, token))
    if (form === 'mixed') args.push(String(wholeMs(ttlMs)), queued ? '?' : value === undefined ? '' : `=${value}`)
  }
  return args
}

/** The answers of renew.lua to these renewals. `heard`: what the server's clock said, in microseconds. */
export function answersToRenewals(
  reply: RedisReply,
  renewals: readonly Renewal[],
  form: RenewalForm,
  heard: (micros: number) => void,
): Renewed[] {
  const { length } = renewals
  if (form === 'entries') return answersToEntries(reply as RedisReply[], length, heard)
  const all = isYesForAll(reply, length)
  const replies = all ? [] : answersOf(reply, length)
  // Nearly all leases of a heartbeat have one ttl, and so one answer.
  let ours: Extract<Renewed, { outcome: 'ours' }> = { outcome: 'ours', ttlMs: 0 }
  return renewals.map(({ ttlMs }, i) => {
    const answer = all ? 1 : replies[i]
    if (answer !== 1) return renewedOf(answer, wholeMs(ttlMs), heard)
    const whole = wholeMs(ttlMs)
    if (ours.ttlMs !== whole) ours = { outcome: 'ours', ttlMs: whole }
    return ours
  })
}

/** The same for so many queue entries: most of them are the first, and answered by when the lease in their way ends. */
function answersToEntries(replies: readonly RedisReply[], count: number, heard: (micros: number) => void): Renewed[] {
  const newest = BigInt(text(replies[count]))
  heard(Number(text(replies[count + 1])))
  const answers: Renewed[] = []
  for (let i = 0; i < count; i++) {
    const reply = replies[i]
    if (Array.isArray(reply)) answers.push(renewedOf(reply, 0, heard))
    else answers.push(entryRenewed(reply, newest))
  }
  return answers
}

function entryRenewed(reply: RedisReply, newest: bigint): Renewed {
  const error = failureOf(reply)
  if (error) return { outcome: 'unknown', error }
  const ms = Number(reply)
  if (ms < -1) return { outcome: 'gone' }
  return { outcome: 'waiting', newest, ahead: 0, blockedMs: ms < 0 ? undefined : ms }
}

function renewedOf(reply: RedisReply, ttlMs: number, heard: (micros: number) => void): Renewed {
  if (Array.isArray(reply)) {
    const [kind, token, now, ms] = reply as RedisReply[]
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
export function remaining(left: RedisReply): { ttlMs?: number } {
  const ms = Number(left)
  return left === null || left === undefined || ms === -1 ? {} : { ttlMs: Math.max(ms, 0) }
}

export function tokenOf(token: RedisReply): { token?: bigint } {
  const said = maybeText(token)
  return said === undefined ? {} : { token: BigInt(said) }
}

export function valueOf(value: RedisReply): { value?: string } {
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
