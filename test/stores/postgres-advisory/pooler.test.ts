import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type PgBouncer, type PostgresServer, startPgBouncer, startPostgres } from '../../../testbed/servers/index.js'
import { createLocks, StoreUnavailableError, UnsupportedError } from '../../../src/index.js'
import { lockInTransaction } from '../../../src/stores/postgres-advisory/index.js'
import { AdvisoryFixture } from '../../../testbed/postgres-advisory/fixture.js'

let server: PostgresServer
let direct: AdvisoryFixture

beforeAll(async () => {
  server = await startPostgres()
  direct = new AdvisoryFixture(server.url)
})
afterAll(async () => {
  await direct.close()
  await server.stop()
})

describe('behind PgBouncer', () => {
  for (const settings of [{}, { server_round_robin: 1 }] as Record<string, number>[]) {
    test(`the store refuses transaction mode and says what to use instead ${JSON.stringify(settings)}`, async () => {
      await using bouncer = await startPgBouncer({ postgres: server, mode: 'transaction', settings })
      const here = new AdvisoryFixture(bouncer.url)
      for (const wait of [0, '5s'] as const) {
        const error = await createLocks(here.store())
          .acquire('pooled', { wait })
          .catch((caught: unknown) => caught)
        expect(error).toBeInstanceOf(UnsupportedError)
        expect((error as Error).message).toMatch(/session mode.*leasehold\/postgres .*lockInTransaction/)
      }
      expect(await direct.held()).toBe(0)
      await here.close()
    })
  }

  test('the store refuses a pooler with one server connection, whose locks all clients would share', async () => {
    await using bouncer = await startPgBouncer({ postgres: server, mode: 'transaction', poolSize: 1 })
    const here = new AdvisoryFixture(bouncer.url)
    const error = await createLocks(here.store())
      .tryAcquire('narrow')
      .catch((caught: unknown) => caught)
    expect(error).toBeInstanceOf(StoreUnavailableError)
    expect((error as Error).message).toContain('no second connection')
    expect(await direct.held()).toBe(0)
    await here.close()
  })

  test('session mode works, including waiting', async () => {
    await using bouncer = await startPgBouncer({ postgres: server, mode: 'session' })
    const here = new AdvisoryFixture(bouncer.url)
    const [a, b] = [createLocks(here.store()), createLocks(here.store())]
    const held = await a.acquire('session')
    const waiting = b.acquire('session', { wait: '10s' })
    expect(await b.tryAcquire('session')).toBeNull()
    expect(await held.release()).toBe(true)
    const next = await waiting
    expect(next.fencingToken).toBeGreaterThan(held.fencingToken)
    expect(await next.release()).toBe(true)
    await here.close()
  })

  test('a pooler that changes to transaction mode ends the locks, and no lock is taken on a connection of another client', async () => {
    const bouncer: PgBouncer = await startPgBouncer({ postgres: server, mode: 'session' })
    const here = new AdvisoryFixture(bouncer.url)
    const locks = createLocks(here.store())
    const lock = await locks.acquire('before')
    const admin = new pg.Client({ connectionString: bouncer.urlOf('pgbouncer') })
    await admin.connect()
    await admin.query("SET pool_mode = 'transaction'")
    const told = new Promise((resolve) => lock.signal.addEventListener('abort', resolve))
    // Clients keep their server connection until they disconnect; later ones get the new mode.
    await admin.query('KILL postgres').catch(() => {})
    await admin.query('RESUME postgres').catch(() => {})
    await told
    const error = await locks.tryAcquire('after').catch((caught: unknown) => caught)
    expect(error).toBeInstanceOf(UnsupportedError)
    await admin.end()
    await here.close()
    await bouncer.stop()
    expect(await direct.held()).toBe(0)
  })

  test('lockInTransaction works in transaction mode', async () => {
    await using bouncer = await startPgBouncer({ postgres: server, mode: 'transaction' })
    const here = new AdvisoryFixture(bouncer.url)
    const client = await here.pool().connect()
    await client.query('BEGIN')
    await lockInTransaction(client, 'in transaction')
    expect(await direct.held()).toBe(1)
    await client.query('COMMIT')
    expect(await direct.held()).toBe(0)
    client.release()
    await here.close()
  })
})
