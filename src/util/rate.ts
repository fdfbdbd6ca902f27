/**
 * The arithmetic of rate limits, for stores that compute in JavaScript. The Lua and SQL of the others say the same.
 *
 * @module
 */
import type { Limit, LimitState, TakeAnswer, TakeRequest } from '../store.js'

/**
 * What is remembered of one limit of one key. A token bucket needs one number: the time at which it will be full
 * again. A sliding window needs what was taken when, for as long as it counts; a block is one entry of more than the limit.
 * A fixed window needs its end (`fullAt`) and one entry with the count.
 */
export interface Meter {
  fullAt: number
  taken: { at: number; cost: number }[]
  /** When the first of what the last entry of a sliding window stands for was taken. */
  since: number
}

export const emptyMeter = (): Meter => ({ fullAt: 0, taken: [], since: 0 })

/**
 * PARTS: from so many entries on, what is taken within a PARTS-th of a sliding window is one entry, which counts as if all of
 * it had been taken at its last moment. Never more than the limit in any stretch, at most 514 entries whatever the limit, and
 * what was taken is free again at most that part of the window late.
 */
const PARTS = 256

/** What one limit says to a cost, before anything is charged. */
interface Verdict extends LimitState {
  retryAfterMs: number
  resetMs: number
}

/** Below this many milliseconds two times are the same: fractions of tokens must not be refused for a rounding error. */
const HAIR = 1e-6

/** Longest block that growth leads to: a year. A larger exponent would be no number any more. */
const LONGEST_BLOCK_MS = 31_536_000_000

/** Charges every limit, or none. `now` is the store's time in milliseconds, with fractions if it has them. */
export function takeFrom(meters: Meter[], request: Omit<TakeRequest, 'key'>, now: number): TakeAnswer {
  const { limits, reset } = request
  const only = limits.length === 1 ? (limits[0] as Limit) : undefined
  if (only?.algorithm === 'token-bucket' && only.blockMs === undefined && request.cost >= 0 && !reset) {
    return takeFromBucket(meters[0] as Meter, only, request.cost, now)
  }
  return takeFromAll(meters, request, now)
}

/** The usual case, one token bucket, without lists of verdicts. Says the same as `takeFromAll` (test/primitives/limiter/arithmetic.test.ts). */
function takeFromBucket(meter: Meter, limit: Limit, cost: number, now: number): TakeAnswer {
  const before = judgeBucket(meter, limit, cost, now)
  const allowed = before.retryAfterMs === 0
  if (allowed) charge(meter, limit, cost, now)
  const { remaining, nextMs, resetMs, retryAfterMs } = allowed ? judgeBucket(meter, limit, 0, now) : before
  return { allowed, remaining, retryAfterMs: allowed ? 0 : retryAfterMs, resetMs, limits: [{ remaining, nextMs }] }
}

/** Any limits, and any request. */
export function takeFromAll(meters: Meter[], request: Omit<TakeRequest, 'key'>, now: number): TakeAnswer {
  const { limits, reset } = request
  const cost = reset ? 0 : request.cost
  if (reset) for (const i of meters.keys()) meters[i] = emptyMeter()
  const [first] = limits
  if (first?.algorithm === 'fixed-window') return count(meters[0] as Meter, first, cost, now)
  const before = limits.map((limit, i) => judge(meters[i] as Meter, limit, Math.max(cost, 0), now))
  const allowed = cost < 0 || before.every((verdict) => verdict.retryAfterMs === 0)
  for (const [i, limit] of limits.entries()) {
    const meter = meters[i] as Meter
    if (allowed) charge(meter, limit, cost, now)
    else if (limit.blockMs !== undefined && (before[i] as Verdict).retryAfterMs > 0) block(meter, limit, cost, now)
  }
  const after = limits.map((limit, i) => judge(meters[i] as Meter, limit, allowed ? 0 : cost, now))
  return {
    allowed,
    remaining: Math.min(...after.map((verdict) => verdict.remaining)),
    retryAfterMs: allowed ? 0 : Math.max(...after.map((verdict) => verdict.retryAfterMs)),
    resetMs: Math.max(...after.map((verdict) => verdict.resetMs)),
    limits: after.map(({ remaining, nextMs }) => ({ remaining, nextMs })),
  }
}

/** Whether a take has changed the meters. What is refused charges nothing, but may begin a block or be counted. */
export function hasChanged(limits: readonly Limit[], { allowed }: TakeAnswer): boolean {
  return allowed || limits.some(({ algorithm, blockMs }) => algorithm === 'fixed-window' || blockMs !== undefined)
}

function judge(meter: Meter, limit: Limit, cost: number, now: number): Verdict {
  return limit.algorithm === 'token-bucket'
    ? judgeBucket(meter, limit, cost, now)
    : judgeWindow(meter, limit, cost, now)
}

