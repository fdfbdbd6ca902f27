import type { Limiter, RateLimitResult } from '../primitives/limiter.js'
import type { Limit } from '../store.js'
import { retryAfter } from './problem.js'

/**
 * The header values that tell a client where it stands: `RateLimit-Policy` and `RateLimit` (the IETF draft), and
 * `Retry-After` if it was refused.
 *
 * @example
 * ```ts
 * const result = await limiter.take(user)
 * for (const [name, value] of Object.entries(rateLimitHeaders(limiter, result))) response.headers.set(name, value)
 * ```
 */
export function rateLimitHeaders(
  limiter: Pick<Limiter, 'name' | 'limits'>,
  result: RateLimitResult,
): Record<string, string> {
  const name = quoted(limiter.name)
  const headers: Record<string, string> = {
    'RateLimit-Policy': limiter.limits.map((limit) => `${name};${policyOf(limit)}`).join(', '),
  }
  // During an outage nobody knows.
  if (!result.storeError) {
    const remaining = Math.max(Math.floor(result.remaining), 0)
    headers['RateLimit'] = `${name};r=${remaining};t=${Math.ceil(result.resetMs / 1_000)}`
  }
  if (!result.allowed && result.retryAfterMs < Number.POSITIVE_INFINITY) {
    headers['Retry-After'] = retryAfter(result.retryAfterMs)
  }
  return headers
}

/** Both are whole numbers, and the window is in seconds: 5 in half a second become 10 in one, half in a second one in two. */
function policyOf({ limit, perMs }: Limit): string {
  let seconds = Math.ceil(perMs / 1_000)
  let quota = Math.floor((limit * seconds * 1_000) / perMs)
  if (quota < 1 && limit > 0) {
    seconds = Math.ceil(perMs / limit / 1_000)
    quota = 1
  }
  return `q=${quota};w=${seconds}`
}

/** A string of the structured fields: printable ASCII. */
function quoted(name: string): string {
  const ascii = name.replace(/[^\x20-\x7e]+/g, encodeURIComponent)
  return `"${ascii.replace(/["\\]/g, '\\$&')}"`
}
