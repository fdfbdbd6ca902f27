import { describe, expect, test } from 'vitest'
import { limitExpress, limitFastify, limitFetch } from '../../../src/http/index.js'
import { createLocks, InvalidOptionError, memory } from '../../../src/index.js'
import { faulty } from '../../../src/testing/index.js'
import { type ExpressHandler, expresses, gate, listen, timeOut } from './express-versions.js'
import { serveSteps } from './step-server.js'

const hello = (): Response => new Response('hello')

test('a Fetch-style handler is limited by its key, and its response shows the limits', async () => {
  const limiter = createLocks(memory()).limiter('api', { limit: 2, per: '1h' })
  const handler = limitFetch(limiter, hello, { key: (request) => request.headers.get('x-user') ?? 'none' })
  const ask = (user: string): Promise<Response> => handler(new Request('http://shop', { headers: { 'x-user': user } }))
  const first = await ask('ada')
  expect([first.status, await first.text(), first.headers.get('ratelimit')]).toEqual([200, 'hello', '"api";r=1;t=1800'])
  expect((await ask('ada')).status).toBe(200)
  const refused = await ask('ada')
  expect(refused.status).toBe(429)
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(1_790)
  expect(refused.headers.get('content-type')).toBe('application/problem+json')
  expect(await refused.json()).toMatchObject({ status: 429, title: 'Too Many Requests' })
  expect((await ask('bob')).status).toBe(200)
})

test('limitFetch takes the address from Bun and Deno, and refuses a Request without one', async () => {
  const limiter = createLocks(memory()).limiter('api', { limit: 1, per: '1h' })
  const handler = limitFetch<[Request, unknown?]>(limiter, hello)
  const request = new Request('http://shop')
  await expect(handler(request)).rejects.toThrow(InvalidOptionError)
  const bun = { requestIP: () => ({ address: '192.0.2.1' }) }
  const deno = { remoteAddr: { hostname: '192.0.2.1' } }
  expect((await handler(request, bun)).status).toBe(200)
  expect((await handler(request, deno)).status).toBe(429)
})

test('a response with immutable headers gets the headers of the limiter', async () => {
  const url = await serveSteps((_, response) => response.end('upstream'))
  const limiter = createLocks(memory()).limiter('api', { limit: 1, per: '1h' })
  const response = await limitFetch(limiter, () => fetch(url), { key: () => 'all' })(new Request('http://shop'))
  expect([await response.text(), response.headers.has('ratelimit')]).toEqual(['upstream', true])
})

test('middleware limits by address, and does not count skipped requests', async () => {
  const limiter = createLocks(memory()).limiter('api', { limit: 1, per: '1h' })
  const url = await serveSteps(limitExpress(limiter, { skip: (request) => request.url === '/health' }), (_, response) =>
    response.end('hello'),
  )
  expect((await fetch(url)).headers.get('ratelimit-policy')).toBe('"api";q=1;w=3600')
  expect((await fetch(url)).status).toBe(429)
  const health = await fetch(`${url}/health`)
  expect([health.status, health.headers.has('ratelimit')]).toEqual([200, false])
})

test('cost sets the cost of a request, and body the answer to a refused one', async () => {
  const limiter = createLocks(memory()).limiter('api', { limit: 10, per: '1h' })
  const url = await serveSteps(
    limitExpress(limiter, {
      key: async () => 'x'.repeat(500),
      cost: (request) => (request.url === '/search' ? 6 : 1),
      body: ({ retryAfterMs }) => ({ again: retryAfterMs > 0 }),
    }),
    (_, response) => response.end('hello'),
  )
  expect((await fetch(`${url}/search`)).headers.get('ratelimit')).toBe('"api";r=4;t=360')
  const refused = await fetch(`${url}/search`)
  expect([refused.status, await refused.json()]).toEqual([429, { again: true }])
  expect((await fetch(url)).status).toBe(200)
})

test('an outage answers 503 where it denies, and is an error where it throws', async () => {
  const store = faulty(memory(), [{ effect: 'break-call', on: 'take' }])
  const options = { limit: 1, per: '1h' } as const
  const deny = createLocks(store).limiter('deny', { ...options, onStoreError: 'deny' })
  const thrown = createLocks(store).limiter('throw', options)
  const denied = await limitFetch(deny, hello, { key: () => 'a' })(new Request('http://shop'))
  expect([denied.status, denied.headers.has('retry-after')]).toEqual([503, true])
  const url = await serveSteps(limitExpress(thrown), (_, response) => response.end('hello'))
  const failed = await fetch(url)
  expect([failed.status, await failed.text()]).toEqual([500, 'StoreUnavailableError'])
})

test('a Response that is returned again and again shows the limits of one request', async () => {
  const locks = createLocks(memory())
  const headers = { RateLimit: '"own";r=1' }
  const fixed = new Response(null, { status: 204, headers })
  const inner = limitFetch(locks.limiter('inner', { limit: 9, per: '1h' }), () => fixed, { key: () => 'k' })
  const outer = limitFetch(locks.limiter('outer', { limit: 5, per: '1h' }), inner, { key: () => 'k' })
  const shown: (string | null)[] = []
  for (let i = 0; i < 3; i++) shown.push((await outer(new Request('http://localhost/'))).headers.get('ratelimit'))
  const remaining = shown.map((text) =>
    [...(text ?? '').matchAll(/"(\w+)";r=(\d+)/g)].map(([, ...item]) => item.join(' ')),
  )
  expect(remaining).toEqual([
    ['own 1', 'inner 8', 'outer 4'],
    ['own 1', 'inner 7', 'outer 3'],
    ['own 1', 'inner 6', 'outer 2'],
  ])
})

