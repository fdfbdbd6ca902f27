/** `idempotentHandler` in Express 4, Express 5 and `node:http`. */
import { once } from 'node:events'
import { connect as connectHttp2, createServer as createHttp2Server } from 'node:http2'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { pipeline, Readable } from 'node:stream'
import { describe, expect, onTestFinished, test } from 'vitest'
import { idempotentHandler } from '../../../src/http/index.js'
import { createLocks, InvalidOptionError, memory } from '../../../src/index.js'
import { faulty } from '../../../src/testing/index.js'
import {
  type ExpressHandler,
  type ExpressRequest,
  type ExpressResponse,
  expresses,
  gate,
  listen,
  post,
  timeOut,
} from './express-versions.js'
import { VirtualLocks } from './virtual-locks.js'

const shared = { scope: () => '' }

describe.each(expresses)('%s', (_, express) => {
  test('a handler behind a time-out runs once, and the client that tries again gets what it sent late', async () => {
    const locks = new VirtualLocks('1000ms')
    const app = express()
    const work = gate()
    let runs = 0
    const charge: ExpressHandler = async (__, response) => {
      runs++
      await work.opened
      if (!response.headersSent) response.status(201).json({ charged: runs })
    }
    app.post('/', express.json(), timeOut(50), idempotentHandler(locks, charge, shared))
    const url = await listen(app)
    expect((await post(url, 'k')).status).toBe(503)
    // Well past the ttl: the lease lasts as long as the handler.
    await locks.passWhile(1_500, async () => expect((await post(url, 'k')).status).toBe(409))
    work.open()
    await locks.passUntil('it is recorded', async () => (await post(url, 'k')).status === 201)
    expect(await post(url, 'k')).toMatchObject({ text: '{"charged":1}', replayed: true })
    expect(runs).toBe(1)
  })

  test('the response is recorded when the handler first ends it, and an error after that changes nothing', async () => {
    const locks = createLocks(memory())
    const app = express()
    const errors: string[] = []
    const late: ExpressHandler = async (__, response, next) => {
      response.status(201).json({ ok: 1 })
      response.end('glued')
      expect([response.headersSent, response.writableEnded]).toEqual([true, true])
      expect(() => response.status(500).json({})).toThrow('after they are sent')
      next(new Error('audit log failed'))
    }
    app.post('/', idempotentHandler(locks, late, shared))
    app.use((error, __, response, next) => {
      errors.push(error.message)
      if (response.headersSent) return next(error)
      response.status(500).json({ error: error.message })
    })
    const url = await listen(app)
    expect(await post(url, 'k')).toMatchObject({ status: 201, text: '{"ok":1}', replayed: false })
    expect(await post(url, 'k')).toMatchObject({ status: 201, text: '{"ok":1}', replayed: true })
    expect(errors).toEqual(['audit log failed'])
  })

  test('a handler that returns a thenable which works when it is asked (a query builder) works once', async () => {
    const locks = createLocks(memory())
    const app = express()
    let inserts = 0
    const insert: ExpressHandler = (__, response) => ({
      // oxlint-disable-next-line unicorn/no-thenable -- as the query builders of knex and drizzle
      then(resolve: (rows: number) => void) {
        inserts++
        response.end('inserted')
        resolve(inserts)
      },
    })
    app.post('/', idempotentHandler(locks, insert, shared))
    const url = await listen(app)
    expect(await post(url, 'k')).toMatchObject({ status: 200, text: 'inserted' })
    expect(await post(url, 'k')).toMatchObject({ status: 200, text: 'inserted', replayed: true })
    expect(inserts).toBe(1)
  })

  test('a handler that rejects without an error has failed, and the request does not go on to the next handler', async () => {
    const locks = createLocks(memory())
    const app = express()
    // oxlint-disable-next-line prefer-promise-reject-errors -- that is the case
    app.post(
      '/',
      idempotentHandler(locks, () => Promise.reject(), shared),
    )
    app.post('/', (__, response) => response.send('the next handler'))
    app.use((error, __, response, ___) => response.status(500).send(error.message))
    expect(await post(await listen(app), 'k')).toMatchObject({ status: 500, text: expect.stringContaining('rejected') })
  })

  test('an error handler, and a handler that is passed the request, find the status and headers that were set', async () => {
    const locks = createLocks(memory())
    const app = express()
    const fails: ExpressHandler = (request, response, next) => {
      response.status(422).set('X-Reason', 'amount')
      const how = request.headers['x-how']
      if (how === 'throw') throw new Error('no amount')
      next(how === 'next' ? undefined : new Error('no amount'))
    }
    app.post('/', idempotentHandler(locks, fails, shared))
    app.post('/', (__, response) => response.send('passed on'))
    app.use((error, __, response, ___) => response.send(error.message))
    const url = await listen(app)
    for (const how of ['throw', 'error', 'next']) {
      const answer = await post(url, how, { headers: { 'x-how': how } })
      expect(answer).toMatchObject({ status: 422, text: how === 'next' ? 'passed on' : 'no amount' })
      expect(answer.headers.get('x-reason')).toBe('amount')
    }
  })

  test('an answer through request.res is recorded, and an error handler finds the response of the connection there', async () => {
    const locks = createLocks(memory())
    const app = express()
    let runs = 0
    const charge: ExpressHandler = (request) => {
      if (++runs === 1) throw new Error('not yet')
      ;(request as { res?: ExpressResponse }).res?.send(`run ${runs}`)
    }
    app.post('/', idempotentHandler(locks, charge, shared))
    app.use((error: Error, request: ExpressRequest, response: ExpressResponse, __: unknown) => {
      const same = (request as { res?: unknown }).res === response
      response.status(500).send(`${error.message} ${same}`)
    })
    const url = await listen(app)
    expect(await post(url, 'k')).toMatchObject({ status: 500, text: 'not yet true' })
    expect(await post(url, 'k')).toMatchObject({ status: 200, text: 'run 2', replayed: false })
    expect(await post(url, 'k')).toMatchObject({ status: 200, text: 'run 2', replayed: true })
  })

  test('an error that Express passes on by itself is an error of the handler: the key is free', async () => {
    const locks = createLocks(memory())
    const app = express()
    const send: ExpressHandler = (_request, response) =>
      (response as ExpressResponse & { sendFile(path: string): void }).sendFile('/no/such/file')
    app.post('/', idempotentHandler(locks, send, shared))
    app.use((error: Error & { code?: string }, _request: ExpressRequest, response: ExpressResponse, __: unknown) =>
      response.status(404).send(error.code),
    )
    const url = await listen(app)
    for (let i = 0; i < 2; i++)
      expect(await post(url, 'k')).toMatchObject({ status: 404, text: 'ENOENT', replayed: false })
  })

  test('the error handler gets the error of a handler that fails, and the key is free', async () => {
    const locks = createLocks(memory())
    const app = express()
    const steps: ExpressHandler[] = [
      () => {
        throw new Error('thrown')
      },
      () => Promise.reject(new Error('rejected')),
      (__, ___, next) => next(new Error('passed on')),
      (__, response) => response.status(429).set('Retry-After', '7').send('slow down'),
      (__, response) => response.status(500).send('broken'),
      (__, response) => response.send('charged'),
    ]
    const step: ExpressHandler = (...args) => steps.shift()?.(...args)
    app.post('/', idempotentHandler(locks, step, shared))
    app.use((error, __, response, ___) => response.status(500).send(error.message))
    const url = await listen(app)
    const seen: unknown[] = []
    for (let i = 0; i < 7; i++) {
      const { status, text, headers } = await post(url, 'k')
      seen.push([status, text, headers.get('retry-after')])
    }
    expect(seen).toEqual([
      [500, 'thrown', null],
      [500, 'rejected', null],
      [500, 'passed on', null],
      [429, 'slow down', '7'],
      [500, 'broken', null],
      [200, 'charged', null],
      [200, 'charged', null],
    ])
  })

  test('a broken stream ends its lease by the ttl and is served again', async () => {
    const locks = new VirtualLocks('300ms')
    const app = express()
    let runs = 0
    const broken: ExpressHandler = (__, response) => {
      if (++runs > 1) return response.send('whole')
      const pieces = Readable.from(
        (async function* () {
          yield 'a'
          await new Promise((resolve) => setTimeout(resolve, 20))
          throw new Error('upstream broke')
        })(),
      )
      return pipeline(pieces, response, () => {})
    }
    app.post('/', idempotentHandler(locks, broken, shared))
    const url = await listen(app)
    await expect(post(url, 'k')).rejects.toThrow()
    expect((await post(url, 'k')).status).toBe(409)
    await locks.passUntil('the key is free', async () => (await post(url, 'k')).status === 200)
    expect(runs).toBe(2)
  })

  test('a handler that stops when its client leaves frees the key by the ttl', async () => {
    const locks = new VirtualLocks('300ms')
    const app = express()
    let runs = 0
    const leaving = new AbortController()
    const handler: ExpressHandler = async (__, response) => {
      if (++runs > 1) return response.send('served')
      leaving.abort()
      await new Promise((resolve) => response.once('close', resolve))
      return undefined
    }
    app.post('/', idempotentHandler(locks, handler, shared))
    const url = await listen(app)
    await expect(post(url, 'k', { signal: leaving.signal })).rejects.toThrow()
    expect((await post(url, 'k')).status).toBe(409)
    await locks.passUntil('the key is free', async () => (await post(url, 'k')).text === 'served')
  })

  test('cookies, status text and earlier headers of the handler reach the client', async () => {
    const locks = createLocks(memory())
    const app = express()
    const handler: ExpressHandler = (__, response) => {
      response.writeHead(299, 'Fine Indeed', ['Set-Cookie', 'a=1', 'Set-Cookie', 'b=2', 'X-A', '1'])
      response.write('one ')
      response.write('two ')
      response.end('three')
    }
    const before: ExpressHandler = (__, response, next) => {
      response.set('X-Before', 'yes')
      next()
    }
    app.use(before)
    app.post('/', idempotentHandler(locks, handler, shared))
    const url = await listen(app)
    for (const cookies of [['a=1', 'b=2'], []]) {
      const { status, text, headers } = await post(url, 'k')
      expect([status, text, headers.get('x-a'), headers.get('x-before')]).toEqual([299, 'one two three', '1', 'yes'])
      expect(headers.getSetCookie()).toEqual(cookies)
    }
  })
})

