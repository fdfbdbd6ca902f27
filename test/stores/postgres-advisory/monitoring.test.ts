import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../scripts/servers/index.js'
import { createLocks, UnsupportedError } from '../../../src/index.js'
import { ask, claim, Other, Place, reader, until } from './place.js'

let server: PostgresServer
let place: Place

beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

beforeEach(async () => {
  place = new Place(await server.createDatabase())
})
afterEach(() => place.close())

describe('looking', () => {
  test('shows names, owners and values of other processes, with application, address and duration', async () => {
    const billing = place.store({}, { application_name: 'billing' })
    const held = claim('invoice:7', { value: '{"job":"charge"}' })
    const answer = await ask(billing, held)
    const [view, ...more] = (await place.store().holders?.('lock:invoice:')) ?? []
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
      await place.look('SELECT 1 AS there FROM pg_stat_activity WHERE pid = $1', [view?.detail?.['pid']]),
    ).toHaveLength(1)
  })

  test('shows who waits, since when, and who blocks whom', async () => {
    const [a, b, c] = [place.store(), place.store(), place.store()]
    await ask(a, claim('door'))
    const first = claim('door', { blockMs: 20_000 })
    const second = reader('door', { blockMs: 20_000 })
    const asked = [ask(b, first)]
    await until('the first stands in the queue', async () => (await place.waiting()) === 1)
    asked.push(ask(c, second))
    await until('the second too', async () => (await place.waiting()) === 2)
    // Whoever waits on its only session opens another to answer on.
    const seen = await until('both answer', async () => {
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

  test('shows whoever else uses advisory locks, by number or by name if it is known here', async () => {
    await place.look(
      "SELECT set_config('application_name', 'psql', false), pg_advisory_lock(4711), pg_advisory_lock(1, 2)",
    )
    const store = place.store({ key: (name) => (name === 'known' ? [1, 2] : undefined) })
    const seen = await store.inspect?.('lock:known')
    expect(seen?.holders).toMatchObject([{ key: 'lock:known', foreign: true, detail: { application: 'psql' } }])
    expect(seen?.holders[0]?.owner).toMatch(/^psql pid \d+ at 127\.0\.0\.1$/)
    const all = (await store.holders?.('')) ?? []
    expect(all.map((view) => view.key)).toEqual(['lock:#4711', 'lock:known'])
    expect(await store.holders?.('lock:other')).toEqual([])
  })

  test('shows what a frozen process holds by number and connection, until its ttl ends it', async () => {
    const other = new Other('hold', place.url, 'stuck', '4000')
    await other.says('held')
    const store = place.store()
    expect((await store.holders?.('lock:'))?.map((view) => view.key)).toEqual(['lock:stuck'])
    other.signal('SIGSTOP')
    const views = (await store.holders?.('lock:')) ?? []
    expect(views).toHaveLength(1)
    expect(views[0]).toMatchObject({ detail: { application: '[leasehold]' } })
    expect(views[0]?.key).toMatch(/^lock:#-?\d+$/)
    await until('its ttl has ended it', async () => (await store.holders?.('lock:'))?.length === 0)
    await other.end()
  })

  test('shows hundreds of locks with large values, whatever a message may hold', async () => {
    const [a, b] = [place.store(), place.store()]
    const value = JSON.stringify({ note: '"'.repeat(1_900) })
    const claims = Array.from({ length: 300 }, (_, i) => claim(`large:${String(i).padStart(3, '0')}`, { value }))
    await a.acquire(claims)
    const views = (await b.holders?.('lock:large:')) ?? []
    expect(views.map((view) => view.key)).toEqual(claims.map(({ key }) => key))
    expect(new Set(views.map((view) => view.owner)).size).toBe(300)
  })
})

describe('breaking glass', () => {
  test('ends one lock of another process, tells it at once, and leaves its others alone', async () => {
    const [a, b] = [createLocks(place.store()), createLocks(place.store())]
    const [lock, other] = [await a.acquire('forced'), await a.acquire('untouched')]
    const { signal } = lock
    const cut = await b.forceRelease('forced')
    expect(cut.map((view) => view.holder)).toEqual([lock.holder])
    await until('it is told', () => signal.aborted)
    expect(other.isHeld).toBe(true)
    expect(await b.tryAcquire('forced')).not.toBeNull()
    expect(await other.release()).toBe(true)
  })

  test('ends the session of a process that does not answer', async () => {
    const process = new Other('hold', place.url, 'deaf', '60000')
    await process.says('held')
    process.signal('SIGSTOP')
    const locks = createLocks(place.store())
    const cut = await locks.forceRelease('deaf')
    expect(cut).toHaveLength(1)
    expect(await locks.tryAcquire('deaf')).not.toBeNull()
    await process.end()
  })

  test('does not end sessions of others: it says how to', async () => {
    const client = new pg.Client({ connectionString: place.url })
    await client.connect()
    await client.query('SELECT pg_advisory_lock(1, 1)')
    const locks = createLocks(place.store({ key: () => [1, 1] }))
    const error = await locks.forceRelease('theirs').catch((caught: unknown) => caught)
    expect(error).toBeInstanceOf(UnsupportedError)
    expect((error as Error).message).toMatch(/pg_terminate_backend\(\d+\)/)
    expect(await locks.tryAcquire('theirs')).toBeNull()
    await client.end()
  })
})
