import { Pool } from 'pg'
import postgresJs from 'postgres'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { InvalidOptionError } from '../../../src/errors.js'
import { createLocks } from '../../../src/locks.js'
import {
  guard,
  guardedWrite,
  migrate,
  postgres,
  NotCommittedError,
  StaleTokenError,
} from '../../../src/stores/postgres/index.js'

let server: PostgresServer
let pool: Pool
let sql: postgresJs.Sql

beforeAll(async () => {
  server = await startPostgres()
  pool = new Pool({ connectionString: server.url })
  sql = postgresJs(server.url, { max: 3, onnotice: () => {} })
  await migrate(pool)
  await pool.query('create table accounts (id text primary key, balance int not null)')
})

afterAll(async () => {
  await pool.end()
  await sql.end()
  await server.stop()
})

const balanceOf = async (id: string) =>
  (await pool.query('select balance from accounts where id = $1', [id])).rows[0]?.balance
const open = (id: string) => pool.query('insert into accounts values ($1, 0)', [id])

/** Each library's way to write. */
const ways = {
  pg: (resource: string, token: bigint, balance: number) =>
    guardedWrite(pool, { resource, token }, async (tx) => {
      await tx.query('update accounts set balance = $2 where id = $1', [resource, balance])
      return balance
    }),
  'postgres.js': (resource: string, token: bigint, balance: number) =>
    guardedWrite(sql, { resource, token }, async (tx) => {
      await tx`update accounts set balance = ${balance} where id = ${resource}`
      return balance
    }),
}

describe.each(Object.entries(ways))('guarded writes with %s', (library, write) => {
  test('a paused holder’s late write is refused', async () => {
    const name = `paused ${library}`
    await open(name)
    const store = postgres(pool)
    const locks = createLocks(store)
    const paused = await locks.acquire(name, { ttl: 100, autoRenew: false })
    // It is paused here, for longer than its lock lasts, and another comes.
    const successor = await locks.acquire(name)
    expect(await write(name, successor.fencingToken, 2)).toBe(2)
    const late = await write(name, paused.fencingToken, 1).catch((error: unknown) => error)
    expect(late).toBeInstanceOf(StaleTokenError)
    expect(late).toMatchObject({ code: 'STALE_TOKEN', token: paused.fencingToken, seen: successor.fencingToken })
    expect(await balanceOf(name)).toBe(2)
    await locks.close({ grace: 0 })
    await store.close()
  })

  test('the same token may write again, and an older one to another resource', async () => {
    const [a, b] = [`again a ${library}`, `again b ${library}`]
    await open(a)
    await open(b)
    for (const balance of [1, 2, 3]) expect(await write(a, 10n, balance)).toBe(balance)
    expect(await write(b, 5n, 7)).toBe(7)
  })

  test('of two writers at the same time the older one is refused or comes first, never last', async () => {
    const name = `race ${library}`
    await open(name)
    for (let round = 0; round < 10; round++) {
      const base = BigInt(round * 2)
      await Promise.allSettled([write(name, base + 1n, round * 2 + 1), write(name, base, round * 2)])
      expect(await balanceOf(name)).toBe(round * 2 + 1)
    }
  })

  test('an error of the callback rolls everything back, also the token', async () => {
    const name = `thrown ${library}`
    await open(name)
    const failure = new Error('mine')
    const failing =
      library === 'pg'
        ? guardedWrite(pool, { resource: name, token: 9n }, async () => Promise.reject(failure))
        : guardedWrite(sql, { resource: name, token: 9n }, async () => Promise.reject(failure))
    await expect(failing).rejects.toBe(failure)
    expect(await write(name, 8n, 8)).toBe(8)
  })

  test('guardedWrite rejects if the server answers COMMIT with a rollback', async () => {
    const name = `swallowed ${library}`
    await open(name)
    const twice = `insert into accounts values ('${name}', 1)`
    const paid =
      library === 'pg'
        ? guardedWrite(pool, { resource: name, token: 9n }, async (tx) => {
            await tx.query(`update accounts set balance = 5 where id = '${name}'`)
            await tx.query(twice).catch(() => {})
            return 'paid'
          })
        : guardedWrite(sql, { resource: name, token: 9n }, async (tx) => {
            await tx`update accounts set balance = 5 where id = ${name}`
            await tx.unsafe(twice).catch(() => {})
            return 'paid'
          })
    await expect(paid).rejects.toThrow(NotCommittedError)
    expect(await balanceOf(name)).toBe(0)
    expect(await write(name, 8n, 8), 'the token was rolled back too').toBe(8)
  })

  test.each(['rollback', 'commit', 'rollback; begin'])(
    'guardedWrite rejects if its callback ends the transaction by itself, with %s',
    async (end) => {
      const name = `${end} ${library}`
      const ended =
        library === 'pg'
          ? guardedWrite(pool, { resource: name, token: 9n }, (tx) => tx.query(end))
          : guardedWrite(sql, { resource: name, token: 9n }, (tx) => tx.unsafe(end))
      await expect(ended).rejects.toThrow(NotCommittedError)
    },
  )
})

