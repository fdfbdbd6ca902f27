import pg from 'pg'
import postgres from 'postgres'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { createLocks, InvalidOptionError, LockTimeoutError } from '../../../src/index.js'
import { lockInTransaction, type TransactionClient } from '../../../src/stores/postgres-advisory/index.js'
import { AdvisoryFixture, sleep, until } from '../../../testbed/postgres-advisory/fixture.js'

let server: PostgresServer
let fixture: AdvisoryFixture
let sql: postgres.Sql

beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

beforeEach(async () => {
  fixture = new AdvisoryFixture(await server.createDatabase())
  sql = postgres(fixture.url, { onnotice: () => {} })
})
afterEach(async () => {
  await sql.end()
  await fixture.close()
})

type Work<T> = (tx: TransactionClient) => Promise<T>

/** Runs a transaction with either client. */
const clients: Record<string, <T>(work: Work<T>, ending?: 'COMMIT' | 'ROLLBACK') => Promise<T>> = {
  async pg(work, ending = 'COMMIT') {
    const client = new pg.Client({ connectionString: fixture.url })
    await client.connect()
    try {
      await client.query('BEGIN')
      const result = await work(client)
      await client.query(ending)
      return result
    } finally {
      await client.end()
    }
  },
  async 'postgres.js'<T>(work: Work<T>, ending = 'COMMIT') {
    const rolledBack = Symbol('rolled back')
    let result: T | undefined
    await sql
      .begin(async (tx) => {
        result = await work(tx)
        if (ending === 'ROLLBACK') throw rolledBack
      })
      .catch((error: unknown) => {
        if (error !== rolledBack) throw error
      })
    return result as T
  },
}

