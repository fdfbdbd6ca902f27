/**
 * Stores for the rate limits of other libraries: their counts are kept in the store of the locks and shared by all processes.
 *
 * @module
 */
import { createHash } from 'node:crypto'
import { InvalidOptionError } from '../errors.js'
import type { Locks } from '../locks.js'
import type { Limit } from '../store.js'
import { isLocks, type LimiterTake, limiterTake } from './internals.js'

/**
 * The longest key in characters that is stored as it is; longer ones (a token as a key) are hashed, to fit the limit of
 * the stores.
 */
const MAX_KEY_LENGTH = 200

/**
 * A limit that no counter reaches: express-rate-limit compares by itself, with a limit that may differ for each
 * request.
 */
const NO_LIMIT = 1e12

/** One library's counts under one name. */
function countsOf(locks: Locks, library: string, name: string): LimiterTake {
  if (!isLocks(locks)) throw new InvalidOptionError('locks', locks, 'what createLocks returns')
  if (typeof name !== 'string' || name === '') {
    throw new InvalidOptionError('name', name, 'a name that sets these counts apart from those of other limits')
  }
  const take = limiterTake(locks, `${library}/${name}`)
  return (key, terms) => take(fitting(key), terms)
}

function fitting(key: string): string {
  if (key === '') return '-'
  return key.length > MAX_KEY_LENGTH ? createHash('sha256').update(key).digest('hex') : key
}

/**
 * Checked because these numbers often come from the environment: a limit that is no number would let every request
 * pass.
 */
function amount(option: string, value: number, most = Number.MAX_SAFE_INTEGER): number {
  if (typeof value === 'number' && value >= 0 && value <= most) return value
  throw new InvalidOptionError(option, value, 'a number that is not negative')
}

function counter(limit: number, perMs: number, options = { limit: 'max', per: 'timeWindow' }): Limit {
  const most = Math.min(amount(options.limit, limit, Number.POSITIVE_INFINITY), NO_LIMIT)
  return { algorithm: 'fixed-window', limit: most, perMs: Math.max(amount(options.per, perMs), 1), burst: most }
}

/** The store interface of express-rate-limit. */
export interface ExpressRateLimitStore {
  init(options: { windowMs: number }): void
  get(key: string): Promise<{ totalHits: number; resetTime: Date } | undefined>
  increment(key: string): Promise<{ totalHits: number; resetTime: Date }>
  decrement(key: string): Promise<void>
  resetKey(key: string): Promise<void>
  readonly localKeys: false
  readonly prefix: string
}

/**
 * A store for express-rate-limit (and express-slow-down). Its window is fixed, as theirs is: with `limitExpress` no stretch of
 * time sees more than the limit.
 *
 * @example
 * ```ts
 * app.use(rateLimit({ windowMs: 60_000, limit: 100, store: expressRateLimitStore(locks, 'api') }))
 * ```
 */
export function expressRateLimitStore(locks: Locks, name: string): ExpressRateLimitStore {
  const take = countsOf(locks, 'express-rate-limit', name)
  let limits = [counter(NO_LIMIT, 60_000)]
  const count = async (key: string, cost: number): Promise<{ totalHits: number; resetTime: Date }> => {
    const { remaining, resetMs } = await take(key, { cost, limits })
    return { totalHits: NO_LIMIT - remaining, resetTime: new Date(Date.now() + resetMs) }
  }
  return {
    localKeys: false,
    prefix: name,
    init({ windowMs }) {
      limits = [counter(NO_LIMIT, windowMs, { limit: 'limit', per: 'windowMs' })]
    },
    async get(key) {
      const info = await count(key, 0)
      return info.totalHits === 0 ? undefined : info
    },
    increment: (key) => count(key, 1),
    async decrement(key) {
      await count(key, -1)
    },
    async resetKey(key) {
      await take(key, { cost: 0, limits, reset: true })
    },
  }
}

/** What `@fastify/rate-limit` passes to a store about its limit. */
export interface FastifyRateLimitParams {
  continueExceeding?: boolean
  exponentialBackoff?: boolean
  routeInfo?: { method?: string | string[]; url?: string }
}

/** How `@fastify/rate-limit` receives a count. */
export type FastifyRateLimitCallback = (error: Error | null, result?: { current: number; ttl: number }) => void

