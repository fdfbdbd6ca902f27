/**
 * Stores for the rate limits that people already use: their counts, kept where the locks are, so that all processes share them.
 *
 * @module
 */
import { createHash } from 'node:crypto'
import { InvalidOptionError } from '../errors.js'
import type { Locks } from '../locks.js'
import type { Limit } from '../store.js'
import { isLocks, type Take, takesOf } from './internals.js'

/** Keys have a longest length; a token as a key may be longer. */
const LONGEST_KEY = 200

/** More than anybody counts: express-rate-limit compares by itself, with a limit that may differ for each request. */
const NO_LIMIT = 1e12

/** One library's counts under one name. */
function countsOf(locks: Locks, library: string, name: string): Take {
  if (!isLocks(locks)) throw new InvalidOptionError('locks', locks, 'what createLocks returns')
  if (typeof name !== 'string' || name === '') {
    throw new InvalidOptionError('name', name, 'a name that sets these counts apart from those of other limits')
  }
  const take = takesOf(locks, `${library}/${name}`)
  return (key, terms) => take(fitting(key), terms)
}

function fitting(key: string): string {
  if (key === '') return '-'
  return key.length > LONGEST_KEY ? createHash('sha256').update(key).digest('hex') : key
}

function counter(limit: number, perMs: number): Limit {
  return { algorithm: 'fixed-window', limit, perMs: Math.max(perMs, 1), burst: limit }
}

/** What express-rate-limit asks of a store. */
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
      limits = [counter(NO_LIMIT, windowMs)]
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

/** What `@fastify/rate-limit` tells a store about the limit it is for. */
export interface FastifyRateLimitParams {
  continueExceeding?: boolean
  exponentialBackoff?: boolean
  routeInfo?: { method?: string | string[]; url?: string }
}

/** How `@fastify/rate-limit` hears of a count. */
export type FastifyRateLimitCallback = (error: Error | null, result?: { current: number; ttl: number }) => void

/** What `@fastify/rate-limit` asks of a store. */
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
  readonly #take: Take
  readonly #params: FastifyRateLimitParams
  readonly #prefix: string

  constructor(take: Take, params: FastifyRateLimitParams, prefix: string) {
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

  /** Routes with limits of their own count by themselves. */
  child(params: FastifyRateLimitParams): FastifyRateLimitStore {
    const { method = '', url = '' } = params.routeInfo ?? {}
    return new FastifyCounts(this.#take, params, `${[method].flat().join()}${url}-`)
  }

  #count(key: string, cost: number, timeWindow: number, max: number, callback: FastifyRateLimitCallback): void {
    const { continueExceeding, exponentialBackoff } = this.#params
    const limit = counter(max, timeWindow)
    if (continueExceeding || exponentialBackoff) {
      limit.blockMs = limit.perMs
      limit.blockGrowth = continueExceeding ? 1 : 2
    }
    this.#take(this.#prefix + key, { cost, limits: [limit] }).then(
      ({ remaining, resetMs }) => callback(null, { current: max - remaining, ttl: Math.ceil(resetMs) }),
      (error: Error) => callback(error),
    )
  }
}

/** What `@nestjs/throttler` asks of a storage. */
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
      const window: Limit = { algorithm: 'sliding-window', limit, perMs: Math.max(ttl, 1), burst: limit }
      if (blockDuration > 0) window.blockMs = blockDuration
      const answer = await take(`${throttlerName}:${key}`, { cost: 1, limits: [window] })
      const { allowed, remaining, resetMs } = answer
      // A limit of 0 lets nothing pass, ever: the client is told to come back as if it had been blocked now.
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
