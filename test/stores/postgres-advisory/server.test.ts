import { afterAll, beforeAll, describe, expect, test, type TestContext } from 'vitest'
import { type PostgresServer, startPostgres, startProxy, startStandby } from '../../../testbed/servers/index.js'
import { idOfName } from '../../../src/stores/postgres-advisory/keys.js'
import { type Answer, createLocks, StoreUnavailableError } from '../../../src/index.js'
import { AdvisoryFixture, ask, claim, lost, sleep, until } from '../../../testbed/postgres-advisory/fixture.js'

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

/** A database of this test alone: the tests of a group run at once. */
async function open(t: TestContext): Promise<AdvisoryFixture> {
  const fixture = new AdvisoryFixture(await server.createDatabase())
  t.onTestFinished(() => fixture.close())
  return fixture
}

describe('a server that restarts, fails over or is full', () => {
  test.concurrent('a restarted server has lost all locks, holders are told, and waiters get larger tokens', async () => {
    await using own = await startPostgres()
    const here = new AdvisoryFixture(own.url)
    const [a, b] = [createLocks(here.store()), createLocks(here.store())]
    const lock = await a.acquire('restarted')
    const waiting = b.acquire('restarted', { wait: '30s' })
    await until('the next stands in the queue', async () => (await here.waiting()) === 1)
    const told = lost(lock)
    await own.restart({ mode: 'immediate' })
    expect(await told).toBe('session')
    const next = await waiting
    expect(next.fencingToken).toBeGreaterThan(lock.fencingToken)
    expect(await next.release()).toBe(true)
    await here.close()
  })

  test.concurrent('a failover to a standby ends all locks, holders are told, and tokens go on growing', async () => {
    await using primary = await startPostgres()
    await using standby = await startStandby(primary, { synchronous: true })
    await using proxy = await startProxy(primary.port)
    const here = new AdvisoryFixture(proxy.through(primary.url))
    const store = here.store()
    const locks = createLocks(store)
    const lock = await locks.acquire('failed over')
    const told = lost(lock)
    await primary.kill()
    expect(await told).toBe('session')
    await standby.promote()
    const there = new AdvisoryFixture(standby.url)
    const next = await createLocks(there.store()).acquire('failed over')
    expect(next.fencingToken).toBeGreaterThan(lock.fencingToken)
    await there.close()
    await here.close()
  })

  test.concurrent('a session whose setup takes too long is given up, and the next one works', async (t) => {
    const fixture = await open(t)
    const store = fixture.store({ timeout: 300 })
    const later = claim('later')
    // The setup of a session raises the sequence under this lock.
    const { bits } = idOfName('\0leasehold advisory raising')
    await fixture.query('SELECT pg_advisory_lock($1)', [bits])
    const refused = await ask(store, later)
    expect(refused).toMatchObject({ granted: 'unknown', error: { message: expect.stringContaining('not answer') } })
    await fixture.query('SELECT pg_advisory_unlock($1)', [bits])
    await until('the next one works', async () => (await ask(store, later)).granted === true)
  })

  test.concurrent('a standby is refused, because its locks would exclude nobody on the primary', async () => {
    await using primary = await startPostgres()
    await using standby = await startStandby(primary)
    const here = new AdvisoryFixture(standby.url)
    const error = await createLocks(here.store())
      .tryAcquire('standby')
      .catch((caught: unknown) => caught)
    expect(error).toBeInstanceOf(StoreUnavailableError)
    expect((error as Error).message).toContain('standby')
    await here.close()
  })

  test.concurrent('a server without room for another lock says so, and held locks stay held and can be released', async () => {
    await using own = await startPostgres({ settings: { max_locks_per_transaction: 10, max_connections: 10 } })
    const here = new AdvisoryFixture(own.url)
    const store = here.store()
    const claims = Array.from({ length: 8_000 }, (_, i) => claim(`full:${i}`))
    const answers: Answer[] = []
    for (let at = 0; at < claims.length; at += 200) {
      answers.push(...(await store.acquire(claims.slice(at, at + 200))))
      if (answers.some((answer) => answer.granted === 'unknown')) break
    }
    const failed = answers.find((answer) => answer.granted === 'unknown') as { error: Error } | undefined
    expect(failed?.error.message).toContain('max_locks_per_transaction')
    const held = claims.filter((_, i) => answers[i]?.granted === true)
    expect(held.length).toBeGreaterThan(100)
    const released = await store.release(held)
    expect(released.every(({ outcome }) => outcome === 'released')).toBe(true)
    expect(await here.held()).toBe(0)
    await here.close()
  })

  test.concurrent('a waiter that cannot open another session polls, and gets the lock', async () => {
    await using own = await startPostgres({ settings: { max_connections: 12, superuser_reserved_connections: 1 } })
    const here = new AdvisoryFixture(own.url)
    const [a, b] = [createLocks(here.store()), createLocks(here.store())]
    const held = await a.acquire('crowded')
    await (await b.acquire('warm')).release()
    await here.query('CREATE ROLE crowd LOGIN')
    const crowd = here.pool({
      max: 50,
      user: 'crowd',
      connectionString: undefined,
      host: '127.0.0.1',
      port: own.port,
      database: 'postgres',
    })
    const taken = []
    for (;;) {
      const client = await crowd.connect().catch(() => undefined)
      if (!client) break
      taken.push(client)
    }
    const waiting = b.acquire('crowded', { wait: '20s' })
    await sleep(200)
    await held.release()
    expect(await (await waiting).release()).toBe(true)
    for (const client of taken) client.release()
    await here.close()
  })
})

