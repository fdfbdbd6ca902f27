/** `idempotentFetch`, by itself and inside Hono. */
import { Hono } from 'hono'
import { expect, test } from 'vitest'
import { idempotentFetch } from '../../../src/http/index.js'
import { createLocks, InvalidOptionError, memory } from '../../../src/index.js'
import { gate } from './express-versions.js'
import { VirtualLocks } from './virtual-locks.js'

const shared = { scope: () => '' }
const ask = (key: string, body = '{}'): Request =>
  new Request('http://shop/orders', { method: 'POST', headers: { 'idempotency-key': key }, body })

test('scope is required when the handler is made', () => {
  const locks = createLocks(memory())
  expect(() => idempotentFetch(locks, () => new Response(), {} as never)).toThrow(InvalidOptionError)
})

test('the pieces of a stream arrive as they come, its end when it is recorded', async () => {
  const more = gate()
  const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)
  const handler = idempotentFetch(
    createLocks(memory()),
    () =>
      new Response(
        new ReadableStream({
          async start(controller) {
            controller.enqueue(bytes('one '))
            await more.opened
            controller.enqueue(bytes('two'))
            controller.close()
          },
        }),
        { headers: { 'x-a': '1' } },
      ),
    shared,
  )
  const response = await handler(ask('k'))
  const reader = response.body?.getReader()
  expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe('one ')
  expect((await handler(ask('k'))).status).toBe(409)
  more.open()
  expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe('two')
  expect((await reader?.read())?.done).toBe(true)
  const again = await handler(ask('k'))
  expect([await again.text(), again.headers.get('x-a')]).toEqual(['one two', '1'])
})

test('a stream that breaks, or that its client cancels, frees its key by the ttl', async () => {
  let runs = 0
  const locks = new VirtualLocks('200ms')
  const handler = idempotentFetch(
    locks,
    () => {
      if (++runs % 2 === 0) return new Response('whole')
      let turn = 0
      return new Response(
        new ReadableStream({
          async pull(controller) {
            await new Promise((resolve) => setTimeout(resolve, 10))
            if (turn++ === 0) controller.enqueue(new Uint8Array([1]))
            else controller.error(new Error('upstream broke'))
          },
        }),
      )
    },
    shared,
  )
  await expect((await handler(ask('broken'))).text()).rejects.toThrow('upstream broke')
  expect((await handler(ask('broken'))).status).toBe(409)
  await locks.passUntil('it is served', async () => (await handler(ask('broken'))).status === 200)
  await (await handler(ask('cancelled'))).body?.cancel()
  expect((await handler(ask('cancelled'))).status).toBe(409)
  await locks.passUntil('it is served', async () => (await handler(ask('cancelled'))).status === 200)
  expect(runs).toBe(4)
})

test('a stream of text is recorded as the bytes that its client gets', async () => {
  const texts = (): ReadableStream =>
    new ReadableStream({
      async pull(controller) {
        await new Promise((resolve) => setTimeout(resolve, 10))
        controller.enqueue('grün')
        controller.close()
      },
    })
  const handler = idempotentFetch(createLocks(memory()), () => new Response(texts()), shared)
  expect(await (await handler(ask('k'))).text()).toBe('grün')
  expect(await (await handler(ask('k'))).text()).toBe('grün')
})

const pieces = (...chunks: unknown[]): ReadableStream =>
  new ReadableStream({
    async pull(controller) {
      await new Promise((resolve) => setTimeout(resolve, 10))
      if (chunks.length > 0) controller.enqueue(chunks.shift())
      else controller.close()
    },
  })
const drained = async (): Promise<Response> => {
  const response = new Response('read before')
  await response.text()
  return response
}
const locked = (): Response => {
  const response = new Response('locked')
  response.body?.getReader()
  return response
}

test.each<[what: string, first: () => unknown, options?: { record: () => boolean }]>([
  ['is no Response', () => undefined],
  ['has been read before', drained],
  ['is locked', locked],
  ['streams something else than bytes', () => new Response(pieces(new Uint8Array(1), { not: 'bytes' }))],
  [
    'is judged by a record() that throws',
    () => new Response('x'),
    {
      record: () => {
        throw new Error('no verdict')
      },
    },
  ],
])('a handler whose result %s frees its key by the ttl', async (_, first, options) => {
  let runs = 0
  let broken = options
  const locks = new VirtualLocks('200ms')
  const handler = idempotentFetch(locks, () => (++runs === 1 ? (first() as Response) : new Response('whole')), {
    ...shared,
    record: () => broken?.record() ?? true,
  })
  await expect(handler(ask('k')).then((response) => response.text())).rejects.toThrow()
  broken = undefined
  expect((await handler(ask('k'))).status).toBe(409)
  await locks.passUntil('it is served', async () => (await handler(ask('k'))).status === 200)
  expect(runs).toBe(2)
})

