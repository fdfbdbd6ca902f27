/** `idempotentExpress` in Express 4 and 5: middleware that cannot see when the handler returns. */
import { request as httpRequest } from 'node:http'
import { pipeline, Readable } from 'node:stream'
import { describe, expect, test } from 'vitest'
import { idempotentExpress, idempotentHandler } from '../../../src/http/index.js'
import { createLocks, InvalidOptionError, memory } from '../../../src/index.js'
import { until } from '../../../testbed/store-fixtures.js'
import {
  type ExpressHandler,
  type ExpressResponse,
  expresses,
  gate,
  listen,
  type Next,
  post,
  timeOut,
} from './express-versions.js'
import { VirtualLocks } from './virtual-locks.js'

const shared = { scope: () => '' }

test('scope is required when the middleware is made', () => {
  const locks = createLocks(memory())
  expect(() => idempotentExpress(locks, undefined as never)).toThrow(InvalidOptionError)
  expect(() => idempotentExpress(locks, {} as never)).toThrow(/^scope takes a function/)
  expect(() => idempotentExpress({} as never, shared)).toThrow(InvalidOptionError)
})

describe.each(expresses)('%s', (_, express) => {
  test.each([
    [503, 'before'],
    [504, 'before'],
    [408, 'before'],
    [500, 'before'],
    [503, 'behind'],
  ])('after a time-out with %d %s it, the key stays in progress until the ttl', async (status, where) => {
    const locks = new VirtualLocks('400ms')
    const app = express()
    let running = 0
    let most = 0
    const charge: ExpressHandler = async (__, response) => {
      most = Math.max(most, ++running)
      await new Promise<void>((resolve) => locks.world.after(280, resolve))
      running--
      if (!response.headersSent) response.json({ charged: true })
    }
    const idempotent = idempotentExpress(locks, shared)
    const late = timeOut(40, status)
    app.post('/', ...(where === 'before' ? [late, idempotent] : [idempotent, late]), charge)
    const url = await listen(app)
    expect((await post(url, 'k')).status).toBe(status)
    let seen = 409
    const passedMs = await locks.passUntil('it runs again', async () => {
      seen = (await post(url, 'k')).status
      return seen !== 409
    })
    expect(passedMs).toBeGreaterThan(300)
    expect([seen, most]).toEqual([status, 1])
  })

  test('a record() that throws is answered with an error, and the key is free after the ttl', async () => {
    const locks = new VirtualLocks('200ms')
    const app = express()
    app.set('env', 'test')
    let runs = 0
    const record = (): boolean => {
      if (runs === 1) throw new Error('no verdict')
      return true
    }
    const charge: ExpressHandler = (__, response) => response.status(201).send(`run ${++runs}`)
    app.post('/middleware', idempotentExpress(locks, { ...shared, record }), charge)
    app.post('/handler', idempotentHandler(locks, charge, { ...shared, record }))
    const url = await listen(app)
    for (const path of ['/middleware', '/handler']) {
      runs = 0
      expect((await post(url + path, path)).status).toBe(500)
      expect((await post(url + path, path)).status).toBe(409)
      await locks.passUntil('it is served', async () => (await post(url + path, path)).status === 201)
      expect(runs).toBe(2)
    }
  })

  test.each<[string, (response: ExpressResponse) => void]>([
    ['a status that is none', (response) => void ((response as { statusCode: unknown }).statusCode = undefined)],
    ['a status text with a line break', (response) => void (response.statusMessage = 'a\nb')],
    ['writeHead with a status that is none', (response) => void response.writeHead(9_999)],
    [
      'a status text in front of pieces',
      (response) => {
        response.statusMessage = 'a\nb'
        response.write('x')
      },
    ],
  ])('%s is an error of the handler, as without the middleware, and is not recorded', async (_what, prepare) => {
    const locks = createLocks(memory())
    const app = express()
    let runs = 0
    const charge: ExpressHandler = (__, response) => {
      if (++runs === 1) prepare(response)
      response.end('charged')
    }
    app.post('/middleware', idempotentExpress(locks, shared), charge)
    app.post('/handler', idempotentHandler(locks, charge, shared))
    app.use((error: Error & { code?: string }, __: unknown, response: ExpressResponse, ___: Next) => {
      response.statusMessage = ''
      response.status(500).send(`handled ${error.code}`)
    })
    const url = await listen(app)
    for (const path of ['/middleware', '/handler']) {
      runs = 0
      expect(await post(url + path, path)).toMatchObject({ status: 500, text: expect.stringMatching(/^handled ERR_/) })
      await until('it is served again', async () => (await post(url + path, path)).text === 'charged')
      expect(runs).toBe(2)
    }
  })

  test('middleware in front that throws when the head is sent is answered with an error, and the record stays', async () => {
    const locks = createLocks(memory())
    const app = express()
    let runs = 0
    const charge: ExpressHandler = (__, response) => response.status(201).send(`run ${++runs}`)
    app.use((__: unknown, response: ExpressResponse, next: Next) => {
      const { writeHead } = response
      response.writeHead = function once(...args: never[]): never {
        response.writeHead = writeHead
        if (runs === 1 && !replaying) throw new Error(`no head ${args.length}`)
        return (writeHead as (...all: never[]) => never).apply(response, args)
      } as never
      next()
    })
    let replaying = false
    app.post('/middleware', idempotentExpress(locks, shared), charge)
    app.post('/handler', idempotentHandler(locks, charge, shared))
    app.use((error: Error, __: unknown, response: ExpressResponse, ___: Next) =>
      response.status(500).send(error.message),
    )
    const url = await listen(app)
    for (const path of ['/middleware', '/handler']) {
      ;[runs, replaying] = [0, false]
      expect(await post(url + path, path)).toMatchObject({ status: 500, text: 'no head 1' })
      replaying = true
      expect(await post(url + path, path)).toMatchObject({ status: 201, text: 'run 1', replayed: true })
    }
  })

  test('a repetition whose head cannot be sent is an error that does not look like a repetition', async () => {
    const locks = createLocks(memory())
    const app = express()
    let runs = 0
    const charge: ExpressHandler = (__, response) => response.status(201).send(`run ${++runs}`)
    app.use((__: unknown, response: ExpressResponse, next: Next) => {
      const { writeHead } = response
      response.writeHead = function once(...args: never[]): never {
        response.writeHead = writeHead
        if (response.getHeader('Idempotent-Replayed') !== undefined) throw new Error('no head')
        return (writeHead as (...all: never[]) => never).apply(response, args)
      } as never
      next()
    })
    app.post('/middleware', idempotentExpress(locks, shared), charge)
    app.post('/handler', idempotentHandler(locks, charge, shared))
    app.use((error: Error, __: unknown, response: ExpressResponse, ___: Next) =>
      response.status(500).send(error.message),
    )
    const url = await listen(app)
    for (const path of ['/middleware', '/handler']) {
      runs = 0
      expect(await post(url + path, path)).toMatchObject({ status: 201, text: 'run 1' })
      expect(await post(url + path, path)).toMatchObject({ status: 500, text: 'no head', replayed: false })
      expect(runs).toBe(1)
    }
  })

  test('a 204 is sent and replayed by a server that refuses bodies where there are none', async () => {
    const locks = createLocks(memory())
    const app = express()
    let runs = 0
    const remove: ExpressHandler = (__, response) => {
      runs++
      response.statusCode = 204
      response.end()
    }
    app.post('/middleware', idempotentExpress(locks, shared), remove)
    app.post('/handler', idempotentHandler(locks, remove, shared))
    const url = await listen((request, response) => app(request, response), { rejectNonStandardBodyWrites: true })
    for (const path of ['/middleware', '/handler']) {
      runs = 0
      expect(await post(url + path, path)).toMatchObject({ status: 204, replayed: false })
      expect(await post(url + path, path)).toMatchObject({ status: 204, replayed: true })
      expect(runs).toBe(1)
    }
  })

  test('a request that was answered before its handler began does not run it', async () => {
    const locks = createLocks(memory())
    const app = express()
    const first = gate()
    let runs = 0
    const handler: ExpressHandler = async (__, response) => {
      runs++
      await first.opened
      response.status(500).end()
    }
    app.post('/', timeOut(100, 503), idempotentExpress(locks, { ...shared, wait: '5s' }), handler)
    app.post('/free', idempotentExpress(locks, shared), handler)
    const url = await listen(app)
    // The time-out answers both; the second request still waits for the key when the first releases it.
    await Promise.all([post(url, 'k'), post(url, 'k')])
    first.open()
    await new Promise((resolve) => setTimeout(resolve, 100))
    expect(runs).toBe(1)
  })

  test('the first end counts: a second answer is refused, and changes neither the response nor the record', async () => {
    const locks = createLocks(memory())
    const app = express()
    const seen: unknown[] = []
    app.post('/', idempotentExpress(locks, shared), (__, response) => {
      response.status(201).json({ ok: 1 })
      seen.push(response.headersSent, response.writableEnded)
      response.end('two')
      try {
        response.status(500).json({ error: 1 })
      } catch (error) {
        seen.push((error as { code: string }).code)
      }
    })
    const url = await listen(app)
    expect(await post(url, 'k')).toMatchObject({ status: 201, text: '{"ok":1}', replayed: false })
    expect(await post(url, 'k')).toMatchObject({ status: 201, text: '{"ok":1}', replayed: true })
    expect(seen).toEqual([true, true, 'ERR_HTTP_HEADERS_SENT'])
  })

  test('an error after the response ended does not become part of it', async () => {
    const locks = createLocks(memory())
    const app = express()
    app.post('/', idempotentExpress(locks, shared), (__, response, next) => {
      response.status(201).json({ ok: 1 })
      next(new Error('audit log failed'))
    })
    app.use((error, __, response, next) => {
      if (response.headersSent) return next(error)
      response.status(500).json({ error: error.message })
    })
    const url = await listen(app)
    // Express closes the connection of such a request; it does so without the middleware, too.
    const first = await post(url, 'k').catch(() => undefined)
    if (first) expect(first).toMatchObject({ status: 201, text: '{"ok":1}' })
    expect(await post(url, 'k')).toMatchObject({ status: 201, text: '{"ok":1}', replayed: true })
  })

  test('a broken stream and a client that left free the key by the ttl, although the handler never ends it', async () => {
    const locks = new VirtualLocks('300ms')
    const app = express()
    const kept = new Set<unknown>()
    let runs = 0
    const broken: ExpressHandler = (__, response) => {
      kept.add(response)
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
    const leaving = new AbortController()
    const never: ExpressHandler = (__, response) => {
      kept.add(response)
      leaving.abort()
      if (++runs > 3) response.send('whole')
    }
    app.post('/pipe', idempotentExpress(locks, shared), broken)
    app.post('/never', idempotentExpress(locks, shared), never)
    const url = await listen(app)
    await expect(post(`${url}/pipe`, 'p')).rejects.toThrow()
    expect((await post(`${url}/pipe`, 'p')).status).toBe(409)
    await locks.passUntil('the key of the stream is free', async () => (await post(`${url}/pipe`, 'p')).status === 200)
    expect(runs).toBe(2)
    await expect(post(`${url}/never`, 'n', { signal: leaving.signal })).rejects.toThrow()
    expect((await post(`${url}/never`, 'n')).status).toBe(409)
    await locks.passUntil('the key of the client is free', async () => (await post(`${url}/never`, 'n')).status === 200)
  })

  test.each([401, 408, 425, 429, 500, 502])('%d is not recorded, and keeps its Retry-After', async (status) => {
    const locks = new VirtualLocks('200ms')
    const app = express()
    let runs = 0
    app.post('/', idempotentExpress(locks, shared), (__, response) => {
      response
        .status(++runs === 1 ? status : 402)
        .set('Retry-After', '1')
        .end()
    })
    const url = await listen(app)
    const first = await post(url, 'k')
    expect([first.status, first.headers.get('retry-after')]).toEqual([status, '1'])
    await locks.passUntil('it runs again', async () => (await post(url, 'k')).status === 402)
    expect(await post(url, 'k')).toMatchObject({ status: 402, replayed: true })
    expect((await post(url, 'k')).headers.get('retry-after')).toBe('1')
    expect(runs).toBe(2)
  })

  test('lists of headers, status texts and trailers reach the first client as without the middleware', async () => {
    const locks = createLocks(memory())
    const app = express()
    app.use('/', idempotentExpress(locks, shared) as ExpressHandler)
    app.post('/flat', (__, response) => {
      response.writeHead(200, ['Set-Cookie', 'a=1', 'Set-Cookie', 'b=2', 'X-A', '1'])
      response.end('x')
    })
    app.post('/message', (__, response) => {
      response.writeHead(299, 'Weird Message', { 'X-A': '1' })
      response.end('x')
    })
    app.post('/trailer', (__, response) => {
      response.setHeader('Trailer', 'X-T')
      response.write('a')
      response.addTrailers({ 'X-T': '1' })
      response.end()
    })
    const url = await listen(app)
    expect((await post(`${url}/flat`, 'f')).headers.getSetCookie()).toEqual(['a=1', 'b=2'])
    const raw = (path: string): Promise<unknown[]> =>
      new Promise((resolve, reject) => {
        const asked = httpRequest(`${url}${path}`, { method: 'POST', headers: { 'idempotency-key': path } })
        asked.on('error', reject)
        asked.on('response', (answered) => {
          answered.resume()
          answered.on('end', () =>
            resolve([answered.statusCode, answered.statusMessage, answered.headers['x-a'], answered.trailers['x-t']]),
          )
        })
        asked.end()
      })
    expect(await raw('/message')).toEqual([299, 'Weird Message', '1', undefined])
    expect(await raw('/message')).toEqual([299, 'Weird Message', '1', undefined])
    expect(await raw('/trailer')).toEqual([200, 'OK', undefined, '1'])
  })

  test('pieces arrive as they are written', async () => {
    const locks = createLocks(memory())
    const app = express()
    const more = gate()
    app.post('/', idempotentExpress(locks, shared), async (__, response) => {
      response.setHeader('Content-Type', 'text/event-stream')
      response.write('data: 1\n\n')
      await more.opened
      response.end('data: 2\n\n')
    })
    const url = await listen(app)
    const response = await fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k' } })
    const reader = response.body?.getReader()
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe('data: 1\n\n')
    expect((await post(url, 'k', { body: null })).status).toBe(409)
    more.open()
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe('data: 2\n\n')
    await until('recorded', async () => (await post(url, 'k', { body: null })).text === 'data: 1\n\ndata: 2\n\n')
  })
})
