import { expect, test } from 'vitest'
import { idempotentExpress, idempotentFetch } from '../../../src/http/index.js'
import { createLocks, LockTimeoutError, memory } from '../../../src/index.js'
import { until } from '../../../testbed/store-fixtures.js'
import { giveUp, parseJson, serveSteps } from './step-server.js'

function post(key: string | undefined, body: unknown = { item: 1 }, more: Record<string, string> = {}): Request {
  const headers = { ...(key === undefined ? {} : { 'idempotency-key': key }), ...more }
  return new Request('http://shop/orders?x=1', { method: 'POST', body: JSON.stringify(body), headers })
}

const locks = createLocks(memory())
/** All callers share their keys. */
const shared = { scope: () => '' }

test('options of the wrong type are refused when the handler is made', () => {
  const wrong: [options: object, says: string][] = [
    [{ record: [200] }, 'record takes a function that is called with a status; it was [200]'],
    [{ fingerprint: 'body' }, 'fingerprint takes a function; it was "body"'],
    [{ methods: 'POST' }, 'methods takes a list of methods; it was "POST"'],
    [{ required: 'no' }, 'required takes true or false; it was "no"'],
    [{ header: 7 }, 'header takes the name of a header; it was 7'],
    [{ header: 'a b' }, 'header takes the name of a header; it was "a b"'],
  ]
  for (const [options, says] of wrong) {
    const make = (): unknown =>
      idempotentFetch(createLocks(memory()), () => new Response(), { scope: () => '', ...options } as never)
    expect(make).toThrow(says)
  }
})

test('a repetition gets the same status, headers and body, and the handler runs once', async () => {
  let runs = 0
  const handler = idempotentFetch(
    locks,
    async (request) => {
      const { item } = (await request.json()) as { item: number }
      const headers = { 'x-order': `order-${++runs}`, 'set-cookie': 'session=secret' }
      return Response.json({ item, run: runs }, { status: 201, headers })
    },
    shared,
  )
  const first = await handler(post('key-1'))
  const again = await handler(post('"key-1"'))
  expect(again.status).toBe(201)
  expect(await again.json()).toEqual(await first.json())
  expect(again.headers.get('x-order')).toBe('order-1')
  expect(again.headers.get('content-type')).toBe(first.headers.get('content-type'))
  expect([first.headers.get('idempotent-replayed'), again.headers.get('idempotent-replayed')]).toEqual([null, 'true'])
  expect([first.headers.get('set-cookie'), again.headers.get('set-cookie')]).toEqual(['session=secret', null])
  expect((await handler(post('key-2'))).headers.get('x-order')).toBe('order-2')
})

test('the same key with another body is refused, and with another caller it is another key', async () => {
  let runs = 0
  const scope = (request: Request): string => request.headers.get('x-user') ?? 'nobody'
  const handler = idempotentFetch(locks, () => new Response(String(++runs)), { scope })
  expect(await (await handler(post('mine'))).text()).toBe('1')
  const reused = await handler(post('mine', { item: 2 }))
  expect([reused.status, reused.headers.get('content-type')]).toEqual([422, 'application/problem+json'])
  const other = await handler(post('mine', { item: 2 }, { 'x-user': 'other' }))
  expect(await other.text()).toBe('2')
})

test('a second request gets 409 while the first is in progress, or waits for it', async () => {
  let end = (): void => {}
  const ending = new Promise<void>((resolve) => (end = resolve))
  let began = false
  const work = async (): Promise<Response> => {
    began = true
    await ending
    return new Response('done')
  }
  const first = idempotentFetch(locks, work, shared)(post('slow'))
  await until('it began', () => began)
  const busy = await idempotentFetch(locks, work, shared)(post('slow'))
  expect([busy.status, busy.headers.get('retry-after')]).toEqual([409, '1'])
  const patient = idempotentFetch(locks, work, { ...shared, wait: '10s' })(post('slow'))
  end()
  expect(await (await first).text()).toBe('done')
  expect(await (await patient).text()).toBe('done')
})

test('failures of the server are not recorded, so that the client may try again', async () => {
  const answers = [503, 'throw', 'busy', 402, 200]
  const handler = idempotentFetch(
    locks,
    () => {
      const answer = answers.shift()
      if (answer === 'throw') throw new Error('no luck')
      if (answer === 'busy') throw new LockTimeoutError('inner', { waitedMs: 1 })
      return new Response('x', { status: answer as number })
    },
    shared,
  )
  expect((await handler(post('retry'))).status).toBe(503)
  await expect(handler(post('retry'))).rejects.toThrow('no luck')
  await expect(handler(post('retry'))).rejects.toThrow(LockTimeoutError)
  expect((await handler(post('retry'))).status).toBe(402)
  expect((await handler(post('retry'))).status).toBe(402)
  expect(answers).toEqual([200])
})

