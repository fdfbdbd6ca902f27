/**
 * The arithmetic of rate limits, for stores that compute in JavaScript. The Lua and SQL of the others say the same.
 *
 * @module
 */
import type { Limit, TakeAnswer } from '../store.js'

/**
 * What is remembered of one limit of one key. A token bucket needs one number: the time at which it will be full
 * again. A sliding window needs what was taken when, for as long as it counts.
 */
export interface Meter {
  fullAt: number
  taken: { at: number; cost: number }[]
}

export const emptyMeter = (): Meter => ({ fullAt: 0, taken: [] })

/** What one limit says to a cost, before anything is charged. */
interface Verdict {
  remaining: number
  retryAfterMs: number
  resetMs: number
}

/** Below this many milliseconds two times are the same: fractions of tokens must not be refused for a rounding error. */
const HAIR = 1e-6

/** Charges every limit, or none. `now` is the store's time in milliseconds, with fractions if it has them. */
export function takeFrom(meters: readonly Meter[], limits: readonly Limit[], cost: number, now: number): TakeAnswer {
  const before = limits.map((limit, i) => judge(meters[i] as Meter, limit, cost, now))
  const allowed = before.every((verdict) => verdict.retryAfterMs === 0)
  if (allowed) for (const [i, limit] of limits.entries()) charge(meters[i] as Meter, limit, cost, now)
  const after = allowed ? limits.map((limit, i) => judge(meters[i] as Meter, limit, 0, now)) : before
  return {
    allowed,
    remaining: Math.min(...after.map((verdict) => verdict.remaining)),
    retryAfterMs: Math.max(...before.map((verdict) => verdict.retryAfterMs)),
    resetMs: Math.max(...after.map((verdict) => verdict.resetMs)),
  }
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
  return {
    remaining: Math.max(Math.floor(free + HAIR), 0),
    retryAfterMs: cost > burst || limit === 0 ? Number.POSITIVE_INFINITY : short > HAIR ? short : 0,
    resetMs: missing,
  }
}

function judgeWindow(meter: Meter, { limit, perMs }: Limit, cost: number, now: number): Verdict {
  const counting = meter.taken.filter((entry) => entry.at + perMs > now)
  meter.taken = counting
  let free = limit - counting.reduce((sum, entry) => sum + entry.cost, 0)
  const remaining = Math.max(Math.floor(free + HAIR), 0)
  const resetMs = counting.length === 0 ? 0 : (counting.at(-1) as { at: number }).at + perMs - now
  if (cost > limit) return { remaining, retryAfterMs: Number.POSITIVE_INFINITY, resetMs }
  let retryAfterMs = 0
  for (const entry of counting) {
    if (cost <= free + HAIR) break
    free += entry.cost
    retryAfterMs = entry.at + perMs - now
  }
  return { remaining, retryAfterMs, resetMs }
}

function charge(meter: Meter, { algorithm, limit, perMs }: Limit, cost: number, now: number): void {
  if (algorithm === 'token-bucket') meter.fullAt = Math.max(meter.fullAt, now) + (cost * perMs) / limit
  else if (cost > 0) meter.taken.push({ at: now, cost })
}

/** When nothing is remembered any more, and the meters may be forgotten. */
export function idleAt(meters: readonly Meter[], limits: readonly Limit[]): number {
  return Math.max(
    ...limits.map((limit, i) => {
      const meter = meters[i] as Meter
      if (limit.algorithm === 'token-bucket') return meter.fullAt
      return meter.taken.length === 0 ? 0 : (meter.taken.at(-1) as { at: number }).at + limit.perMs
    }),
  )
}
