/** The server of the dashboard, without a browser. */
import { EventEmitter } from 'node:events'
import { type IncomingHttpHeaders, createServer, request as httpRequest } from 'node:http'
import { expect, onTestFinished, test, vi } from 'vitest'
import { type DashboardOptions, dashboard } from '../../src/dashboard/index.js'
import type { DashboardFacts, HolderChanges } from '../../src/dashboard/protocol.js'
import { readStats } from '../../src/dashboard/published.js'
import { Sampler } from '../../src/dashboard/sampler.js'
import { Streams } from '../../src/dashboard/streams.js'
import { type CallFacts, createLocks, InvalidOptionError, type Locks, memory } from '../../src/index.js'
import { expresses } from '../primitives/http/express-versions.js'
import { listen, serve } from './fixture.js'
import { eventFrom, eventsFrom } from './stream.js'

interface Answer {
  status: number | undefined
  headers: IncomingHttpHeaders
  text: string
}

/** A request with any header, `Host` and `Sec-Fetch-Site` too, which fetch does not let callers set. */
function ask(url: string, headers: Record<string, string> = {}, body?: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const method = body === undefined ? 'GET' : 'POST'
    const sent = httpRequest(url, { method, headers }, (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (part: string) => (text += part))
      response.on('end', () => resolve({ status: response.statusCode, headers: response.headers, text }))
    })
    sent.on('error', reject)
    sent.end(body)
  })
}

const JSON_HEADERS = { 'content-type': 'application/json', 'x-leasehold-dashboard': '1' }

async function heldAnd(options: DashboardOptions): Promise<{ locks: Locks; address: string; body: string }> {
  const locks = createLocks(memory())
  onTestFinished(() => locks.close({ grace: 0 }))
  const lock = await locks.acquire('order:1')
  const body = JSON.stringify({ kind: 'lock', name: 'order:1', holders: [lock.holder] })
  return { locks, address: await serve(locks, options, onTestFinished), body }
}

test('a release from another site is refused, whatever it pretends', async () => {
  const { locks, address, body } = await heldAnd({ allowRelease: true })
  const host = new URL(address).host
  const refused: Record<string, string>[] = [
    { ...JSON_HEADERS, origin: 'https://evil.example' },
    { ...JSON_HEADERS, origin: 'null' },
    { ...JSON_HEADERS, origin: `http://${host}.evil.example` },
    { ...JSON_HEADERS, 'sec-fetch-site': 'cross-site' },
    { ...JSON_HEADERS, 'sec-fetch-site': 'same-site', origin: `http://${host}` },
    // What a form can send without asking first.
    { 'content-type': 'text/plain', 'x-leasehold-dashboard': '1' },
    { 'content-type': 'application/x-www-form-urlencoded' },
    { 'content-type': 'application/json' },
  ]
  for (const headers of refused) expect((await ask(`${address}api/release`, headers, body)).status).toBe(403)
  expect((await ask(`${address}api/release`, JSON_HEADERS)).status).toBe(405)
  expect(await locks.holders()).toHaveLength(1)
  const own = { ...JSON_HEADERS, origin: `http://${host}`, 'sec-fetch-site': 'same-origin' }
  expect((await ask(`${address}api/release`, own, body)).status).toBe(200)
  expect(await locks.holders()).toEqual([])
})

test('a dashboard releases nothing unless it was allowed to, and nothing that somebody else holds meanwhile', async () => {
  const readOnly = await heldAnd({})
  expect((await ask(`${readOnly.address}api/release`, JSON_HEADERS, readOnly.body)).status).toBe(403)
  expect(await readOnly.locks.holders()).toHaveLength(1)
  const { locks, address } = await heldAnd({ allowRelease: true })
  const stale = JSON.stringify({ kind: 'lock', name: 'order:1', holders: ['the one before'] })
  expect((await ask(`${address}api/release`, JSON_HEADERS, stale)).status).toBe(409)
  for (const body of ['{}', 'no json', '[]', JSON.stringify({ kind: 'nonsense', name: 'order:1', holders: [] })]) {
    expect((await ask(`${address}api/release`, JSON_HEADERS, body)).status).toBe(400)
  }
  expect((await ask(`${address}api/release`, JSON_HEADERS, 'x'.repeat(20_000))).status).toBe(413)
  expect(await locks.holders()).toHaveLength(1)
})

const failing = new Error('the log is full')