/** The store interface of `@fastify/rate-limit`. */
export interface FastifyRateLimitStore {
  incr(key: string, callback: FastifyRateLimitCallback, timeWindow: number, max: number): void
  read(key: string, callback: FastifyRateLimitCallback, timeWindow: number, max: number): void
  child(params: FastifyRateLimitParams): FastifyRateLimitStore
}

/**
 * A store for `@fastify/rate-limit`, with its `ban`, `continueExceeding` and `exponentialBackoff`.
 *
 * @example
 * ```ts
 * await app.register(rateLimit, { max: 100, timeWindow: '1 minute', store: fastifyRateLimitStore(locks, 'api') })
 * ```
 */
export function fastifyRateLimitStore(
  locks: Locks,
  name: string,
): new (
  params: FastifyRateLimitParams,
) => FastifyRateLimitStore {
  const take = countsOf(locks, 'fastify-rate-limit', name)
  return class LeaseholdStore extends FastifyCounts {
    constructor(params: FastifyRateLimitParams) {
      super(take, params, '')
    }
  }
}

class FastifyCounts implements FastifyRateLimitStore {
  readonly #take: LimiterTake
  readonly #params: FastifyRateLimitParams
  readonly #prefix: string

  constructor(take: LimiterTake, params: FastifyRateLimitParams, prefix: string) {
    this.#take = take
    this.#params = params
    this.#prefix = prefix
  }

  incr(key: string, callback: FastifyRateLimitCallback, timeWindow: number, max: number): void {
    this.#count(key, 1, timeWindow, max, callback)
  }

  read(key: string, callback: FastifyRateLimitCallback, timeWindow: number, max: number): void {
    this.#count(key, 0, timeWindow, max, callback)
  }

  /** A route with a limit of its own has counters of its own. */
  child(params: FastifyRateLimitParams): FastifyRateLimitStore {
    const { method = '', url = '' } = params.routeInfo ?? {}
    return new FastifyCounts(this.#take, params, `${[method].flat().join()}${url}-`)
  }

  #count(key: string, cost: number, timeWindow: number, max: number, callback: FastifyRateLimitCallback): void {
    const counted = async (): Promise<{ current: number; ttl: number }> => {
      const limit = counter(max, timeWindow)
      const { continueExceeding, exponentialBackoff } = this.#params
      if (continueExceeding || exponentialBackoff) {
        limit.blockMs = limit.perMs
        limit.blockGrowth = continueExceeding ? 1 : 2
      }
      const { remaining, resetMs } = await this.#take(this.#prefix + key, { cost, limits: [limit] })
      return { current: limit.limit - remaining, ttl: Math.ceil(resetMs) }
    }
    counted().then(
      (result) => callback(null, result),
      (error: Error) => callback(error),
    )
  }
}

/** The storage interface of `@nestjs/throttler`. */
export interface ThrottlerStorage {
  increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName: string,
  ): Promise<{ totalHits: number; timeToExpire: number; isBlocked: boolean; timeToBlockExpire: number }>
}

/**
 * A storage for `@nestjs/throttler`: a sliding window for each throttler and client, and its `blockDuration`.
 *
 * @example
 * ```ts
 * ThrottlerModule.forRoot({ throttlers: [{ limit: 100, ttl: minutes(1) }], storage: throttlerStorage(locks, 'api') })
 * ```
 */
export function throttlerStorage(locks: Locks, name: string): ThrottlerStorage {
  const take = countsOf(locks, 'nestjs-throttler', name)
  return {
    async increment(key, ttl, limit, blockDuration, throttlerName) {
      const perMs = Math.max(amount('ttl', ttl), 1)
      const window: Limit = { algorithm: 'sliding-window', limit: amount('limit', limit), perMs, burst: limit }
      if (amount('blockDuration', blockDuration) > 0) window.blockMs = blockDuration
      const answer = await take(`${throttlerName}:${key}`, { cost: 1, limits: [window] })
      const { allowed, remaining, resetMs } = answer
      // A limit of 0 never lets a request pass: the client gets the time of a block that starts now.
      const retryMs = Number.isFinite(answer.retryAfterMs) ? answer.retryAfterMs : blockDuration || ttl
      return {
        totalHits: allowed ? limit - remaining : limit + 1,
        timeToExpire: Math.ceil((resetMs || ttl) / 1_000),
        isBlocked: !allowed,
        timeToBlockExpire: allowed ? 0 : Math.ceil(retryMs / 1_000),
      }
    },
  }
}
