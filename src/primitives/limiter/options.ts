import { InvalidOptionError } from '../../errors.js'
import { type Duration, milliseconds } from '../../util/duration.js'
import type { Limit } from '../../store.js'
import { knownOptions } from '../../util/options.js'

/** At most `limit` per `per`. */
export interface RateLimit {
  /** How much may be taken in `per`. 0: nothing passes. */
  limit: number
  per: Duration
  /** Token bucket only: how much may be taken at once after a quiet time. Default: `limit`, and at least 1. */
  burst?: number | undefined
  /**
   * `token-bucket` (the default): refills steadily; after a quiet time up to `burst` at once. Remembers one number per key.
   * `sliding-window`: never more than `limit` in any stretch of `per`. Remembers each take for that long.
   */
  algorithm?: 'token-bucket' | 'sliding-window' | undefined
}

/** What takes are answered while the store does not answer. */
export interface StoreErrorOption {
  /**
   * `throw` (the default): `take` rejects with `StoreUnavailableError`. `allow`, `deny`: that is the answer. `{ local: 0.25 }`:
   * this process limits by itself, with that share of every limit; one by the number of processes keeps the sum.
   */
  onStoreError?: 'throw' | 'allow' | 'deny' | { local: number } | undefined
}

/** One limit, or several of which every take needs all. */
export type LimiterOptions = (RateLimit | { limits: readonly RateLimit[] }) & StoreErrorOption

export type StoreErrorPolicy = NonNullable<StoreErrorOption['onStoreError']>

/** Limits of one limiter at most: each is computed in every take, and stored with every key. */
const MOST_LIMITS = 8
/** Largest limit, burst and cost. Sums of them stay exact in a double, with fractions of a thousandth. */
const LARGEST = 1e12
const LIMIT_OPTIONS = ['limit', 'per', 'burst', 'algorithm']

export function limitsFrom(options: LimiterOptions): Limit[] {
  if (typeof options !== 'object' || options === null) {
    throw new InvalidOptionError('options', options, 'an object such as { limit: 10, per: "1s" }')
  }
  if (!('limits' in options)) {
    knownOptions(options, [...LIMIT_OPTIONS, 'onStoreError'])
    return [limitFrom('', options)]
  }
  knownOptions(options, ['limits', 'onStoreError'])
  const { limits } = options
  if (!Array.isArray(limits) || limits.length === 0 || limits.length > MOST_LIMITS) {
    throw new InvalidOptionError('limits', limits, `1 to ${MOST_LIMITS} limits such as { limit: 10, per: "1s" }`)
  }
  return limits.map((one: RateLimit, i) => {
    if (typeof one !== 'object' || one === null) {
      throw new InvalidOptionError(`limits[${i}]`, one, 'a limit such as { limit: 10, per: "1s" }')
    }
    knownOptions(one, LIMIT_OPTIONS)
    return limitFrom(`limits[${i}].`, one)
  })
}

export function policyFrom(policy: unknown): StoreErrorPolicy {
  if (policy === undefined) return 'throw'
  if (policy === 'throw' || policy === 'allow' || policy === 'deny') return policy
  const local = typeof policy === 'object' && policy !== null ? (policy as { local?: unknown }).local : undefined
  if (typeof local === 'number' && local > 0 && local <= 1)
    return { ...knownOptions(policy as { local: number }, ['local']) }
  throw new InvalidOptionError(
    'onStoreError',
    policy,
    "'throw', 'allow', 'deny' or { local: share } with a share above 0 and up to 1",
  )
}

/** The cost of a take; 0 only reads. */
export function costFrom(cost: unknown): number {
  if (typeof cost === 'number' && cost >= 0 && cost <= LARGEST) return cost
  throw new InvalidOptionError('cost', cost, 'a number of at least 0')
}

/** A share of a limit, for one process of several. A share below 1 at a time could never pass, so it becomes 1, less often. */
export function shareOf({ algorithm, limit, perMs, burst }: Limit, share: number): Limit {
  if (limit === 0) return { algorithm, limit, perMs, burst }
  const part = limit * share
  if (algorithm === 'sliding-window' && part < 1) return { algorithm, limit: 1, perMs: perMs / part, burst: 1 }
  return { algorithm, limit: part, perMs, burst: Math.max(burst * share, Math.min(burst, 1)) }
}

function limitFrom(at: string, { limit, per, burst, algorithm = 'token-bucket' }: RateLimit): Limit {
  const amount = amountFrom(`${at}limit`, limit)
  const perMs = milliseconds(`${at}per`, per, { min: 1 })
  if (algorithm === 'sliding-window') {
    if (burst !== undefined && burst !== limit) {
      throw new InvalidOptionError(`${at}burst`, burst, 'no value for a sliding window: its limit is also its burst')
    }
    return { algorithm, limit: amount, perMs, burst: amount }
  }
  if (algorithm !== 'token-bucket') {
    throw new InvalidOptionError(`${at}algorithm`, algorithm, "'token-bucket' or 'sliding-window'")
  }
  if (amount === 0) return { algorithm, limit: 0, perMs, burst: 0 }
  return { algorithm, limit: amount, perMs, burst: burst === undefined ? Math.max(amount, 1) : sizeFrom(at, burst) }
}

function amountFrom(option: string, value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value <= LARGEST) return value
  throw new InvalidOptionError(option, value, 'a number of at least 0')
}

function sizeFrom(at: string, burst: unknown): number {
  if (typeof burst === 'number' && burst > 0 && burst <= LARGEST) return burst
  throw new InvalidOptionError(`${at}burst`, burst, 'a number above 0')
}
