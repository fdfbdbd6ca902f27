import postgres from 'postgres'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { createLocks, InvalidOptionError, openStore, UnsupportedError } from '../../../src/index.js'
import { advisory } from '../../../src/stores/postgres-advisory/index.js'
import { ask, claim, AdvisoryFixture, reader } from '../../../testbed/postgres-advisory/fixture.js'

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

/** As docs/stores/postgres-advisory.md gives it. */
const KEY = "('x' || encode(substr(sha256(convert_to($1, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint"

describe('names', () => {
  test('a name excludes a SQL session that computes its hash as documented, and the other way round', async () => {
    const locks = createLocks(fixture.store(), { namespace: 'shop' })
    for (const name of ['order:7', 'Größe 漢字', "quote ' and \\"]) {
      const full = `shop:${name}`
      const lock = await locks.acquire(name)
      expect(await fixture.query(`SELECT pg_try_advisory_lock(${KEY}) AS got`, [full])).toEqual([{ got: false }])
      await lock.release()
      expect(await fixture.query(`SELECT pg_try_advisory_lock(${KEY}) AS got`, [full])).toEqual([{ got: true }])
      expect(await locks.tryAcquire(name)).toBeNull()
      expect(await fixture.query(`SELECT pg_advisory_unlock(${KEY}) AS gone`, [full])).toEqual([{ gone: true }])
      expect(await locks.tryAcquire(name)).not.toBeNull()
    }
  })

  test('a semaphore or an election never shares a number with a lock, whatever the lock is called', async () => {
    const store = fixture.store()
    const keys = ['election:x', 'lock:election:x', 'lock:lock:election:x', 'semaphore:x#0', 'lock:semaphore:x#0']
    const answers = await store.acquire(keys.map((key) => ({ ...claim(''), key })))
    expect(answers.map((answer) => answer.granted)).toEqual([true, true, true, true, true])
  })

  test('the option key maps chosen names to numbers and pairs', async () => {
    const own = (name: string) =>
      name === 'answer' ? 42 : name === 'huge' ? -(2n ** 63n) : name.startsWith('row:') ? ([7, -1] as const) : undefined
    const store = fixture.store({ key: own })
    for (const name of ['answer', 'huge', 'row:1', 'hashed']) expect((await ask(store, claim(name))).granted).toBe(true)
    expect(await fixture.query('SELECT pg_try_advisory_lock(42) AS got')).toEqual([{ got: false }])
    expect(await fixture.query('SELECT pg_try_advisory_lock(-9223372036854775808) AS got')).toEqual([{ got: false }])
    expect(await fixture.query('SELECT pg_try_advisory_lock(7, -1) AS got')).toEqual([{ got: false }])
    expect(await fixture.query('SELECT pg_try_advisory_lock(7, 1) AS got')).toEqual([{ got: true }])
    // Two names with one number are one lock.
    expect((await ask(store, claim('row:2'))).granted).toBe(false)
    expect((await ask(fixture.store({ key: own }), claim('row:2'))).granted).toBe(false)
  })

  test('pairs of numbers can be shared, waited for and taken all or none', async () => {
    const key = (name: string) => [1, Number(name)] as const
    const [a, b] = [fixture.store({ key }), fixture.store({ key })]
    const readers = [reader('5'), reader('5'), reader('6')]
    const answers = await a.acquire(readers, { atomic: true })
    expect(answers.every((answer) => answer.granted === true)).toBe(true)
    expect((await ask(a, reader('5'))).granted).toBe(true)
    expect((await ask(b, reader('6'))).granted).toBe(true)
    const writer = claim('5', { blockMs: 10_000 })
    const waiting = ask(b, writer)
    await a.release(readers)
    expect((await b.acquire([claim('7'), claim('6')], { atomic: true })).map((answer) => answer.granted)).toEqual([
      false,
      false,
    ])
    expect(await fixture.count('objsubid = 2 AND objid = 7')).toBe(0)
    await a.close()
    expect((await waiting).granted).toBe(true)
  })

  test('acquire() rejects numbers that PostgreSQL cannot take', async () => {
    for (const key of [2n ** 63n, 1.5, [1, 2 ** 31], [1], 'x'] as never[]) {
      const locks = createLocks(fixture.store({ key: () => key }))
      await expect(locks.acquire('any')).rejects.toBeInstanceOf(InvalidOptionError)
    }
  })
})

describe('clients', () => {
  test('advisory() refuses a postgres.js client with the reason and what to use instead', async () => {
    const sql = postgres(fixture.url)
    expect(() => advisory(sql as never)).toThrow(UnsupportedError)
    expect(() => advisory(sql as never)).toThrow(/ends the whole process.*leasehold\/postgres.*lockInTransaction/)
    await sql.end()
  })

  test('advisory() rejects what is not a pool, and options without sense', () => {
    expect(() => advisory({} as never)).toThrow(InvalidOptionError)
    expect(() => advisory(undefined as never)).toThrow(InvalidOptionError)
    for (const options of [
      { maxSessions: 0 },
      { maxSessions: 1.5 },
      { timeout: 0 },
      { queueFor: '1 day' },
      { schema: '' },
    ]) {
      expect(() => advisory(fixture.pool(), options as never)).toThrow(InvalidOptionError)
    }
  })

  test('type parsers of the application do not change what the store reads', async () => {
    const types = { getTypeParser: () => () => Number.NaN }
    const locks = createLocks(fixture.store({}, { types } as never))
    const lock = await locks.acquire('parsed')
    expect(lock.fencingToken).toBeGreaterThan(0n)
    expect(await lock.release()).toBe(true)
  })

  test('openStore() takes a URL and closes what it opened', async () => {
    const store = await openStore(fixture.url.replace('postgres:', 'postgres+advisory:'))
    const locks = createLocks(store)
    const lock = await locks.acquire('by url')
    expect(await fixture.sessions()).toHaveLength(1)
    expect(await lock.release()).toBe(true)
    await store.close()
    expect(await fixture.sessions()).toEqual([])
  })
})