for (const [library, transaction] of Object.entries(clients)) {
  describe(`lockInTransaction with ${library}`, () => {
    for (const ending of ['COMMIT', 'ROLLBACK'] as const) {
      test(`lockInTransaction() holds a name until ${ending}, against transactions and against locks`, async () => {
        const locks = createLocks(fixture.store())
        await transaction(async (tx) => {
          await lockInTransaction(tx, 'order:7')
          expect(await locks.tryAcquire('order:7')).toBeNull()
          const busy = transaction((other) => lockInTransaction(other, 'order:7', { wait: 0 }))
          await expect(busy).rejects.toBeInstanceOf(LockTimeoutError)
        }, ending)
        const lock = await locks.acquire('order:7')
        const busy = transaction((tx) => lockInTransaction(tx, 'order:7', { wait: 0 }))
        await expect(busy).rejects.toBeInstanceOf(LockTimeoutError)
        await lock.release()
        await transaction((tx) => lockInTransaction(tx, 'order:7', { wait: 0 }))
      })
    }

    test('lockInTransaction() waits until the other transaction has ended', async () => {
      const seen: string[] = []
      const first = transaction(async (tx) => {
        await lockInTransaction(tx, 'turns')
        seen.push('first')
        await until('the second waits', async () => (await fixture.waiting()) === 1)
        seen.push('first ends')
      })
      await until('the first holds it', () => seen.length === 1)
      await transaction(async (tx) => {
        await lockInTransaction(tx, 'turns', { wait: 'forever' })
        seen.push('second')
      })
      await first
      expect(seen).toEqual(['first', 'first ends', 'second'])
    })

    test('a transaction goes on after a timed-out wait, with the locks it had and no others', async () => {
      const lock = await createLocks(fixture.store()).acquire('busy')
      const answer = await transaction(async (tx) => {
        await lockInTransaction(tx, 'mine')
        const since = performance.now()
        const error = await lockInTransaction(tx, ['free:1', 'busy', 'free:2'], { wait: 300 }).catch((e: unknown) => e)
        expect(error).toBeInstanceOf(LockTimeoutError)
        expect(error).toMatchObject({ lock: 'busy' })
        expect(performance.now() - since).toBeGreaterThan(295)
        // "mine" in this transaction and "busy" in the store.
        expect(await fixture.held()).toBe(2)
        return rowsOf(tx, "SELECT current_setting('lock_timeout') AS lock_timeout")
      })
      expect(answer).toMatchObject([{ lock_timeout: '0' }])
      await lock.release()
    })

    test('lockInTransaction() without wait takes all of several names or none', async () => {
      const lock = await createLocks(fixture.store()).acquire('taken')
      await transaction(async (tx) => {
        const busy = lockInTransaction(tx, ['a', 'taken', 'b'], { wait: 0 })
        await expect(busy).rejects.toMatchObject({ lock: 'taken' })
        expect(await fixture.held()).toBe(1)
        await lock.release()
        await lockInTransaction(tx, ['a', 'taken', 'b', 'a'], { wait: 0 })
        expect(await fixture.held()).toBe(3)
      })
    })

    test('transactions that lock several names in different orders do not deadlock', async () => {
      const names = ['n1', 'n2', 'n3', 'n4']
      const rounds = Array.from({ length: 8 }, (_, i) =>
        transaction(async (tx) => {
          const order = i % 2 ? [...names].reverse() : [...names.slice(i % 4), ...names.slice(0, i % 4)]
          await lockInTransaction(tx, order, { wait: 'forever' })
          expect(await fixture.held()).toBe(4)
          await sleep(2)
        }),
      )
      await Promise.all(rounds)
    })

    test('shared locks admit each other and exclude exclusive ones', async () => {
      await transaction((one) =>
        transaction(async (two) => {
          await lockInTransaction(one, 'shelf', { mode: 'shared' })
          await lockInTransaction(two, 'shelf', { mode: 'shared', wait: 0 })
          expect(await createLocks(fixture.store()).tryAcquire('shelf')).toBeNull()
          expect(await createLocks(fixture.store()).tryAcquire('shelf', { mode: 'shared' })).not.toBeNull()
        }),
      )
    })

    test('lockInTransaction() takes numbers and pairs instead of names', async () => {
      await transaction(async (tx) => {
        await lockInTransaction(tx, 42n)
        await lockInTransaction(tx, [-1, 2])
        await lockInTransaction(tx, [43n, [3, 4], -5n])
        const rows = await fixture.query(
          "SELECT classid::int8, objid::int8, objsubid FROM pg_locks WHERE locktype = 'advisory' ORDER BY 3, 1, 2",
        )
        expect(rows.map((row) => Object.values(row).map(Number))).toEqual([
          [0, 42, 1],
          [0, 43, 1],
          [4294967295, 4294967291, 1],
          [3, 4, 2],
          [4294967295, 2, 2],
        ])
      })
    })

    test('lockInTransaction() waits for as long as `wait` says under a shorter statement_timeout, which it restores', async () => {
      const lock = await createLocks(fixture.store()).acquire('slow')
      const timeouts = await transaction(async (tx) => {
        await rowsOf(tx, "SET LOCAL statement_timeout = '1500ms'")
        const since = performance.now()
        const error = await lockInTransaction(tx, 'slow', { wait: 2_200 }).catch((caught: unknown) => caught)
        expect(error).toBeInstanceOf(LockTimeoutError)
        expect(performance.now() - since).toBeGreaterThan(2_195)
        const afterVain = await rowsOf(tx, "SELECT current_setting('statement_timeout') AS kept")
        const waiting = lockInTransaction(tx, ['free', 'slow'], { wait: '20s' })
        await until('the transaction waits', async () => (await fixture.waiting()) === 1)
        await sleep(2_000)
        await lock.release()
        await waiting
        return [...afterVain, ...(await rowsOf(tx, "SELECT current_setting('statement_timeout') AS kept"))]
      })
      expect(timeouts).toMatchObject([{ kept: '1500ms' }, { kept: '1500ms' }])
    })

    test('lockInTransaction() restores the lock_timeout of the transaction', async () => {
      const lock = await createLocks(fixture.store()).acquire('timed')
      const answer = transaction(async (tx) => {
        await rowsOf(tx, "SET LOCAL lock_timeout = '1234ms'")
        await lockInTransaction(tx, 'timed', { wait: '10s' })
        return rowsOf(tx, "SELECT current_setting('lock_timeout') AS lock_timeout")
      })
      await until('the transaction waits', async () => (await fixture.waiting()) === 1)
      await lock.release()
      expect(await answer).toMatchObject([{ lock_timeout: '1234ms' }])
    })
  })
}

describe('lockInTransaction with bad input', () => {
  test('lockInTransaction() refuses a connection without a transaction, where the lock would end at once', async () => {
    const client = new pg.Client({ connectionString: fixture.url })
    await client.connect()
    for (const names of ['a', ['a', 'b']]) {
      await expect(lockInTransaction(client, names)).rejects.toThrow(/transaction that has begun/)
    }
    await client.end()
    await expect(lockInTransaction(sql as never, 'a')).rejects.toBeInstanceOf(InvalidOptionError)
    await expect(lockInTransaction(fixture.pool() as never, 'a')).rejects.toBeInstanceOf(InvalidOptionError)
  })

  test('lockInTransaction() refuses bad input before it sends anything', async () => {
    const tx = { query: () => Promise.reject(new Error('touched')) }
    for (const [names, options] of [
      ['', {}],
      [[2 ** 31, 0], {}],
      [2n ** 63n, {}],
      [undefined, {}],
      ['a', { wait: -1 }],
      ['a', { wait: 'soon' }],
      ['a', { mode: 'both' }],
    ] as [never, never][]) {
      await expect(lockInTransaction(tx, names, options)).rejects.toBeInstanceOf(InvalidOptionError)
    }
  })
})

async function rowsOf(tx: TransactionClient, text: string): Promise<unknown[]> {
  return 'query' in tx ? (await tx.query(text)).rows : [...(await tx.unsafe(text))]
}