function judgeBucket(meter: Meter, { limit, perMs, burst }: Limit, cost: number, now: number): Verdict {
  const perToken = perMs / limit
  const missing = Math.max(meter.fullAt - now, 0)
  const free = burst - missing / perToken
  const short = (cost - free) * perToken
  const whole = Math.floor(free + HAIR)
  return {
    remaining: Math.max(whole, 0),
    nextMs: limit === 0 ? 0 : Math.min(Math.max((whole + 1 - free) * perToken, 0), missing),
    retryAfterMs: cost > burst || limit === 0 ? Number.POSITIVE_INFINITY : short > HAIR ? short : 0,
    resetMs: missing,
  }
}

function judgeWindow(meter: Meter, { limit, perMs }: Limit, cost: number, now: number): Verdict {
  const counting = meter.taken.filter((entry) => entry.at + perMs > now)
  meter.taken = counting
  const free = limit - counting.reduce((sum, entry) => sum + entry.cost, 0)
  const remaining = Math.max(Math.floor(free + HAIR), 0)
  const resetMs = counting.length === 0 ? 0 : (counting.at(-1) as { at: number }).at + perMs - now
  const until = (wanted: number): number => {
    let left = free
    let ms = 0
    for (const entry of counting) {
      if (wanted <= left + HAIR) break
      left += entry.cost
      ms = entry.at + perMs - now
    }
    return ms
  }
  const retryAfterMs = cost > limit ? Number.POSITIVE_INFINITY : until(cost)
  return { remaining, nextMs: counting.length === 0 ? 0 : until(remaining + 1), retryAfterMs, resetMs }
}

function charge(meter: Meter, { algorithm, limit, perMs }: Limit, cost: number, now: number): void {
  if (limit === 0) return
  if (algorithm === 'token-bucket') meter.fullAt = Math.max(meter.fullAt, now) + (cost * perMs) / limit
  else if (cost > 0) remember(meter, perMs, cost, now)
  else giveBack(meter, limit, -cost)
}

function remember(meter: Meter, perMs: number, cost: number, now: number): void {
  const last = meter.taken.at(-1)
  if (last && meter.taken.length >= PARTS && now >= meter.since && now - meter.since < perMs / PARTS) {
    last.at = Math.max(last.at, now)
    last.cost += cost
    return
  }
  meter.taken.push({ at: now, cost })
  meter.since = now
}

/** The latest first: those count for longest. A block is not undone. */
function giveBack(meter: Meter, limit: number, amount: number): void {
  let left = amount
  while (left > 0) {
    const last = meter.taken.at(-1)
    if (!last || last.cost > limit) return
    const part = Math.min(last.cost, left)
    left -= part
    last.cost -= part
    if (last.cost > HAIR) continue
    meter.taken.pop()
    meter.since = meter.taken.at(-1)?.at ?? 0
  }
}

/** One entry of more than the limit, in place of all others: until it ends nothing passes, and after it everything is free. */
function block(meter: Meter, { limit, perMs, blockMs = 0 }: Limit, cost: number, now: number): void {
  const blocked = meter.taken.some((entry) => entry.cost > limit)
  if (blocked || cost > limit) return
  meter.since = now + blockMs - perMs
  meter.taken = [{ at: meter.since, cost: limit + 1 }]
}

function count(meter: Meter, limit: Limit, cost: number, now: number): TakeAnswer {
  const over = meter.fullAt <= now
  let counted = over ? 0 : (meter.taken[0]?.cost ?? 0)
  let end = over ? now : meter.fullAt
  if (over && cost > 0) end = now + limit.perMs
  const before = counted
  counted = Math.max(counted + cost, 0)
  const { blockMs, blockGrowth } = limit
  const excess = counted - limit.limit
  if (cost > 0 && excess > 0 && blockMs !== undefined) {
    if (blockGrowth !== undefined)
      end = now + Math.min(blockMs * blockGrowth ** (Math.ceil(excess) - 1), LONGEST_BLOCK_MS)
    else if (before <= limit.limit) end = now + blockMs
  }
  meter.fullAt = end
  meter.taken = [{ at: 0, cost: counted }]
  const allowed = cost < 0 || excess <= 0
  const left = end - now
  const remaining = limit.limit - counted
  return {
    allowed,
    remaining,
    retryAfterMs: allowed ? 0 : left,
    resetMs: left,
    limits: [{ remaining: Math.max(remaining, 0), nextMs: left }],
  }
}

/** When nothing is remembered any more, and the meters may be forgotten. */
export function idleAt(meters: readonly Meter[], limits: readonly Limit[]): number {
  let latest = 0
  for (let i = 0; i < limits.length; i++) {
    const { algorithm, perMs } = limits[i] as Limit
    const { fullAt, taken } = meters[i] as Meter
    const last = algorithm === 'sliding-window' ? (taken.at(-1)?.at ?? -perMs) + perMs : fullAt
    if (last > latest) latest = last
  }
  return latest
}