test('options of the wrong type are refused when the middleware is made', () => {
  const limiter = createLocks(memory()).limiter('api', { limit: 1, per: '1h' })
  const wrong: [options: object, says: string][] = [
    [{ key: 'x-api-key' }, 'key takes a function; it was "x-api-key"'],
    [{ skip: true }, 'skip takes a function; it was true'],
    [{ body: {} }, 'body takes a function; it was an object'],
    [{ cost: '2' }, 'cost takes a number or a function; it was "2"'],
  ]
  for (const [options, says] of wrong) {
    expect(() => limitExpress(limiter, options as never)).toThrow(says)
    expect(() => limitFastify(limiter, options as never)).toThrow(says)
    expect(() => limitFetch(limiter, () => new Response(), options as never)).toThrow(says)
  }
  expect(() => limitExpress(undefined as never)).toThrow('limiter takes what locks.limiter returns')
  expect(() => limitFetch(limiter, undefined as never)).toThrow('handler takes a function')
})

test('OPTIONS is neither counted nor limited', async () => {
  const limiter = createLocks(memory()).limiter('api', { limit: 1, per: '1h' })
  const handler = limitFetch(limiter, hello, { key: () => 'a' })
  for (let i = 0; i < 3; i++)
    expect((await handler(new Request('http://shop', { method: 'OPTIONS' }))).status).toBe(200)
  expect((await handler(new Request('http://shop'))).status).toBe(200)
  expect((await handler(new Request('http://shop'))).status).toBe(429)
})

test('a second limiter adds its items to those of the first', async () => {
  const locks = createLocks(memory())
  const outer = locks.limiter('outer', { limit: 100, per: '1h' })
  const inner = locks.limiter('inner', { limit: 3, per: '1h' })
  const key = { key: () => 'a' }
  const fetched = await limitFetch(outer, limitFetch(inner, hello, key), key)(new Request('http://shop'))
  expect(fetched.headers.get('ratelimit')).toBe('"inner";r=2;t=1200, "outer";r=99;t=36')
  const url = await serveSteps(limitExpress(outer, key), limitExpress(inner, key), (_, response) => response.end('ok'))
  const { headers } = await fetch(url)
  expect(headers.get('ratelimit')).toMatch(/^"outer";r=98;t=\d+, "inner";r=1;t=\d+$/)
  expect(headers.get('ratelimit-policy')).toBe('"outer";q=100;w=3600, "inner";q=3;w=3600')
})

test('unknown options and keys that are no text are refused', async () => {
  const limiter = createLocks(memory()).limiter('api', { limit: 1, per: '1h' })
  expect(() => limitExpress(limiter, { keyy: () => 'a' } as never)).toThrow(InvalidOptionError)
  const keyless = limitFetch(limiter, hello, { key: () => undefined as unknown as string })
  await expect(keyless(new Request('http://shop'))).rejects.toThrow(InvalidOptionError)
  expect((await limitFetch(limiter, () => Response.error(), { key: () => 'a' })(new Request('http://shop'))).type).toBe(
    'error',
  )
})

describe.each(expresses)('%s', (_, express) => {
  test('a response that a time-out answered while the store paused does not end the process', async () => {
    const paused = gate()
    const store = memory()
    const slow = Object.create(store, {
      timeoutMs: { value: 2_000 },
      take: {
        value: (...args: Parameters<NonNullable<typeof store.take>>) => paused.opened.then(() => store.take?.(...args)),
      },
    }) as typeof store
    const limiter = createLocks(slow).limiter('api', { limit: 1, per: '1h' })
    const app = express()
    let handled = 0
    const errors: unknown[] = []
    const handler: ExpressHandler = (__, response) => response.send(String(++handled))
    app.use(timeOut(50), limitExpress(limiter, { key: () => 'a' }) as ExpressHandler)
    app.get('/', handler)
    app.use((error, __, ___, next) => {
      errors.push(error)
      next(error)
    })
    const url = await listen(app)
    expect((await Promise.all([fetch(url), fetch(url)])).map(({ status }) => status)).toEqual([503, 503])
    paused.open()
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect((await fetch(url)).status).toBe(429)
    expect([handled, errors]).toEqual([0, []])
  })

  test('skip sees the URL that the client asked for, also where the middleware is mounted', async () => {
    const limiter = createLocks(memory()).limiter('api', { limit: 1, per: '1h' })
    const app = express()
    // The example of the documentation.
    const skip = (request: { originalUrl?: string }): boolean => request.originalUrl === '/api/health'
    app.use('/api', limitExpress(limiter, { skip }) as ExpressHandler)
    const handler: ExpressHandler = (__, response) => response.send('ok')
    app.get('/api/health', handler)
    app.get('/api/orders', handler)
    const url = await listen(app)
    for (let i = 0; i < 3; i++) expect((await fetch(`${url}/api/health`)).status).toBe(200)
    expect((await fetch(`${url}/api/orders`, { method: 'OPTIONS' })).status).toBe(200)
    expect((await fetch(`${url}/api/orders`)).status).toBe(200)
    expect((await fetch(`${url}/api/orders`)).status).toBe(429)
  })
})
