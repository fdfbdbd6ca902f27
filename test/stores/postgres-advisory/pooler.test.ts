import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type PgBouncer, type PostgresServer, startPgBouncer, startPostgres } from '../../../scripts/servers/index.js'
import { createLocks, StoreUnavailableError, UnsupportedError } from '../../../src/index.js'
import { lockInTransaction } from '../../../src/stores/postgres-advisory/index.js'
import { Place } from './place.js'

let server: PostgresServer
let direct: Place

beforeAll(async () => {
  server = await startPostgres()
  direct = new Place(server.url)
})
afterAll(async () => {
  await direct.close()
  await server.stop()
})

describe('behind PgBouncer', () => {
  for (const settings of [{}, { server_round_robin: 1 }] as Record<string, number>[]) {
    test(`transaction mode is refused, with what to use instead ${JSON.stringify(settings)}`, async () => {
      await using bouncer = await startPgBouncer({ postgres: server, mode: 'transaction', settings })
      const here = new Place(bouncer.url)
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

  test('a pool with one connection is refused too: all would share its locks', async () => {
    await using bouncer = await startPgBouncer({ postgres: server, mode: 'transaction', poolSize: 1 })
    const here = new Place(bouncer.url)
    const error = await createLocks(here.store())
      .tryAcquire('narrow')
      .catch((caught: unknown) => caught)
    expect(error).toBeInstanceOf(StoreUnavailableError)
    expect((error as Error).message).toContain('no second connection')
    expect(await direct.held()).toBe(0)
    await here.close()
  })

  test('session mode works, waiting and all', async () => {
    await using bouncer = await startPgBouncer({ postgres: server, mode: 'session' })
    const here = new Place(bouncer.url)
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

  test('a pooler that changes its mind loses the locks, and none is taken on a strange connection', async () => {
    const bouncer: PgBouncer = await startPgBouncer({ postgres: server, mode: 'session' })
    const here = new Place(bouncer.url)
    const locks = createLocks(here.store())
    const lock = await locks.acquire('before')
    const admin = new pg.Client({ connectionString: bouncer.urlOf('pgbouncer') })
    await admin.connect()
    await admin.query("SET pool_mode = 'transaction'")
    const told = new Promise((resolve) => lock.signal.addEventListener('abort', resolve))
    // Whoever holds a connection keeps it until it leaves; those who come later get the new mode.
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
    const here = new Place(bouncer.url)
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
