/** The stores for other libraries' rate limits, inside those libraries and with their own options. */
import 'reflect-metadata'
import { createRequire } from 'node:module'
import { Controller, Get, type INestApplication, Module } from '@nestjs/common'
import { APP_GUARD, NestFactory } from '@nestjs/core'
import { SkipThrottle, Throttle, ThrottlerGuard, ThrottlerModule, type ThrottlerModuleOptions } from '@nestjs/throttler'
import { type Options, rateLimit } from 'express-rate-limit'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import {
  type ExpressRateLimitStore,
  expressRateLimitStore,
  fastifyRateLimitStore,
  throttlerStorage,
} from '../../../src/http/index.js'
import { createLocks, InvalidOptionError, type Locks, memory, StoreUnavailableError } from '../../../src/index.js'
import { faulty } from '../../../src/testing/index.js'
import { STORE_KINDS, openStoreFixture, type StoreFixture, until } from '../../../testbed/store-fixtures.js'
import { type ExpressHandler, expresses, listen } from './express-versions.js'

const load = createRequire(import.meta.url)

/** Statuses of requests, one after the other. */
async function statuses(url: string, count: number, init?: RequestInit): Promise<number[]> {
  const seen: number[] = []
  for (let i = 0; i < count; i++) seen.push((await fetch(url, init)).status)
  return seen
}

test('a name and locks are required', () => {
  const locks = createLocks(memory())
  for (const make of [expressRateLimitStore, fastifyRateLimitStore, throttlerStorage]) {
    expect(() => make({} as Locks, 'api')).toThrow(InvalidOptionError)
    expect(() => make(locks, '')).toThrow(InvalidOptionError)
  }
})

