/** The middleware inside the real Express and Fastify, which are loaded without their types. */
import { createRequire } from 'node:module'
import type { Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Readable, type Writable } from 'node:stream'
import { describe, expect, onTestFinished, test } from 'vitest'
import { idempotentExpress, idempotentFastify, limitExpress, limitFastify } from '../../../src/http/index.js'
import { createLocks, memory } from '../../../src/index.js'
import { until } from '../../../testbed/store-fixtures.js'
import { VirtualLocks } from './virtual-locks.js'

interface Outgoing {
  status(code: number): Outgoing
  code(code: number): Outgoing
  send(body?: unknown): unknown
  json(body: unknown): unknown
  hijack(): void
  raw: ServerResponse
}

type Handler = (request: { body: object }, response: Outgoing & Writable) => unknown

/** The part of both that is used here. */
interface App {
  set(name: string, value: unknown): void
  use(...handlers: unknown[]): void
  register(plugin: unknown): Promise<void>
  addHook(name: string, hook: unknown): void
  get(path: string, handler: Handler): void
  post(path: string, handler: Handler): void
  close(): Promise<void>
}

type Express = App & { listen(port: number, host: string, done: () => void): Server }
type Fastify = App & { listen(at: { port: number; host: string }): Promise<string> }

/** All callers share their keys. */
const shared = { scope: () => '' }

const load = createRequire(import.meta.url)