test('an unread stream frees its key by the ttl after its request was aborted', async () => {
  const left = new AbortController()
  let runs = 0
  const locks = new VirtualLocks('200ms')
  const handler = idempotentFetch(
    locks,
    () => (++runs === 1 ? new Response(pieces(new Uint8Array(70_000), new Uint8Array(70_000))) : new Response('whole')),
    shared,
  )
  await handler(new Request(ask('k'), { signal: left.signal }))
  left.abort()
  expect((await handler(ask('k'))).status).toBe(409)
  await locks.passUntil('it is served', async () => (await handler(ask('k'))).status === 200)
  expect(runs).toBe(2)
})

test('a caller that gives up does not end the run, and the next caller gets its response', async () => {
  const work = gate()
  let runs = 0
  const locks = new VirtualLocks('1000ms')
  const handler = idempotentFetch(
    locks,
    async () => {
      runs++
      await work.opened
      return new Response('charged', { status: 201, statusText: 'Made It' })
    },
    shared,
  )
  const late = new Promise<Response>((resolve) => setTimeout(() => resolve(new Response('', { status: 503 })), 20))
  expect((await Promise.race([handler(ask('k')), late])).status).toBe(503)
  // Well past the ttl: the lease lasts as long as the handler.
  await locks.passWhile(1_500, async () => expect((await handler(ask('k'))).status).toBe(409))
  work.open()
  await locks.passUntil('it is recorded', async () => (await handler(ask('k'))).status === 201)
  const again = await handler(ask('k'))
  expect([await again.text(), again.statusText, runs]).toEqual(['charged', 'Made It', 1])
})

test('redirects, errors and cookies reach the client unchanged', async () => {
  const locks = createLocks(memory())
  const redirect = idempotentFetch(locks, () => Response.redirect('http://b/', 303), shared)
  for (let i = 0; i < 2; i++) {
    const { status, headers } = await redirect(ask('redirect'))
    expect([status, headers.get('location')]).toEqual([303, 'http://b/'])
  }
  let runs = 0
  const failing = idempotentFetch(locks, () => (++runs, Response.error()), shared)
  expect([(await failing(ask('error'))).type, (await failing(ask('error'))).type, runs]).toEqual(['error', 'error', 2])
  const cookies = idempotentFetch(
    locks,
    () => new Response('c', { headers: [...['a=1', 'b=2'].map((each) => ['set-cookie', each] as [string, string])] }),
    shared,
  )
  expect((await cookies(ask('cookies'))).headers.getSetCookie()).toEqual(['a=1', 'b=2'])
})

test('a megabyte is replayed whatever its bytes, and headers that make it too large do not let it run again', async () => {
  const locks = createLocks(memory())
  let runs = 0
  const bytes = new Uint8Array(1_048_576).map((_, i) => (i * 7919) % 256)
  const large = idempotentFetch(locks, () => (++runs, new Response(bytes)), shared)
  await large(ask('bytes'))
  expect(Buffer.from(await (await large(ask('bytes'))).arrayBuffer()).equals(bytes)).toBe(true)
  const headers = { 'x-big': 'y'.repeat(600_000) }
  const heavy = idempotentFetch(locks, () => (++runs, new Response(bytes, { headers })), shared)
  expect((await heavy(ask('heavy'))).status).toBe(200)
  expect((await heavy(ask('heavy'))).status).toBe(409)
  expect(runs).toBe(2)
})

test('Hono serves a request whose body middleware has read before, and a fingerprint can replace the body', async () => {
  const locks = createLocks(memory())
  let runs = 0
  const app = new Hono<{ Variables: { body: string } }>()
  app.use('*', async (c, next) => {
    c.set('body', await c.req.text())
    await next()
  })
  app.post('/orders', (c) => {
    const fingerprint = (): string => c.get('body')
    return idempotentFetch(locks, () => new Response(`run ${++runs}`), { ...shared, fingerprint })(c.req.raw)
  })
  app.post('/plain', (c) => idempotentFetch(locks, () => new Response(`run ${++runs}`), shared)(c.req.raw))
  const go = (path: string, body: string): Response | Promise<Response> =>
    app.request(path, { method: 'POST', headers: { 'idempotency-key': path }, body })
  expect(await (await go('/orders', 'a')).text()).toBe('run 1')
  expect(await (await go('/orders', 'a')).text()).toBe('run 1')
  expect((await go('/orders', 'b')).status).toBe(422)
  expect(await (await go('/plain', 'a')).text()).toBe('run 2')
  expect(await (await go('/plain', 'a')).text()).toBe('run 2')
})

test('a quoted key is the same as the bare one', async () => {
  let runs = 0
  const handler = idempotentFetch(createLocks(memory()), () => new Response(`run ${++runs}`), shared)
  expect(await (await handler(ask('a"b'))).text()).toBe('run 1')
  expect(await (await handler(ask('"a\\"b"'))).text()).toBe('run 1')
  expect((await handler(ask('""'))).status).toBe(400)
})