describe.each(STORE_KINDS)('on %s', (kind) => {
  let place: StoreFixture
  let count = 0
  const name = (): string => `limit-${++count}`
  beforeAll(async () => {
    place = await openStoreFixture(kind)
  })
  afterAll(() => place.close())

  /** As many processes would have it: locks of its own each time. */
  const locks = (): Locks => createLocks(place.store())

  // Express 4 differs in nothing that a store could notice: once is enough.
  describe.each(kind === 'memory' ? expresses : expresses.slice(0, 1))('express-rate-limit in %s', (_, express) => {
    async function serve(options: Partial<Options>, status: () => number = () => 200): Promise<string> {
      const app = express()
      const limiter = rateLimit({ windowMs: 3_600_000, legacyHeaders: false, keyGenerator: () => 'client', ...options })
      app.use(limiter as unknown as ExpressHandler)
      app.get('/', (__, response) => response.status(status()).send('served'))
      app.get('/reset', (async (__, response) => {
        await limiter.resetKey('client')
        response.send('reset')
      }) satisfies ExpressHandler)
      return listen(app)
    }

    test('limits all processes together, and shows what remains', async () => {
      const shared = name()
      const options = (): Partial<Options> => ({
        limit: 3,
        standardHeaders: 'draft-6',
        store: expressRateLimitStore(locks(), shared),
      })
      const [one, other] = [await serve(options()), await serve(options())]
      expect([...(await statuses(one, 2)), ...(await statuses(other, 2))]).toEqual([200, 200, 200, 429])
      const { headers } = await fetch(one)
      expect(headers.get('ratelimit-remaining')).toBe('0')
      expect(Number(headers.get('ratelimit-reset'))).toBeGreaterThan(3_590)
    })

    test('skipFailedRequests and skipSuccessfulRequests give requests back', async () => {
      let status = 500
      let givenBack = 0
      const observed = (): ExpressRateLimitStore => {
        const store = expressRateLimitStore(locks(), name())
        const decrement = async (key: string): Promise<void> => {
          await store.decrement(key)
          givenBack++
        }
        return { ...store, decrement }
      }
      const failed = await serve({ limit: 2, skipFailedRequests: true, store: observed() }, () => status)
      /** Requests one after the other. A request is given back after its response has been sent: the next waits for that. */
      const settled = async (
        url: string,
        times: number,
        isGivenBack: (status: number) => boolean,
      ): Promise<number[]> => {
        const seen: number[] = []
        for (let i = 0; i < times; i++) {
          const before = givenBack
          const response = await fetch(url)
          seen.push(response.status)
          if (isGivenBack(response.status)) await until('it is given back', () => givenBack > before)
        }
        return seen
      }
      const isFailure = (seen: number): boolean => seen >= 400
      expect(await settled(failed, 4, isFailure)).toEqual([500, 500, 500, 500])
      status = 200
      // A refusal is a failure too: what it counted is given back.
      expect(await settled(failed, 5, isFailure)).toEqual([200, 200, 429, 429, 429])
      expect(givenBack).toBe(7)
      const fine = await serve({ limit: 1, skipSuccessfulRequests: true, store: observed() })
      expect(await settled(fine, 3, () => true)).toEqual([200, 200, 200])
    })

    test('resetKey lets a client in again, a limit may depend on the request, and a window ends', async () => {
      const url = await serve({ limit: async () => 1, windowMs: 400, store: expressRateLimitStore(locks(), name()) })
      expect(await statuses(url, 1)).toEqual([200])
      // More than one request, if a slow one is the first of the next window.
      await until('the limit is reached', async () => (await fetch(url)).status === 429)
      await until('the window ended', async () => (await fetch(url)).status === 200)
      const long = await serve({ limit: 2, store: expressRateLimitStore(locks(), name()) })
      expect(await statuses(`${long}/reset`, 2)).toEqual([200, 200])
      expect(await statuses(long, 3)).toEqual([200, 200, 429])
    })
  })

  describe('@fastify/rate-limit', () => {
    interface App {
      register(plugin: unknown, options?: object): Promise<void>
      get(path: string, ...rest: unknown[]): void
      listen(at: object): Promise<string>
      close(): Promise<void>
      createRateLimit(): (request: unknown, options?: object) => Promise<{ remaining: number; isExceeded: boolean }>
    }
    const fastify = load('fastify') as () => App
    const plugin = load('@fastify/rate-limit') as unknown

    async function serve(options: object): Promise<string> {
      const app = fastify()
      onTestFinished(() => app.close())
      await app.register(plugin, { timeWindow: 3_600_000, keyGenerator: () => 'client', ...options })
      const look = app.createRateLimit()
      app.get('/', async () => 'served')
      app.get('/own', { config: { rateLimit: { max: 1 } } }, async () => 'served')
      app.get('/look', { config: { rateLimit: false } }, async (request: unknown) => {
        const { remaining, isExceeded } = await look(request, { increment: false })
        return { remaining, isExceeded }
      })
      return app.listen({ port: 0, host: '127.0.0.1' })
    }

    test('limits all processes together, routes with limits of their own by themselves', async () => {
      const shared = name()
      const options = (): object => ({ max: 3, store: fastifyRateLimitStore(locks(), shared) })
      const [one, other] = [await serve(options()), await serve(options())]
      expect(await (await fetch(`${one}/look`)).json()).toEqual({ remaining: 3, isExceeded: false })
      expect([...(await statuses(one, 2)), ...(await statuses(other, 2))]).toEqual([200, 200, 200, 429])
      expect(await statuses(`${one}/own`, 2)).toEqual([200, 429])
      const refused = await fetch(one)
      expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(3_590)
      expect(refused.headers.get('x-ratelimit-remaining')).toBe('0')
      expect(await (await fetch(`${other}/look`)).json()).toEqual({ remaining: 0, isExceeded: true })
    })

    test('ban, continueExceeding and exponentialBackoff work as with its own stores', async () => {
      const banned = await serve({ max: 1, ban: 1, store: fastifyRateLimitStore(locks(), name()) })
      expect(await statuses(banned, 4)).toEqual([200, 429, 403, 403])
      const after = async (url: string, times: number): Promise<number[]> => {
        const seen: number[] = []
        for (let i = 0; i < times; i++) seen.push(Number((await fetch(url)).headers.get('retry-after')))
        return seen
      }
      const doubled = await serve({ max: 1, exponentialBackoff: true, store: fastifyRateLimitStore(locks(), name()) })
      expect(await after(doubled, 4)).toEqual([0, 3_600, 7_200, 14_400])
      const again = { max: 1, timeWindow: 600, continueExceeding: true, store: fastifyRateLimitStore(locks(), name()) }
      const continued = await serve(again)
      let askedAt = Date.now()
      expect(await statuses(continued, 1)).toEqual([200])
      for (const end = Date.now() + 1_000; Date.now() < end; ) {
        const before = askedAt
        askedAt = Date.now()
        const { status } = await fetch(continued)
        // If the machine took longer than the window between two requests, it ended, and the second may pass.
        if (Date.now() - before < 600) expect(status).toBe(429)
        await new Promise((resolve) => setTimeout(resolve, 100))
      }
      await new Promise((resolve) => setTimeout(resolve, 650))
      expect(await statuses(continued, 1)).toEqual([200])
    })
  })

  describe('@nestjs/throttler', () => {
    async function serve(options: ThrottlerModuleOptions): Promise<string> {
      class Shop {
        served(): string {
          return 'served'
        }
        strict(): string {
          return 'strict'
        }
        health(): string {
          return 'healthy'
        }
      }
      // Decorators called as functions: the tests are compiled without them.
      const method = (decorate: MethodDecorator, key: keyof Shop): unknown =>
        decorate(Shop.prototype, key, Object.getOwnPropertyDescriptor(Shop.prototype, key) as PropertyDescriptor)
      Controller()(Shop)
      for (const [key, path] of [
        ['served', '/'],
        ['strict', '/strict'],
        ['health', '/health'],
      ] as const) {
        method(Get(path), key)
      }
      method(Throttle({ default: { limit: 1, ttl: 3_600_000, blockDuration: 3_600_000 } }) as never, 'strict')
      method(SkipThrottle({ default: true, burst: true }) as never, 'health')
      class Root {}
      Module({
        imports: [ThrottlerModule.forRoot(options)],
        controllers: [Shop],
        providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
      })(Root)
      const app: INestApplication = await NestFactory.create(Root, { logger: false })
      await app.listen(0, '127.0.0.1')
      onTestFinished(() => app.close())
      return app.getUrl()
    }

    test('limits all processes together, with several throttlers, decorators and blocks', async () => {
      const shared = name()
      const options = (): ThrottlerModuleOptions => ({
        throttlers: [
          { name: 'default', limit: 4, ttl: 3_600_000, blockDuration: 7_200_000 },
          { name: 'burst', limit: 3, ttl: 500, blockDuration: 500 },
        ],
        storage: throttlerStorage(locks(), shared),
      })
      const [one, other] = [await serve(options()), await serve(options())]
      const first = await fetch(one)
      expect([first.headers.get('x-ratelimit-remaining'), first.headers.get('x-ratelimit-remaining-burst')]).toEqual([
        '3',
        '2',
      ])
      expect([...(await statuses(one, 1)), ...(await statuses(other, 1))]).toEqual([200, 200])
      await until('the burst is over', async () => (await fetch(`${one}`)).status === 200)
      await until('the day is over', async () => {
        const { status, headers } = await fetch(other)
        return status === 429 && Number(headers.get('retry-after')) > 3_700
      })
      expect(await statuses(`${one}/strict`, 2)).toEqual([200, 429])
      expect(await statuses(`${one}/health`, 3)).toEqual([200, 200, 200])
    })

    test('a block ends, and then everything is available again', async () => {
      const throttlers = [{ name: 'default', limit: 2, ttl: 3_600_000, blockDuration: 400 }]
      const url = await serve({ throttlers, storage: throttlerStorage(locks(), name()) })
      expect(await statuses(url, 3)).toEqual([200, 200, 429])
      await new Promise((resolve) => setTimeout(resolve, 450))
      expect(await statuses(url, 3)).toEqual([200, 200, 429])
    })

    test('without a block it is a sliding window; a limit of 0 lets nothing pass', async () => {
      const storage = throttlerStorage(locks(), name())
      expect(await storage.increment('k', 60_000, 1, 0, 'default')).toMatchObject({ totalHits: 1, isBlocked: false })
      const refused = await storage.increment('k', 60_000, 1, 0, 'default')
      expect(refused).toMatchObject({ totalHits: 2, isBlocked: true })
      // Whole seconds, less what passed since the first.
      expect(refused.timeToBlockExpire).toBeGreaterThan(30)
      expect(refused.timeToBlockExpire).toBeLessThanOrEqual(60)
      expect(await storage.increment('none', 60_000, 0, 30_000, 'default')).toMatchObject({
        isBlocked: true,
        timeToBlockExpire: 30,
      })
    })
  })
})