test.each([
  [
    'throws',
    () => {
      throw failing
    },
  ],
  ['rejects', async () => Promise.reject(failing)],
])('a release that worked is answered and shown as such if onAction %s', async (_, onAction) => {
  const warnings: Error[] = []
  const note = (warning: Error): void => void warnings.push(warning)
  process.on('warning', note)
  onTestFinished(() => void process.off('warning', note))
  // oxlint-disable-next-line typescript/no-misused-promises -- what users do
  const { locks, address, body } = await heldAnd({ allowRelease: true, onAction })
  const { status, text } = await ask(`${address}api/release`, JSON_HEADERS, body)
  expect([status, JSON.parse(text)]).toEqual([200, { released: [JSON.parse(body).holders[0]] }])
  expect(await locks.holders()).toEqual([])
  const { actions, losses } = await eventFrom<DashboardFacts>(address, 'facts', () => true)
  expect(actions.map(({ name, error }) => [name, error])).toEqual([['order:1', undefined]])
  expect(losses).toMatchObject([{ what: 'forced', origin: 'dashboard', name: 'order:1' }])
  expect(warnings).toEqual([failing])
})

test('a dashboard for this machine answers only requests for localhost, against names that are pointed at it', async () => {
  const { address } = await heldAnd({ loopbackOnly: true })
  for (const host of ['evil.example', 'evil.example:80', '127.0.0.1.evil.example']) {
    expect([host, (await ask(address, { host })).status]).toEqual([host, 403])
  }
  for (const host of ['localhost:7433', '127.0.0.1', '[::1]:7433', '127.8.8.8:1']) {
    expect([host, (await ask(address, { host })).status]).toEqual([host, 200])
  }
})

test('a page of another site can neither open streams here nor read through them, and may only link to it', async () => {
  const { address } = await heldAnd({})
  const cross = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'empty' }
  for (const path of ['events', 'metrics', 'api/lock?name=order:1', 'app.js']) {
    expect([path, (await ask(`${address}${path}`, cross)).status]).toEqual([path, 403])
  }
  const link = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'document' }
  expect((await ask(address, link)).status).toBe(200)
  expect((await ask(`${address}events`, link)).status).toBe(403)
  expect((await ask(address, { ...link, 'sec-fetch-dest': 'iframe' })).status).toBe(403)
})

test('HEAD of the stream ends at once, and counts as no page', async () => {
  const { address } = await heldAnd({})
  const answer = await fetch(`${address}events`, { method: 'HEAD', signal: AbortSignal.timeout(30_000) })
  expect([answer.status, answer.headers.get('content-type')]).toEqual([200, 'text/event-stream; charset=utf-8'])
})

test('a page that reads nothing between two signs of life loses its place, and one that catches up keeps it', () => {
  vi.useFakeTimers()
  onTestFinished(() => void vi.useRealTimers())
  const facts = { now: 0, point: [0, 0, 0], store: { reachable: true, everyMs: 0, tookMs: 0 } }
  const sampler = { watch: () => () => {}, isFresh: false, holders: { rows: () => [] }, facts: () => facts }
  const streams = new Streams(sampler as never, () => ({}) as never)
  const open = (): { writableLength: number } => {
    const closes = new EventEmitter()
    const response = Object.assign(closes, {
      writableLength: 5e6,
      writeHead() {},
      write() {},
      destroy: () => closes.emit('close'),
    })
    streams.open(response as never)
    return response
  }
  const [, slow] = [open(), open()]
  const sample = (): void => streams.send({ now: 0, rows: [], gone: [], renewed: [] })
  sample()
  vi.advanceTimersByTime(16_000)
  slow.writableLength = 0
  sample()
  vi.advanceTimersByTime(16_000)
  expect(streams.size).toBe(1)
})

test('what another program wrote as metadata of a waiter is cut before it is sent to pages', async () => {
  const store = memory()
  const locks = createLocks(store)
  onTestFinished(() => locks.close({ grace: 0 }))
  await locks.acquire('order:1')
  const value = JSON.stringify('x'.repeat(100_000))
  const claim = { key: 'lock:order:1', owner: 'other', weight: 1, capacity: 1, ttlMs: 60_000, queueMs: 60_000, value }
  await store.acquire([claim])
  const address = await serve(locks, {}, onTestFinished)
  const { text } = await ask(`${address}api/lock?name=order:1`)
  expect(JSON.parse(text).waiters).toHaveLength(1)
  expect(text.length).toBeLessThan(5_000)
})