test('scope is required when the handler is made, before anything is touched', async () => {
  const locks = createLocks(memory())
  const handler = (): void => {}
  for (const options of [undefined, {}, { scope: 'user' }, { ...shared, scopee: 1 }, { ...shared, maxBytes: 2e6 }]) {
    expect(() => idempotentHandler(locks, handler, options as unknown as typeof shared)).toThrow(InvalidOptionError)
  }
  const [, express] = expresses[0] as (typeof expresses)[0]
  const app = express()
  app.post('/', idempotentHandler(locks, handler, { scope: () => undefined as unknown as string }))
  app.use((error, _, response, __) => response.status(500).send(error.name))
  expect((await post(await listen(app), 'k')).text).toBe('InvalidOptionError')
})

test('a response of HTTP/2, which idempotentHandler cannot serve, does not keep its key', async () => {
  const locks = createLocks(memory())
  let runs = 0
  const charge = (): void => void runs++
  const errors: unknown[] = []
  const server = createHttp2Server((request, response) => {
    const handler = idempotentHandler(locks, charge, shared)
    void handler(request as never, response as never, (error) => {
      errors.push(error)
      response.writeHead(500).end()
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const client = connectHttp2(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  onTestFinished(() => {
    client.destroy()
    server.close()
  })
  for (let i = 0; i < 2; i++) {
    const stream = client.request({ ':method': 'POST', ':path': '/', 'idempotency-key': 'k' }).end()
    const [headers] = (await once(stream, 'response')) as [{ ':status'?: number }]
    expect(headers[':status'], 'not 409').toBe(500)
  }
  expect([runs, errors.length]).toEqual([0, 2])
  expect(await locks.holders('', { kind: 'run-once' })).toEqual([])
})

test('two users with the same key do not share a response, and a refreshed token is the same user', async () => {
  const locks = createLocks(memory())
  let runs = 0
  const [, express] = expresses[0] as (typeof expresses)[0]
  const app = express()
  const me: ExpressHandler = (__, response) => response.json({ runs: ++runs })
  const scope = (request: ExpressRequest): string => /user=(\w+)/.exec(request.headers['cookie'] ?? '')?.[1] ?? ''
  app.post('/', idempotentHandler(locks, me, { scope }))
  const url = await listen(app)
  const as = (cookie: string, authorization: string) => post(url, 'k', { headers: { cookie, authorization } })
  expect((await as('user=ada', 'Bearer old')).text).toBe('{"runs":1}')
  expect((await as('user=bob', 'Bearer old')).text).toBe('{"runs":2}')
  expect((await as('user=ada', 'Bearer new')).text).toBe('{"runs":1}')
})

describe('node:http', () => {
  async function serve(handler: (request: IncomingMessage, response: ServerResponse) => unknown): Promise<string> {
    const server = createServer((request, response) => void handler(request, response))
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    onTestFinished(() => {
      server.closeAllConnections()
      server.close()
    })
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }

  test('a handler that throws is answered with 500, its error goes to the caller, and its key is free', async () => {
    let runs = 0
    const errors: unknown[] = []
    const handler = idempotentHandler(
      createLocks(memory()),
      (_, response) => {
        if (++runs === 1) throw new Error('no luck')
        response.end('charged')
      },
      shared,
    )
    const url = await serve((request, response) => handler(request, response).catch((error) => errors.push(error)))
    expect((await post(url, 'k')).status).toBe(500)
    expect(errors).toMatchObject([{ message: 'no luck' }])
    expect((await post(url, 'k')).text).toBe('charged')
  })

  test('an outage of the store is answered with 503 and rejects nothing', async () => {
    const store = faulty(memory(), [{ effect: 'break-call', on: 'acquire' }])
    const handler = idempotentHandler(createLocks(store), () => {}, shared)
    const settled: unknown[] = []
    const url = await serve((request, response) => handler(request, response).then(() => settled.push('fine')))
    expect((await post(url, 'k')).status).toBe(503)
    expect(settled).toEqual(['fine'])
  })

  test('pieces arrive as they are written, and the repetition gets the whole', async () => {
    const next = gate()
    const handler = idempotentHandler(
      createLocks(memory()),
      async (_, response) => {
        response.setHeader('Content-Type', 'text/event-stream')
        response.flushHeaders()
        response.write('data: 1\n\n')
        await next.opened
        response.end('data: 2\n\n')
      },
      shared,
    )
    const url = await serve(handler)
    const response = await fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k' } })
    const reader = response.body?.getReader()
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe('data: 1\n\n')
    next.open()
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe('data: 2\n\n')
    expect((await reader?.read())?.done).toBe(true)
    const again = await post(url, 'k', { body: null })
    expect([again.text, again.headers.get('content-type')]).toEqual(['data: 1\n\ndata: 2\n\n', 'text/event-stream'])
  })

  test('a large response passes through in bounded memory, only its status is recorded, and a repeat gets 409', async () => {
    let runs = 0
    const handler = idempotentHandler(
      createLocks(memory()),
      (_, response) => {
        runs++
        let left = 200
        const pieces = new Readable({
          read() {
            this.push(left-- > 0 ? Buffer.alloc(1_000_000, 65) : null)
          },
        })
        pieces.pipe(response)
      },
      shared,
    )
    const url = await serve(handler)
    const before = process.memoryUsage().arrayBuffers
    let most = 0
    let total = 0
    const response = await fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k' } })
    for await (const chunk of response.body ?? []) {
      total += (chunk as Uint8Array).length
      most = Math.max(most, process.memoryUsage().arrayBuffers - before)
    }
    expect(total).toBe(200_000_000)
    expect(most).toBeLessThan(100_000_000)
    const again = await post(url, 'k', { body: null })
    expect([again.status, runs]).toEqual([409, 1])
    expect(again.text).toContain('status 200')
  })

  test('a response of known length is not complete before it is recorded', async () => {
    const locks = createLocks(memory())
    const handler = idempotentHandler(
      locks,
      async (_, response) => {
        const [held] = await locks.holders('http:', { kind: 'run-once' })
        await locks.forceRelease(held?.name ?? '', { kind: 'run-once' })
        response.setHeader('Content-Length', '2000000')
        response.write(Buffer.alloc(1_500_000))
        response.end(Buffer.alloc(500_000))
      },
      shared,
    )
    const url = await serve(handler)
    await expect(post(url, 'k', { body: null })).rejects.toThrow()
  })

  test('a handler that hangs blocks its key for maxHold at most', async () => {
    let runs = 0
    const locks = new VirtualLocks('100ms')
    const leaving = new AbortController()
    const handler = idempotentHandler(
      locks,
      async (_, response) => {
        if (++runs === 1) {
          leaving.abort()
          await new Promise(() => {})
        }
        response.end('served')
      },
      { ...shared, maxHold: '600ms' },
    )
    const url = await serve(handler)
    await expect(post(url, 'k', { signal: leaving.signal })).rejects.toThrow()
    const passedMs = await locks.passUntil('the key is free', async () => (await post(url, 'k')).status === 200)
    expect(passedMs).toBeGreaterThan(550)
    expect(passedMs).toBeLessThan(750)
  })
})