test('a limit or a window that is no number is refused, and does not let everything pass', async () => {
  const locks = createLocks(memory())
  const nestjs = throttlerStorage(locks, 'api')
  await expect(nestjs.increment('k', 1_000, Number.NaN, 0, 'default')).rejects.toThrow(/^limit takes a number/)
  await expect(nestjs.increment('k', Number.NaN, 1, 0, 'default')).rejects.toThrow(/^ttl takes a number/)
  await expect(nestjs.increment('k', 1_000, 1, Number.NaN, 'default')).rejects.toThrow(/^blockDuration takes a number/)
  expect(() => expressRateLimitStore(locks, 'api').init({ windowMs: Number.NaN })).toThrow(/^windowMs takes a number/)
  const fastify = new (fastifyRateLimitStore(locks, 'api'))({})
  const count = (timeWindow: number, max: number): Promise<unknown> =>
    new Promise((resolve) => fastify.incr('k', (error, result) => resolve(error?.message ?? result), timeWindow, max))
  expect(await count(1_000, Number.NaN)).toMatch(/^max takes a number/)
  expect(await count(Number.NaN, 1)).toMatch(/^timeWindow takes a number/)
  expect(await count(1_000, Number.POSITIVE_INFINITY)).toMatchObject({ current: 1 })
})

test('an outage rejects, so that passOnStoreError and skipOnError decide', async () => {
  const locks = createLocks(faulty(memory(), [{ effect: 'break-call', on: 'take' }]))
  await expect(expressRateLimitStore(locks, 'api').increment('k')).rejects.toThrow(StoreUnavailableError)
  await expect(throttlerStorage(locks, 'api').increment('k', 1, 1, 1, 'default')).rejects.toThrow(StoreUnavailableError)
  const Store = fastifyRateLimitStore(locks, 'api')
  const error = await new Promise((resolve) => new Store({}).incr('k', resolve, 1_000, 1))
  expect(error).toBeInstanceOf(StoreUnavailableError)
})