test('every answer forbids scripts of others, frames and guesses of the content type', async () => {
  const { address } = await heldAnd({})
  for (const path of ['', 'app.js', 'app.css', 'metrics', 'api/lock?name=order:1', 'nothing-here', '..%2f', '/']) {
    const { headers } = await ask(`${address}${path}`)
    expect(headers['content-security-policy']).toMatch(/default-src 'none'.*require-trusted-types-for 'script'/)
    expect([headers['x-content-type-options'], headers['x-frame-options']]).toEqual(['nosniff', 'DENY'])
  }
})

test('the store is read once for all pages, and not at all while nobody looks', async () => {
  const calls: CallFacts[] = []
  const locks = createLocks(memory(), { onCall: (facts) => calls.push(facts) })
  onTestFinished(() => locks.close({ grace: 0 }))
  const address = await serve(locks, {}, onTestFinished)
  const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
  await pause(600)
  expect(calls).toEqual([])
  const closing = new AbortController()
  const watch = async (): Promise<void> => {
    const { body } = await fetch(`${address}events`, { signal: closing.signal })
    for await (const _ of body as unknown as AsyncIterable<Uint8Array>);
  }
  const watching = Array.from({ length: 10 }, () => watch().catch(() => {}))
  await expect.poll(() => calls.length).toBeGreaterThan(0)
  const [begun, begunAt] = [calls.length, performance.now()]
  await pause(1_000)
  // Four kinds each time, and the schedules now and then, every 300 ms. Ten pages by themselves would make ten times as many.
  const samples = (performance.now() - begunAt) / 300 + 1
  expect(calls.length - begun).toBeLessThanOrEqual(samples * 5)
  closing.abort()
  await Promise.all(watching)
  // The server learns that a page has gone after the page did.
  await expect.poll(() => (calls.splice(0), pause(900).then(() => calls))).toEqual([])
})

test('a stream sends all holders first, and then only what changes', async () => {
  const { locks, address } = await heldAnd({})
  const sent: string[][] = []
  for await (const { rows } of eventsFrom<HolderChanges>(address, 'locks')) {
    if (rows.length > 0) sent.push(rows.map(({ name }) => name))
    if (sent.length === 1) await locks.acquire('order:2')
    if (sent.length === 2) break
  }
  expect(sent).toEqual([['order:1'], ['order:2']])
})

test('what a process publishes is added up, and nonsense in its lease is left out', async () => {
  const store = memory()
  const [one, two] = [createLocks(store, { publish: '1s' }), createLocks(store, { publish: '1s' })]
  onTestFinished(() => Promise.all([one.close({ grace: 0 }), two.close({ grace: 0 })]).then(() => {}))
  await one.withLock('a', async () => {})
  const claims = ['[]', '{"version":1}', '"text"', 'no json', '{"version":1,"instance":{},"at":"x"}']
  await store.acquire(
    claims.map((value, i) => ({ key: `stats:x${i}`, owner: 'x', weight: 1, capacity: 1, ttlMs: 60_000, value })),
  )
  const address = await serve(one, {}, onTestFinished)
  const facts = await eventFrom<DashboardFacts>(
    address,
    'facts',
    ({ publishing, slots }) => publishing === 2 && slots.length > 0,
  )
  expect(facts.processes.map(({ publishes }) => publishes)).toEqual([true, true])
  expect(
    readStats({ ...published(), slots: 'many', names: [1, null, { name: {} }], counters: { lost: 'x' } }),
  ).toMatchObject({ slots: [], names: [{ name: '', waitMs: 0 }], counters: {} })
})

test('a token that is no number in what a process published is left out, and the store is not reported as down', async () => {
  const store = memory()
  const locks = createLocks(store)
  onTestFinished(() => locks.close({ grace: 0 }))
  const loss = { at: Date.now(), kind: 'lock', name: 'a', holder: 'h:1:u/1' }
  const tokens = ['not a number', '7', '-7', '0x7', '7'.repeat(31), ' ', 7]
  const losses = tokens.map((token, i) => ({ ...loss, name: `lost:${i}`, token }))
  const value = { ...published(), losses, risks: losses }
  const read = readStats(value)
  for (const list of [read?.losses, read?.risks]) {
    expect(list?.map(({ token }) => token)).toEqual(['', '7', '', '', '', '', ''])
  }
  const claim = { key: 'stats:x', owner: 'x', weight: 1, capacity: 1, ttlMs: 60_000 }
  await store.acquire([{ ...claim, value: JSON.stringify({ ...value, at: Date.now() }) }])
  const address = await serve(locks, {}, onTestFinished)
  const facts = await eventFrom<DashboardFacts>(address, 'facts', ({ publishing }) => publishing === 1)
  expect(facts.store).toMatchObject({ reachable: true })
  expect(facts.losses).toHaveLength(tokens.length)
})