test.each([2n ** 63n, -(2n ** 63n) - 1n])(
  'a token of %d, which no store grants, is refused before anything is asked',
  async (token) => {
    const wrong = guardedWrite(pool, { resource: 'no token', token }, async () => {})
    await expect(wrong).rejects.toThrow(/^token takes a fencing token/)
  },
)

test('guard() outside of a transaction is refused, and the token is not taken', async () => {
  const client = await pool.connect()
  const refused = /one open transaction/
  await expect(guard(client, { resource: 'no begin', token: 9n })).rejects.toThrow(InvalidOptionError)
  await expect(guard(client, { resource: 'no begin', token: 9n })).rejects.toThrow(refused)
  client.release()
  const reserved = await sql.reserve()
  await expect(guard(reserved, { resource: 'no begin', token: 9n })).rejects.toThrow(refused)
  reserved.release()
  await guardedWrite(pool, { resource: 'no begin', token: 8n }, async () => {})
})

test('a guard in a transaction of your own does the same, whatever its isolation level', async () => {
  await guardedWrite(pool, { resource: 'own', token: 20n }, async () => {})
  for (const level of ['read committed', 'repeatable read', 'serializable']) {
    const client = await pool.connect()
    await client.query(`begin isolation level ${level}`)
    await expect(guard(client, { resource: 'own', token: 19n })).rejects.toThrow(StaleTokenError)
    await client.query('rollback')
    await client.query(`begin isolation level ${level}`)
    await guard(client, { resource: 'own', token: 20n })
    await client.query('commit')
    client.release()
  }
  await expect(sql.begin((tx) => guard(tx, { resource: 'own', token: 19n }))).rejects.toThrow(StaleTokenError)
})

test('a writer at repeatable read that began before a newer token was written is refused', async () => {
  const client = await pool.connect()
  await client.query('begin isolation level repeatable read')
  await client.query('select count(*) from accounts')
  await guardedWrite(pool, { resource: 'snapshot', token: 31n }, async () => {})
  await expect(guard(client, { resource: 'snapshot', token: 30n })).rejects.toMatchObject({ code: '40001' })
  await client.query('rollback')
  client.release()
})

test('the function alone refuses too, for callers in any language', async () => {
  await pool.query(`select leasehold_guard('any', 41)`)
  await expect(pool.query(`select leasehold_guard('any', 40)`)).rejects.toMatchObject({ code: 'LH001', detail: '41' })
})

test('a guard never calls a function of the same name that another role made, however small its token is', async () => {
  await pool.query('create role other login; grant create on schema public to other')
  const other = new Pool({ connectionString: server.url.replace('postgres@', 'other@'), max: 1 })
  for (const types of ['text, integer', 'text, smallint', 'varchar, integer', 'text, numeric', 'unknown, integer'])
    await other
      .query(`create function leasehold_guard(${types}) returns void language plpgsql as
        $$ begin raise 'the code of another role runs as %', current_user; end $$`)
      .catch(() => {})
  await other.end()
  const client = await pool.connect()
  try {
    for (const token of [5n, -5n, 3_000_000_000n, -(2n ** 63n)]) {
      await client.query('begin')
      await guard(client, { resource: `small ${token}`, token })
      await client.query('commit')
    }
  } finally {
    client.release()
  }
  const { rows } = await pool.query(`select token from leasehold_guards where resource like 'small %' order by token`)
  expect(rows.map(({ token }) => token)).toEqual([String(-(2n ** 63n)), '-5', '5', '3000000000'])
  await pool.query(`drop owned by other; drop role other`)
})

test('a guard on a whole pool is refused: it would be apart from the write', async () => {
  await expect(guard(pool, { resource: 'a', token: 1n })).rejects.toThrow(InvalidOptionError)
  await expect(guard(sql, { resource: 'a', token: 1n })).rejects.toThrow(InvalidOptionError)
  const client = await pool.connect()
  await expect(guard(client, { resource: 'a', token: 1 as never })).rejects.toThrow(InvalidOptionError)
  await expect(guard(client, { resource: '', token: 1n })).rejects.toThrow(InvalidOptionError)
  client.release()
})
