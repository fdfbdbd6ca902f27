/** `idempotentFastify` in the real Fastify, which is loaded without its types. */
import { createRequire } from 'node:module'
import { Readable } from 'node:stream'
import type { ServerResponse } from 'node:http'
import { expect, onTestFinished, test } from 'vitest'
import { idempotentFastify } from '../../../src/http/index.js'
import { createLocks, InvalidOptionError, memory } from '../../../src/index.js'
import { until } from '../../../testbed/store-fixtures.js'
import { gate, post } from './express-versions.js'
import { VirtualLocks } from './virtual-locks.js'

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

/** A stream that ends or breaks on demand. */
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

test('a Response, a web stream and lists of cookies are served as without the plugin, once', async () => {
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

test('a handler that returns a thenable which works when it is asked (a query builder) works once', async () => {
  const app = make()
  let inserts = 0
  await app.register(idempotentFastify(createLocks(memory()), shared))
  app.post('/', () => ({
    // oxlint-disable-next-line unicorn/no-thenable -- as the query builders of knex and drizzle
    then: (resolve: (text: string) => void) => resolve(`insert ${++inserts}`),
  }))
  const url = await start(app)
  expect(await post(url, 'k')).toMatchObject({ text: 'insert 1', replayed: false })
  expect(await post(url, 'k')).toMatchObject({ text: 'insert 1', replayed: true })
  expect(inserts).toBe(1)
})

test('the pieces of a stream arrive as they come, and a stream that breaks frees its key by the ttl', async () => {
  const app = make()
  let runs = 0
  const more = gate()
  const locks = new VirtualLocks('300ms')
  await app.register(idempotentFastify(locks, shared))
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
  await locks.passUntil('the key is free', async () => (await post(`${url}/broken`, 'b')).text === 'whole')
  expect(runs).toBe(2)
})

test('after a time-out or a client that left, the key is in progress for as long as the handler runs', async () => {
  const app = make()
  const runs = new Map<string, number>()
  const gone = new AbortController()
  const work = { timeout: gate(), left: gate() }
  const locks = new VirtualLocks('1000ms')
  await app.register(idempotentFastify(locks, shared))
  const handler = (key: 'timeout' | 'left') => async (_: object, reply: Reply) => {
    runs.set(key, (runs.get(key) ?? 0) + 1)
    if (runs.get(key) === 2) return 'served'
    if (key === 'timeout') reply.code(503).send('timed out')
    else gone.abort()
    await work[key].opened
    return undefined
  }
  app.post('/timeout', handler('timeout'))
  app.post('/left', handler('left'))
  const url = await start(app)
  expect((await post(`${url}/timeout`, 'timeout')).status).toBe(503)
  await expect(post(`${url}/left`, 'left', { signal: gone.signal })).rejects.toThrow()
  await locks.passWhile(1_500, async () => {
    for (const key of ['timeout', 'left']) expect((await post(`${url}/${key}`, key)).status).toBe(409)
  })
  for (const key of ['timeout', 'left'] as const) {
    work[key].open()
    await locks.passUntil('it is served', async () => (await post(`${url}/${key}`, key)).text === 'served')
    expect(runs.get(key)).toBe(2)
  }
})

test('a route that was added before the plugin serves a key once, too', async () => {
  const app = make()
  let runs = 0
  app.post('/', async () => `run ${++runs}`)
  void app.register(idempotentFastify(createLocks(memory()), shared))
  const url = await start(app)
  expect([(await post(url, 'k')).text, (await post(url, 'k')).text]).toEqual(['run 1', 'run 1'])
})

test('of two answers at the same moment the first counts, and no success passes that was not recorded', async () => {
  const app = make()
  let runs = 0
  await app.register(idempotentFastify(new VirtualLocks('200ms'), shared))
  app.post('/failed-first', async (_, reply) => {
    reply.code(503).send('timed out')
    reply.code(201).send(`run ${++runs}`)
    return reply
  })
  app.post('/served-first', async (_, reply) => {
    reply.code(201).send(`run ${++runs}`)
    reply.code(503).send('timed out')
    return reply
  })
  const url = await start(app)
  expect(await post(`${url}/failed-first`, 'f')).toMatchObject({ status: 503, text: 'timed out' })
  expect(await post(`${url}/served-first`, 's')).toMatchObject({ status: 201, text: 'run 2', replayed: false })
  expect(await post(`${url}/served-first`, 's')).toMatchObject({ status: 201, text: 'run 2', replayed: true })
})

test('an error in a later hook is answered, and the record stays', async () => {
  const app = make()
  let runs = 0
  await app.register(idempotentFastify(createLocks(memory()), shared))
  const onSend = async (): Promise<void> => {
    if (runs++ === 0) throw new Error('late')
  }
  ;(app.post as (path: string, options: object, handler: () => unknown) => void)('/', { onSend }, async () => 'served')
  const url = await start(app)
  expect((await post(url, 'k')).status).toBe(500)
  expect(await post(url, 'k')).toMatchObject({ status: 200, text: 'served', replayed: true })
})

test('a request whose client left while it waited for the key does not run the handler', async () => {
  const app = make()
  const locks = createLocks(memory())
  const runs: string[] = []
  const work = gate()
  await app.register(idempotentFastify(locks, { ...shared, wait: '10s' }))
  app.post('/:key', async (request, reply) => {
    const { key } = (request as { params: { key: string } }).params
    runs.push(key)
    await work.opened
    return reply.code(key === 'failed' ? 500 : 201).send('answered')
  })
  const url = await start(app)
  for (const key of ['failed', 'served']) {
    const first = post(`${url}/${key}`, key)
    await until('it runs', () => runs.includes(key))
    const gone = new AbortController()
    const second = post(`${url}/${key}`, key, { signal: gone.signal })
    const name = async (): Promise<boolean> =>
      (await locks.holders('http:', { kind: 'run-once' })).some(({ waiting }) => waiting)
    await until('the second waits', name)
    gone.abort()
    await expect(second).rejects.toThrow()
    if (key === 'served') work.open()
    void first.catch(() => {})
  }
  await new Promise((resolve) => setTimeout(resolve, 200))
  expect(runs).toEqual(['failed', 'served'])
})