const ask = (url: string, key: string, body: object = { item: 1 }): Promise<Response> =>
  fetch(url, {
    method: 'POST',
    headers: { 'idempotency-key': key, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })

describe('Express', () => {
  const express = load('express') as (() => Express) & { json(): Handler }

  async function listen(app: Express): Promise<string> {
    const server = await new Promise<Server>((resolve) => {
      const started = app.listen(0, '127.0.0.1', () => resolve(started))
    })
    onTestFinished(() => {
      server.closeAllConnections()
      server.close()
    })
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }

  test('limits by address, behind a trusted proxy by the forwarded address', async () => {
    const limiter = createLocks(memory()).limiter('api', { limit: 1, per: '1h' })
    const app = express()
    app.set('trust proxy', 'loopback')
    app.use(limitExpress(limiter, { skip: ({ path }) => path === '/health' }))
    app.get('/{*any}', (_, response) => response.send('hello'))
    const url = await listen(app)
    const from = (address: string): Promise<Response> => fetch(url, { headers: { 'x-forwarded-for': address } })
    expect((await from('192.0.2.1')).headers.get('ratelimit')).toBe('"api";r=0;t=3600')
    expect((await from('192.0.2.1')).status).toBe(429)
    expect((await from('192.0.2.2')).status).toBe(200)
    expect((await fetch(`${url}/health`)).headers.has('ratelimit')).toBe(false)
  })

  test('serves a repeated request once, whatever the handler sends with', async () => {
    const locks = createLocks(memory())
    const app = express()
    let runs = 0
    app.use(express.json(), idempotentExpress(locks, shared))
    app.post('/json', (request, response) => response.status(201).json({ ...request.body, run: ++runs }))
    app.post('/stream', (_, response) => Readable.from(['a', 'b', String(++runs)]).pipe(response))
    const url = await listen(app)
    for (const path of ['/json', '/stream']) {
      const first = await ask(url + path, path)
      const again = await ask(url + path, path)
      expect(again.status).toBe(first.status)
      expect(again.headers.get('content-type')).toBe(first.headers.get('content-type'))
      expect(again.headers.get('idempotent-replayed')).toBe('true')
      expect(await again.text()).toBe(await first.text())
    }
    expect(runs).toBe(2)
    expect((await ask(`${url}/json`, '/json', { item: 2 })).status).toBe(422)
  })

  test('the error handler answers an error of the handler, which is not recorded', async () => {
    const locks = createLocks(memory())
    const app = express()
    let runs = 0
    app.use(idempotentExpress(locks, shared))
    app.post('/', async (_, response) => {
      if (++runs === 1) throw new Error('no luck')
      response.send('charged')
    })
    app.use((error: Error, _request: unknown, response: Outgoing, _next: unknown) =>
      response.status(500).send(error.message),
    )
    const url = await listen(app)
    const failed = await ask(url, 'key')
    expect([failed.status, await failed.text()]).toEqual([500, 'no luck'])
    expect(await (await ask(url, 'key')).text()).toBe('charged')
    expect(await (await ask(url, 'key')).text()).toBe('charged')
    expect(runs).toBe(2)
  })
})

describe('Fastify', () => {
  const fastify = load('fastify') as () => Fastify

  function make(): Fastify {
    const app = fastify()
    onTestFinished(() => app.close())
    return app
  }

  test('limits by address', async () => {
    const limiter = createLocks(memory()).limiter('api', { limit: 1, per: '1h' })
    const app = make()
    app.addHook('onRequest', limitFastify(limiter))
    app.get('/', async () => 'hello')
    const url = await app.listen({ port: 0, host: '127.0.0.1' })
    const first = await fetch(url)
    expect([await first.text(), first.headers.get('ratelimit')]).toEqual(['hello', '"api";r=0;t=3600'])
    const refused = await fetch(url)
    expect(refused.status).toBe(429)
    expect(refused.headers.get('content-type')).toContain('application/problem+json')
    expect(await refused.json()).toMatchObject({ title: 'Too Many Requests' })
  })

  test('serves a repeated request once, whatever the handler sends', async () => {
    const locks = createLocks(memory())
    const app = make()
    let runs = 0
    await app.register(idempotentFastify(locks, shared))
    app.post('/json', async (request, reply) => reply.code(201).send({ ...request.body, run: ++runs }))
    app.post('/stream', async () => Readable.from(['a', 'b', String(++runs)]))
    app.post('/bytes', async () => Buffer.from([0, 255, ++runs]))
    app.post('/nothing', async (_, reply) => reply.code(++runs === 0 ? 500 : 204).send())
    const url = await app.listen({ port: 0, host: '127.0.0.1' })
    for (const path of ['/json', '/stream', '/bytes', '/nothing']) {
      const first = await ask(url + path, path)
      const again = await ask(url + path, path)
      expect(again.status).toBe(first.status)
      expect(again.headers.get('content-type')).toBe(first.headers.get('content-type'))
      expect(again.headers.get('idempotent-replayed')).toBe('true')
      expect(Buffer.from(await again.arrayBuffer())).toEqual(Buffer.from(await first.arrayBuffer()))
    }
    expect(runs).toBe(4)
    expect((await ask(`${url}/json`, '/json', { item: 2 })).status).toBe(422)
  })

  test('a second request at the same time gets 409; errors and answers past Fastify are not recorded', async () => {
    const locks = new VirtualLocks('1000ms')
    const app = make()
    await app.register(idempotentFastify(locks, shared))
    let end = (): void => {}
    let began = false
    let runs = 0
    app.post('/slow', async () => {
      began = true
      await new Promise<void>((resolve) => (end = resolve))
      return 'done'
    })
    app.post('/failing', async () => {
      if (++runs === 1) throw new Error('no luck')
      return 'done'
    })
    app.post('/hijacked', async (_, reply) => {
      reply.hijack()
      reply.raw.end(`raw ${++runs}`)
    })
    const url = await app.listen({ port: 0, host: '127.0.0.1' })
    const first = ask(`${url}/slow`, 'slow')
    await until('it began', () => began)
    const busy = await ask(`${url}/slow`, 'slow')
    expect([busy.status, busy.headers.get('retry-after')]).toEqual([409, '1'])
    end()
    expect(await (await first).text()).toBe('done')
    expect((await ask(`${url}/failing`, 'failing')).status).toBe(500)
    expect(await (await ask(`${url}/failing`, 'failing')).text()).toBe('done')
    expect(await (await ask(`${url}/hijacked`, 'hijacked')).text()).toBe('raw 3')
    expect((await ask(`${url}/hijacked`, 'hijacked')).status).toBe(409)
    await locks.passUntil(
      'the key is free again',
      async () => (await ask(`${url}/hijacked`, 'hijacked')).status === 200,
    )
  })
})
