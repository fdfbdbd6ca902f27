import { type Item, serializeList } from 'structured-headers'
import { formatDuration } from '../util/duration.js'
import type { Limiter, RateLimitResult } from '../primitives/limiter/limiter.js'
import type { Limit, LimitState } from '../store.js'
import { retryAfter } from './problem.js'

/** The largest integer of a structured header field (RFC 9651): 15 digits. */
const MAX_INTEGER = 999_999_999_999_999

/**
 * The header values that show a client its limits, as draft-ietf-httpapi-ratelimit-headers-10 has them:
 * `RateLimit-Policy` and `RateLimit` with an item for each limit, and `Retry-After` if it was refused. In `RateLimit`, `r` is
 * what remains and `t` the seconds until there is more. Append them: another limiter may have set its own.
 *
 * @example
 * ```ts
 * const result = await limiter.take(user)
 * for (const [name, value] of Object.entries(rateLimitHeaders(limiter, result))) response.headers.append(name, value)
 * ```
 */
export function rateLimitHeaders(
  limiter: Pick<Limiter, 'name' | 'limits'>,
  result: RateLimitResult,
): Record<string, string> {
  const names = namesOf(limiter)
  const policies = limiter.limits.map((limit, i): Item => [names[i] as string, policyOf(limit)])
  const headers: Record<string, string> = { 'RateLimit-Policy': serializeList(policies) }
  // During an outage the counts are unknown.
  if (!result.storeError) headers['RateLimit'] = serializeList(itemsOf(limiter, result, names))
  if (!result.allowed && result.retryAfterMs < Number.POSITIVE_INFINITY) {
    headers['Retry-After'] = retryAfter(result.retryAfterMs)
  }
  return headers
}

function itemsOf({ limits }: Pick<Limiter, 'limits'>, result: RateLimitResult, names: readonly string[]): Item[] {
  const states = result.limits ?? [stateOf(limits[0] as Limit, result)]
  return states.map(({ remaining, nextMs }, i) => {
    const parameters = new Map([['r', integer(remaining)]])
    // The limit is untouched: there is no time at which more will be left.
    if (nextMs > 0) parameters.set('t', integer(Math.ceil(nextMs / 1_000)))
    return [names[i] as string, parameters]
  })
}

/** One token bucket: the next token is there when what is missing is a whole number of tokens. */
function stateOf({ limit, perMs }: Limit, { remaining, resetMs }: RateLimitResult): LimitState {
  const perToken = perMs / limit
  const missing = resetMs / perToken
  const part = missing - Math.max(Math.ceil(missing - 1e-9) - 1, 0)
  return { remaining, nextMs: limit === 0 ? 0 : part * perToken }
}

/** Several limits of one limiter need a name each: `api-1s`, `api-1d`. */
function namesOf({ name, limits }: Pick<Limiter, 'name' | 'limits'>): string[] {
  const ascii = name.replace(/[^\x20-\x7e]+/g, encodeURIComponent)
  if (limits.length === 1) return [ascii]
  const used = new Set<string>()
  return limits.map(({ perMs }) => {
    const plain = `${ascii}-${formatDuration(perMs)}`
    let unique = plain
    for (let i = 2; used.has(unique); i++) unique = `${plain}-${i}`
    used.add(unique)
    return unique
  })
}

/**
 * Both are whole numbers, and the window is in seconds: 5 in half a second become 10 in one, half in a second one in
 * two.
 */
function policyOf({ limit, perMs }: Limit): Map<string, number> {
  let seconds = Math.ceil(perMs / 1_000)
  let quota = Math.floor((limit * seconds * 1_000) / perMs)
  if (quota < 1 && limit > 0) {
    seconds = Math.ceil(perMs / limit / 1_000)
    quota = 1
  }
  return new Map([
    ['q', integer(quota)],
    ['w', integer(seconds)],
  ])
}

function integer(value: number): number {
  return Math.min(Math.max(Math.floor(value), 0), MAX_INTEGER)
}
