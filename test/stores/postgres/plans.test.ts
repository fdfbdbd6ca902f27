import { Pool } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { migrate } from '../../../src/stores/postgres/index.js'

const CROWD = 2_000
const ONE_CALL = 100

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres({ settings: { autovacuum: false } })
})
afterAll(() => server.stop())

const range = (
  n: number,
  sql: string,
) => `insert into leasehold_queue select ${sql}, 2147483647, 2147483647, 30000, 60000, now(),
  now() + interval '1 hour', false, null, null from generate_series(1, ${n}) i`

/** What the statistics were made of before the crowd came. */
const moments: Record<string, string> = {
  'never taken': 'select 1',
  'of an empty table': 'analyze leasehold_queue',
  'of one waiter': `${range(1, `'lock:small', 'early', 1`)}; analyze leasehold_queue`,
  'of a vacuum alone': `${range(1, `'lock:small', 'early', 1`)}; vacuum leasehold_queue`,
  'of a waiter each for many names': `${range(300, `'lock:' || i, 'early' || i, 1`)}; analyze leasehold_queue`,
}

const owners = Array.from({ length: ONE_CALL }, (_, i) => `'w${i * 17 + 3}'`).join()
const json = (items: object[]) => `'${JSON.stringify(items)}'::json`
const claim = (owner: string) =>
  `'lock:crowd', '${owner}', 2147483647, 2147483647, 30000, null, 3000, false, false, null`
const others = Array.from({ length: 5 }, (_, i) => ({ key: `lock:other${i}`, owner: 'nobody' }))
const waiter = (owner: string) => ({ weight: 2147483647, capacity: 2147483647, ttl: 30_000, queue: 3_000, owner })

/** What is called, and how many rows of the queue it may read. */
const calls: Record<string, [sql: string, most: number]> = {
  'a heartbeat of waiters for one name': [
    `leasehold_renew_entries('{lock:crowd}', array[${owners}], 3000)`,
    3 * ONE_CALL,
  ],
  'a heartbeat of waiters for several names': [
    `leasehold_renew_entries(array_fill('lock:crowd'::text, array[${ONE_CALL - 1}]) || '{lock:none}', array[${owners}], 3000)`,
    9 * ONE_CALL,
  ],
  'a hand-off': [`leasehold_release_one('lock:crowd', 'holder', null, false)`, 10],
  'a hand-off in a batch': [
    `leasehold_release(${json([{ key: 'lock:crowd', owner: 'holder' }, ...others])}, false)`,
    10,
  ],
  'a waiter that gives up': [`leasehold_release_one('lock:crowd', 'w1500', null, false)`, 10],
  'a waiter that asks again': [`leasehold_acquire_one(${claim('w1500')})`, 110],
  'the first waiter that asks again': [`leasehold_acquire_one(${claim('w1')})`, 10],
  'waiters that ask again in a batch': [
    `leasehold_acquire(${json([{ key: 'lock:crowd', ...waiter('w1500') }, ...others.map(({ key }) => ({ key, ...waiter('x') }))])}, null)`,
    120,
  ],
}

describe.each(Object.entries(moments))('with statistics %s', (_, past) => {
  test('no call of a waiter reads the whole queue of a crowd that came since', async () => {
    const client = new Pool({ connectionString: await server.createDatabase(), max: 1 })
    await migrate(client)
    for (const sql of past.split(';')) await client.query(sql)
    await client.query(`select leasehold_acquire_one(${claim('holder')})`)
    // From the sixth call on the server keeps the plan of a statement for this session.
    for (let i = 0; i < 6; i++)
      for (const [sql] of Object.values(calls)) await client.query(`begin; select ${sql}; rollback`)
    await client.query(range(CROWD, `'lock:crowd', 'w' || i, i`))
    const count = async (): Promise<number> => {
      const { rows } = await client.query(
        `select (idx_tup_fetch + seq_tup_read)::int as n from pg_stat_xact_user_tables where relname = 'leasehold_queue'`,
      )
      return rows[0].n
    }
    const tooMany: Record<string, number> = {}
    for (const [what, [sql, most]] of Object.entries(calls)) {
      await client.query('begin')
      const before = await count()
      await client.query(`select ${sql}`)
      const read = (await count()) - before
      await client.query('rollback')
      if (read > most) tooMany[what] = read
    }
    await client.end()
    expect(tooMany).toEqual({})
  })
})