test('a sample that cannot be sent is a warning, and neither an outage nor the end of the process', async () => {
  const locks = createLocks(memory())
  onTestFinished(() => locks.close({ grace: 0 }))
  const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
  onTestFinished(() => warn.mockRestore())
  const failure = new Error('a bug')
  const onSample = (): never => {
    throw failure
  }
  const sampler = new Sampler(locks, { sessions: false, actions: () => [], onSample })
  await sampler.fresh(0)
  expect(sampler.isReachable).toBe(true)
  vi.spyOn(locks, 'holderPages').mockImplementation(() => {
    throw new Error('the store is down')
  })
  await new Promise((resolve) => setTimeout(resolve, 2))
  await sampler.fresh(0)
  expect(sampler.isReachable).toBe(false)
  expect(warn.mock.calls.map(([error]) => error)).toEqual([failure, failure])
})

function published(): object {
  return { version: 1, instance: 'h:1:u', at: 1, startedAt: 1, everyMs: 1, slotMs: 1 }
}

test('/metrics is valid Prometheus text without any name of a lock', async () => {
  const locks = createLocks(memory(), { publish: '500ms' })
  onTestFinished(() => locks.close({ grace: 0 }))
  await locks.acquire('order:1')
  await locks.acquire('order:1', { wait: 0 }).catch(() => {})
  const address = await serve(locks, {}, onTestFinished)
  await expect
    .poll(async () => (await ask(`${address}metrics`)).text)
    .toMatch(/leasehold_timeouts_total\{process=".*"\} 1/)
  const { text, headers } = await ask(`${address}metrics`)
  expect(headers['content-type']).toBe('text/plain; version=0.0.4; charset=utf-8')
  expect(text).toContain('leasehold_held{kind="lock"} 1\n')
  expect(text).toMatch(/leasehold_wait_seconds_bucket\{process=".*",le="\+Inf"\} 2\n/)
  expect(text).not.toContain('order:1')
  const line = /^(# (HELP|TYPE) \w+ .+|\w+(\{(\w+="([^"\\\n]|\\["\\n])*",?)*\})? -?\d+(\.\d+)?(e[-+]\d+)?)$/
  expect(
    text
      .trimEnd()
      .split('\n')
      .filter((each) => !line.test(each)),
  ).toEqual([])
})

test('a dashboard can be mounted in Express and, with its path, in node:http', async () => {
  const locks = createLocks(memory())
  onTestFinished(() => locks.close({ grace: 0 }))
  const mounted = dashboard(locks)
  const apps = expresses.map(([, express]) => {
    const app = express()
    app.use('/admin/locks', mounted as never)
    return app
  })
  const plain = dashboard(locks, { path: '/locks' })
  for (const [server, path] of [
    ...apps.map((app) => [createServer((request, response) => void app(request, response)), '/admin/locks'] as const),
    [createServer((request, response) => plain(request, response)), '/locks'],
  ] as const) {
    const address = await listen(server)
    onTestFinished(() => void server.close())
    const redirected = await ask(`${address}${path}`)
    expect([redirected.status, redirected.headers.location]).toEqual([308, 'locks/'])
    expect((await ask(`${address}${path}/`)).text).toContain('<title>leasehold</title>')
    expect((await ask(`${address}${path}/app.js`)).headers['content-type']).toContain('text/javascript')
    expect((await ask(`${address}/locksmith`)).status).toBe(404)
  }
  mounted.close()
  plain.close()
})

test('bad options are refused when the handler is made', () => {
  const locks = createLocks(memory())
  expect(() => dashboard({} as Locks)).toThrow(/locks takes what createLocks or openLocks returned/)
  expect(() => dashboard(locks, { allowRelese: true } as never)).toThrow(/did you mean "allowRelease"/)
  expect(() => dashboard(locks, { token: 'short' })).toThrow(/at least 16 characters/)
  expect(() => dashboard(locks, { token: 'short' })).not.toThrow(/short'/)
  for (const path of ['locks', '/locks/', '/a b', 7]) {
    expect(() => dashboard(locks, { path: path as string })).toThrow(InvalidOptionError)
  }
})
