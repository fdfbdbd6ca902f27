import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { createLocks, UnsupportedError } from '../../../src/index.js'
import { ask, claim, OtherProcess, AdvisoryFixture, reader, until } from '../../../testbed/postgres-advisory/fixture.js'

let server: PostgresServer
let fixture: AdvisoryFixture

beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

beforeEach(async () => {
  fixture = new AdvisoryFixture(await server.createDatabase())
})
afterEach(() => fixture.close())

describe('holders() and inspect()', () => {
  test('holders() shows names, owners and values of other processes, with application, address and duration', async () => {
    const billing = fixture.store({}, { application_name: 'billing' })
    const held = claim('invoice:7', { value: '{"job":"charge"}' })
    const answer = await ask(billing, held)
    const [view, ...more] = (await fixture.store().holders?.('lock:invoice:')) ?? []
    expect(more).toEqual([])
    expect(view).toMatchObject({
      key: 'lock:invoice:7',
      owner: held.owner,
      value: '{"job":"charge"}',
      token: answer.granted === true && answer.token,
      waiting: 0,
      detail: { application: 'billing [leasehold]', address: '127.0.0.1', user: 'postgres' },
    })
    expect(view?.heldMs).toBeGreaterThanOrEqual(0)
    expect(
      await fixture.query('SELECT 1 AS there FROM pg_stat_activity WHERE pid = $1', [view?.detail?.['pid']]),
    ).toHaveLength(1)
  })

  test('inspect() shows the waiters in their order, how long they have waited and which backend blocks them', async () => {
    const [a, b, c] = [fixture.store(), fixture.store(), fixture.store()]
    await ask(a, claim('door'))
    const first = claim('door', { blockMs: 20_000 })
    const second = reader('door', { blockMs: 20_000 })
    const asked = [ask(b, first)]
    await until('the first stands in the queue', async () => (await fixture.waiting()) === 1)
    asked.push(ask(c, second))
    await until('the second stands in the queue', async () => (await fixture.waiting()) === 2)
    // A process that waits on its only session opens another one to answer on.
    const seen = await until('both processes answer', async () => {
      const look = await a.inspect?.('lock:door')
      return look?.waiters.every((waiter) => waiter.owner.startsWith('owner/')) && look
    })
    expect(seen?.waiters.map(({ owner, weight }) => [owner, weight])).toEqual([
      [first.owner, first.weight],
      [second.owner, 1],
    ])
    const holder = seen?.holders[0]
    expect(holder?.waiting).toBe(2)
    expect(seen?.waiters[0]?.detail?.['blockedBy']).toBe(String(holder?.detail?.['pid']))
    expect(seen?.waiters[0]?.waitedMs).toBeGreaterThan(0)
    await b.release([first])
    await c.release([second])
    await Promise.all(asked)
  })

  test('holders() shows advisory locks of other programs by number, or by name if this process knows it', async () => {
    await fixture.query(
      "SELECT set_config('application_name', 'psql', false), pg_advisory_lock(4711), pg_advisory_lock(1, 2)",
    )
    const store = fixture.store({ key: (name) => (name === 'known' ? [1, 2] : undefined) })
    const seen = await store.inspect?.('lock:known')
    expect(seen?.holders).toMatchObject([{ key: 'lock:known', foreign: true, detail: { application: 'psql' } }])
    expect(seen?.holders[0]?.owner).toMatch(/^psql pid \d+ at 127\.0\.0\.1$/)
    const all = (await store.holders?.('')) ?? []
    expect(all.map((view) => view.key)).toEqual(['lock:#4711', 'lock:known'])
    expect(await store.holders?.('lock:other')).toEqual([])
  })

  test('holders() shows the lock of a frozen process by number and connection until its ttl ends it', async () => {
    const other = new OtherProcess('hold', fixture.url, 'stuck', '4000')
    await other.says('held')
    const store = fixture.store()
    expect((await store.holders?.('lock:'))?.map((view) => view.key)).toEqual(['lock:stuck'])
    other.signal('SIGSTOP')
    const views = (await store.holders?.('lock:')) ?? []
    expect(views).toHaveLength(1)
    expect(views[0]).toMatchObject({ detail: { application: '[leasehold]' } })
    expect(views[0]?.key).toMatch(/^lock:#-?\d+$/)
    await until('the ttl has ended the lock', async () => (await store.holders?.('lock:'))?.length === 0)
    await other.end()
  })

  test('holders() shows hundreds of locks whose values are larger than one message', async () => {
    const [a, b] = [fixture.store(), fixture.store()]
    const value = JSON.stringify({ note: '"'.repeat(1_900) })
    const claims = Array.from({ length: 300 }, (_, i) => claim(`large:${String(i).padStart(3, '0')}`, { value }))
    await a.acquire(claims)
    const views = (await b.holders?.('lock:large:')) ?? []
    expect(views.map((view) => view.key)).toEqual(claims.map(({ key }) => key))
    expect(new Set(views.map((view) => view.owner)).size).toBe(300)
  })
})

describe('forceRelease()', () => {
  test('forceRelease() ends one lock of another process, whose holder is told at once, and no other lock', async () => {
    const [a, b] = [createLocks(fixture.store()), createLocks(fixture.store())]
    const [lock, other] = [await a.acquire('forced'), await a.acquire('untouched')]
    const { signal } = lock
    const cut = await b.forceRelease('forced')
    expect(cut.map((view) => view.holder)).toEqual([lock.holder])
    await until('the holder is told', () => signal.aborted)
    expect(other.isHeld).toBe(true)
    expect(await b.tryAcquire('forced')).not.toBeNull()
    expect(await other.release()).toBe(true)
  })

  test('forceRelease() waits for a process that stood still for more than a second, and leaves its other locks alone', async () => {
    const process = new OtherProcess('both', fixture.url, 'still:60000,untouched:60000')
    await process.says('all held')
    process.signal('SIGSTOP')
    // The default time limit is 5 s, of which a holder gets two; here it gets enough for a busy machine.
    const locks = createLocks(fixture.store({ timeout: '20s' }))
    const cutting = locks.forceRelease('still')
    setTimeout(() => process.signal('SIGCONT'), 1_300)
    expect(await cutting).toMatchObject([{ name: 'still' }])
    await process.says('lost still')
    expect(await locks.tryAcquire('still')).not.toBeNull()
    expect(await locks.tryAcquire('untouched')).toBeNull()
    await process.end()
  })

  test('forceRelease() ends the session of a process that does not answer', async () => {
    const process = new OtherProcess('hold', fixture.url, 'deaf', '60000')
    await process.says('held')
    process.signal('SIGSTOP')
    const locks = createLocks(fixture.store())
    const cut = await locks.forceRelease('deaf')
    expect(cut).toHaveLength(1)
    expect(await locks.tryAcquire('deaf')).not.toBeNull()
    await process.end()
  })

  test('forceRelease() does not end a session of another program, and the error says how to', async () => {
    const client = new pg.Client({ connectionString: fixture.url })
    await client.connect()
    await client.query('SELECT pg_advisory_lock(1, 1)')
    const locks = createLocks(fixture.store({ key: () => [1, 1] }))
    const error = await locks.forceRelease('theirs').catch((caught: unknown) => caught)
    expect(error).toBeInstanceOf(UnsupportedError)
    expect((error as Error).message).toMatch(/pg_terminate_backend\(\d+\)/)
    expect(await locks.tryAcquire('theirs')).toBeNull()
    await client.end()
  })
})