describe('settings of a role or a pool', () => {
  test.concurrent('settings that would cut a wait short, hide it or make a session read only do not apply to sessions of the store', async (t) => {
    const fixture = await open(t)
    const role = `strict_${Date.now()}`
    await fixture.query(`CREATE ROLE ${role} LOGIN SUPERUSER`)
    for (const setting of [
      "statement_timeout = '50ms'",
      "lock_timeout = '20ms'",
      "idle_session_timeout = '300ms'",
      "idle_in_transaction_session_timeout = '50ms'",
      "default_transaction_isolation = 'serializable'",
      'default_transaction_read_only = on',
      "search_path = 'nowhere'",
    ]) {
      await fixture.query(`ALTER ROLE ${role} SET ${setting}`)
    }
    const pool = {
      connectionString: fixture.url.replace('postgres@', `${role}@`),
      query_timeout: 40,
      statement_timeout: 30,
    }
    const [a, b] = [createLocks(fixture.store({}, pool)), createLocks(fixture.store({}, pool))]
    const held = await a.acquire('strict')
    const waiting = b.acquire('strict', { wait: '10s' })
    await sleep(700)
    expect(held.isHeld).toBe(true)
    await held.release()
    const next = await waiting
    expect(next.fencingToken).toBeGreaterThan(held.fencingToken)
    await sleep(500)
    expect(await next.release()).toBe(true)
  })

  for (const level of ['repeatable read', 'serializable']) {
    test.concurrent(`default_transaction_isolation = ${level} changes neither exclusion nor the order of tokens`, async (t) => {
      const fixture = await open(t)
      const options = `-c default_transaction_isolation=${level.replace(' ', '\\ ')}`
      const stores = Array.from({ length: 4 }, () => createLocks(fixture.store({}, { options })))
      let inside = 0
      let most = 0
      let last = 0n
      await Promise.all(
        stores.flatMap((locks) =>
          Array.from({ length: 5 }, () =>
            locks.withLock('level', async (lock) => {
              most = Math.max(most, ++inside)
              expect(lock.fencingToken).toBeGreaterThan(last)
              last = lock.fencingToken
              await sleep(2)
              inside--
            }),
          ),
        ),
      )
      expect(most).toBe(1)
    })
  }
})
