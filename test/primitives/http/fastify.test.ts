/** `idempotentFastify` in the real Fastify, which is loaded without its types. */
import { createRequire } from 'node:module'
import { Readable } from 'node:stream'
import type { ServerResponse } from 'node:http'
import { expect, onTestFinished, test } from 'vitest'
import { idempotentFastify } from '../../../src/http/index.js'
import { createLocks, InvalidOptionError, memory } from '../../../src/index.js'
import { until } from '../limiter/places.js'
import { gate, post } from './expresses.js'

interface Reply {
  code(status: number): Reply
  header(name: string, value: string | string[]): Reply
  send(body?: unknown): Reply
  raw: ServerResponse
}

interface App {
  register(plugin: unknown): Promise<void>
  post(path: string, handler: (request: object, reply: Reply) => unknown): void
  listen(at: { port: number; host: string }): Promise<string>
  close(): Promise<void>
}

const fastify = createRequire(import.meta.url)('fastify') as (options?: object) => App
const shared = { scope: () => '' }

function make(options: object = {}): App {
  const app = fastify({ forceCloseConnections: true, ...options })
  onTestFinished(() => app.close())
  return app
}

const start = (app: App): Promise<string> => app.listen({ port: 0, host: '127.0.0.1' })

/** A stream that ends or breaks when told to. */
function pieces(end: Promise<void>, error?: Error): Readable {
  return Readable.from(
    (async function* () {
      yield 'one '
      await end
      if (error) throw error
      yield 'two'
    })(),
  )
}

test('scope is required when the plugin is made', () => {
  expect(() => idempotentFastify(createLocks(memory()), {} as never)).toThrow(InvalidOptionError)
})

test('a Response, a web stream and lists of cookies are served as without it, once', async () => {
  const app = make()
  let runs = 0
  await app.register(idempotentFastify(createLocks(memory()), shared))
  app.post('/response', async () => new Response(`run ${++runs}`, { status: 201, headers: { 'x-a': '1' } }))
  app.post('/web', async () => new Response(`run ${++runs}`).body)
  app.post('/cookie', async (_, reply) => {
    reply.header('set-cookie', ['a=1', 'b=2'])
    return `run ${++runs}`
  })
  const url = await start(app)
  for (const path of ['/response', '/web', '/cookie']) {
    const first = await post(url + path, path)
    const again = await post(url + path, path)
    expect([again.status, again.text, again.replayed]).toEqual([first.status, first.text, true])
    expect(again.headers.get('x-a')).toBe(first.headers.get('x-a'))
    if (path === '/response') expect([first.status, first.text, first.headers.get('x-a')]).toEqual([201, 'run 1', '1'])
    if (path === '/cookie') expect(first.headers.getSetCookie()).toEqual(['a=1', 'b=2'])
  }
  expect(runs).toBe(3)
})

test('the pieces of a stream arrive as they come, and a stream that breaks frees its key by the ttl', async () => {
  const app = make()
  let runs = 0
  const more = gate()
  await app.register(idempotentFastify(createLocks(memory(), { ttl: '300ms' }), shared))
  app.post('/stream', async (_, reply) => reply.header('content-type', 'text/plain').send(pieces(more.opened)))
  app.post('/broken', async (_, reply) => {
    reply.header('content-type', 'text/plain')
    return ++runs > 1 ? 'whole' : pieces(Promise.resolve(), new Error('upstream broke'))
  })
  const url = await start(app)
  const response = await fetch(`${url}/stream`, { method: 'POST', headers: { 'idempotency-key': 's' } })
  const reader = response.body?.getReader()
  expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe('one ')
  more.open()
  expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe('two')
  await reader?.read()
  expect(await post(`${url}/stream`, 's', { body: null, headers: { 'content-type': 'text/plain' } })).toMatchObject({
    status: 200,
    text: 'one two',
    replayed: true,
  })
  await expect(post(`${url}/broken`, 'b')).rejects.toThrow()
  expect((await post(`${url}/broken`, 'b')).status).toBe(409)
  await until('the key is free', async () => (await post(`${url}/broken`, 'b')).text === 'whole')
  expect(runs).toBe(2)
})

test('after a time-out or a client that left, the key is in progress for as long as the handler runs', async () => {
  const app = make()
  let runs = 0
  let work = gate()
  await app.register(idempotentFastify(createLocks(memory(), { ttl: '150ms' }), shared))
  app.post('/', async (_, reply) => {
    if (++runs % 2 === 0) return 'served'
    setTimeout(() => {
      if (!reply.raw.headersSent && !reply.raw.destroyed) reply.code(503).send('timed out')
    }, 30)
    await work.opened
    return undefined
  })
  const url = await start(app)
  const blocked = async (): Promise<void> => {
    for (const end = Date.now() + 400; Date.now() < end; ) expect((await post(url, 'k')).status).toBe(409)
    work.open()
    await post(url, 'k')
  }
  expect((await post(url, 'k')).status).toBe(503)
  await blocked()
  await until('it is served', async () => (await post(url, 'k')).text === 'served')
  work = gate()
  const key = { headers: { 'idempotency-key': 'other' } }
  await expect(post(url, 'k', { ...key, signal: AbortSignal.timeout(10) })).rejects.toThrow()
  for (const end = Date.now() + 400; Date.now() < end; ) expect((await post(url, 'other')).status).toBe(409)
  work.open()
  await until('the other is served', async () => (await post(url, 'other')).text === 'served')
  expect(runs).toBe(4)
})

test('routes that were there before the plugin are served once too', async () => {
  const app = make()
  let runs = 0
  app.post('/', async () => `run ${++runs}`)
  void app.register(idempotentFastify(createLocks(memory()), shared))
  const url = await start(app)
  expect([(await post(url, 'k')).text, (await post(url, 'k')).text]).toEqual(['run 1', 'run 1'])
})