test('requests without a key pass, or are refused where one is required; other methods always pass', async () => {
  let runs = 0
  const handler = (): Response => new Response(String(++runs))
  const open = idempotentFetch(locks, handler, shared)
  const strict = idempotentFetch(locks, handler, { ...shared, required: true })
  expect(await (await open(post(undefined))).text()).toBe('1')
  expect(await (await open(post(undefined))).text()).toBe('2')
  expect((await strict(post(undefined))).status).toBe(400)
  expect((await strict(post('x'.repeat(300)))).status).toBe(400)
  const get = new Request('http://shop', { headers: { 'idempotency-key': 'get' } })
  expect([await (await strict(get)).text(), await (await strict(get)).text()]).toEqual(['3', '4'])
})

test('binary and empty bodies are replayed unchanged, and too large ones are not served twice', async () => {
  const bytes = new Uint8Array([0, 255, 128, 7])
  const binary = idempotentFetch(locks, () => new Response(bytes), shared)
  await binary(post('bytes'))
  expect(new Uint8Array(await (await binary(post('bytes'))).arrayBuffer())).toEqual(bytes)
  const empty = idempotentFetch(locks, () => new Response(null, { status: 204 }), shared)
  expect([(await empty(post('empty'))).status, (await empty(post('empty'))).status]).toEqual([204, 204])
  let runs = 0
  const large = idempotentFetch(locks, () => new Response('x'.repeat(1_100_000 + runs++)), shared)
  expect((await (await large(post('large'))).text()).length).toBe(1_100_000)
  expect((await large(post('large'))).status).toBe(409)
  expect(runs).toBe(1)
  const control = idempotentFetch(locks, () => new Response('\u0001'.repeat(500_000)), shared)
  await control(post('control'))
  expect((await (await control(post('control'))).text()).length).toBe(500_000)
})

test('middleware behind a body parser replays the response, whatever methods wrote it', async () => {
  let runs = 0
  const url = await serveSteps(parseJson, idempotentExpress(locks, shared), (request, response) => {
    runs++
    response.writeHead(201, { 'x-run': String(runs), 'content-type': 'text/plain' })
    response.write('item ')
    response.write(Buffer.from(`${(request.body as { item: number }).item} `), () => response.end('run ' + runs))
  })
  const ask = (key: string, item: number): Promise<Response> =>
    fetch(`${url}/orders`, { method: 'POST', headers: { 'idempotency-key': key }, body: JSON.stringify({ item }) })
  const first = await ask('node', 1)
  expect([first.status, first.headers.get('x-run'), await first.text()]).toEqual([201, '1', 'item 1 run 1'])
  const again = await ask('node', 1)
  expect([again.status, again.headers.get('x-run'), await again.text()]).toEqual([201, '1', 'item 1 run 1'])
  expect(again.headers.get('idempotent-replayed')).toBe('true')
  expect((await ask('node', 2)).status).toBe(422)
  expect(runs).toBe(1)
})

test('a client that gave up and tries again gets the first response', async () => {
  let runs = 0
  const url = await serveSteps(parseJson, idempotentExpress(locks, shared), async (_, response) => {
    runs++
    await new Promise((resolve) => setTimeout(resolve, 150))
    response.end('charged')
  })
  const headers = { 'idempotency-key': 'impatient', 'content-type': 'application/json' }
  await giveUp(url, headers, '{"item":1}', 50)
  let response: Response | undefined
  await until('it is served', async () => {
    response = await fetch(url, { method: 'POST', headers, body: '{"item":1}' })
    return response.status !== 409
  })
  expect([response?.status, await response?.text()]).toEqual([200, 'charged'])
  expect(runs).toBe(1)
})

test('a response that could not be recorded is not sent as if it had been', async () => {
  const url = await serveSteps(parseJson, idempotentExpress(locks, shared), async (_, response) => {
    const [held] = await locks
      .holders('http:', { kind: 'run-once' })
      .then((all) => all.filter(({ metadata }) => !(metadata as { done: boolean }).done))
    await locks.forceRelease(held?.name ?? '', { kind: 'run-once' })
    response.end('charged')
  })
  const response = await fetch(url, { method: 'POST', headers: { 'idempotency-key': 'lost' } })
  expect([response.status, await response.text()]).toEqual([500, 'LockLostError'])
})
