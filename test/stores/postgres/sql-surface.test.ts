import { Pool } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { createLocks, type Locks } from '../../../src/locks.js'
import { ALL, type Claim, type Store } from '../../../src/store.js'
import { migrate, migrationSql, postgres } from '../../../src/stores/postgres/index.js'
import { seedSql } from './seed.js'

let server: PostgresServer
let pool: Pool
let store: Store
let locks: Locks

beforeAll(async () => {
  server = await startPostgres()
  pool = new Pool({ connectionString: server.url })
  await migrate(pool)
  store = postgres(pool)
  locks = createLocks(store, { ttl: '30s', wait: '10s' })
})

afterAll(async () => {
  await locks.close({ grace: 0 })
  await store.close()
  await pool.end()
  await server.stop()
})

let counter = 0
const newName = () => `sql-${String(++counter).padStart(3, '0')}`

async function sql<T>(text: string, ...values: unknown[]): Promise<T> {
  const { rows } = await pool.query(text, values)
  return Object.values(rows[0] ?? {})[0] as T
}

const acquire = (name: string, holder: string, ttl = 30) =>
  sql<boolean>('select acquire_lock($1, $2, $3)', name, holder, ttl)
const release = (name: string, holder: string) => sql<boolean>('select release_lock($1, $2)', name, holder)

describe('SQL callers and stores', () => {
  test('exclude each other', async () => {
    const name = newName()
    expect(await acquire(name, 'python')).toBe(true)
    expect(await locks.tryAcquire(name)).toBeNull()
    expect(await release(name, 'python')).toBe(true)
    const lock = await locks.acquire(name)
    expect(await acquire(name, 'python')).toBe(false)
    await lock.release()
    expect(await acquire(name, 'python')).toBe(true)
  })

  test('exclude each other also while the store only reads', async () => {
    const name = newName()
    const reading = await locks.acquire(name, { mode: 'shared' })
    expect(await acquire(name, 'python')).toBe(false)
    await reading.release()
    expect(await acquire(name, 'python')).toBe(true)
    expect(await locks.tryAcquire(name, { mode: 'shared' })).toBeNull()
  })

  test('agree that the same holder extends, another is refused, and only the holder can release', async () => {
    const name = newName()
    const expires = () => sql<Date>('select expires_at from distributed_locks where lock_name = $1', name)
    expect(await acquire(name, 'a', 10)).toBe(true)
    const before = await expires()
    expect(await acquire(name, 'a', 60)).toBe(true)
    expect((await expires()).getTime() - before.getTime()).toBeGreaterThan(45_000)
    expect(await acquire(name, 'b')).toBe(false)
    expect(await release(name, 'b')).toBe(false)
    expect(await release(name, 'a')).toBe(true)
    expect(await release(name, 'a')).toBe(false)
  })

  test('may leave arguments out as in the seed, and give them by name', async () => {
    const name = newName()
    expect(await sql('select acquire_lock($1, $2)', name, 'a')).toBe(true)
    expect(
      await sql(`select acquire_lock(p_lock_name => $1, p_holder_id => 'b', p_metadata => '{"a": 1}')`, name),
    ).toBe(false)
    await expect(acquire(name, 'a', 0)).rejects.toThrow(/at least 1 second/)
    await expect(acquire('', 'a')).rejects.toThrow(/takes a name/)
  })

  test('take over from an expired holder', async () => {
    const name = newName()
    expect(await acquire(name, 'a', 1)).toBe(true)
    await expect.poll(() => acquire(name, 'b'), { timeout: 5_000, interval: 50 }).toBe(true)
    expect(await release(name, 'a')).toBe(false)
  })

  test('wake each other: a release in SQL hands off to a store at once', async () => {
    const name = newName()
    await acquire(name, 'python', 3_600)
    const waiting = locks.acquire(name)
    await expect.poll(async () => (await locks.waiters(name)).length).toBe(1)
    await release(name, 'python')
    expect((await waiting).isHeld).toBe(true)
  })
})

describe('a SQL caller that is refused', () => {
  test('keeps no queue entry, however often it asks', async () => {
    const name = newName()
    const lock = await locks.acquire(name)
    for (let i = 0; i < 3; i++) expect(await acquire(name, 'poller')).toBe(false)
    expect(await locks.waiters(name)).toEqual([])
    await lock.release()
    expect(await sql('select count(*)::int from distributed_locks where lock_name = $1', name), 'nor is it given').toBe(
      0,
    )
    const next = await locks.tryAcquire(name)
    expect(next?.isHeld).toBe(true)
    await next?.release()
  })

  test('is refused while the queue has a live entry, and served afterwards', async () => {
    const name = newName()
    const claim: Claim = {
      key: `lock:${name}`,
      owner: 'queued',
      weight: ALL,
      capacity: ALL,
      ttlMs: 60_000,
      queueMs: 60_000,
    }
    await acquire(name, 'holder')
    await store.acquire([claim])
    // Not a release: nobody is let in by it.
    await pool.query(`update leasehold_leases set expires_at = clock_timestamp() where key = $1`, [claim.key])
    await pool.query(`update leasehold_queue set weight = 2, capacity = 1 where key = $1`, [claim.key])
    expect(await acquire(name, 'poller'), 'somebody is before it').toBe(false)
    await pool.query(`update leasehold_queue set expires_at = clock_timestamp() where key = $1`, [claim.key])
    expect(await acquire(name, 'poller')).toBe(true)
  })
})

describe('names', () => {
  test.each([255, 256])('of %s characters are taken or refused as by the library', async (length) => {
    const name = 'ü'.repeat(length)
    if (length > 255) {
      await expect(acquire(name, 'a')).rejects.toThrow(/at most 255/)
      await expect(acquire('a', name)).rejects.toThrow(/at most 255/)
    } else {
      expect(await acquire(name, name)).toBe(true)
      expect(await release(name, name)).toBe(true)
    }
  })

  test.each(['acquire_lock', 'acquireAll'])('that were used once are deleted by later calls of %s', async (way) => {
    const url = await server.createDatabase()
    const own = new Pool({ connectionString: url, max: 2 })
    await migrate(own)
    const ownStore = postgres(own, { listen: false })
    const use = async (from: number, to: number): Promise<void> => {
      for (let i = from; i < to; i++) {
        if (way === 'acquire_lock') {
          await own.query(`select acquire_lock('job ${i}', 'w'), release_lock('job ${i}', 'w')`)
        } else {
          const claims = [0, 1].map(
            (n): Claim => ({ key: `lock:job ${i} ${n}`, owner: 'w', weight: ALL, capacity: ALL, ttlMs: 60_000 }),
          )
          await ownStore.acquire(claims, { atomic: true })
          await ownStore.release(claims)
        }
      }
    }
    await use(0, 300)
    await own.query(`update leasehold_leases set sweep_at = clock_timestamp() - interval '1 day'`)
    await use(300, 600)
    const { rows } = await own.query('select count(*)::int as n from leasehold_leases where sweep_at < now()')
    expect(rows).toEqual([{ n: 0 }])
    await ownStore.close()
    await own.end()
  })
})

describe('distributed_locks', () => {
  test('shows exclusive locks of stores and SQL callers, with their metadata', async () => {
    const [mine, theirs, shared] = [newName(), newName(), newName()]
    const lock = await locks.acquire(mine, { metadata: { job: 'charge' } })
    await locks.acquire(shared, { mode: 'shared' })
    await sql(`select acquire_lock($1, 'python', 30, '{"job": "report"}')`, theirs)
    const { rows } = await pool.query('select * from distributed_locks where lock_name = any($1) order by lock_name', [
      [mine, theirs, shared],
    ])
    expect(rows).toMatchObject([
      { lock_name: mine, holder_id: lock.holder, metadata: { job: 'charge' } },
      { lock_name: theirs, holder_id: 'python', metadata: { job: 'report' } },
    ])
    for (const row of rows) expect(row.expires_at.getTime()).toBeGreaterThan(row.acquired_at.getTime())
  })

  test('takes a deletion as a release, and refuses every other write', async () => {
    const name = newName()
    await acquire(name, 'a')
    await pool.query('delete from distributed_locks where lock_name = $1', [name])
    expect(await acquire(name, 'b')).toBe(true)
    await expect(
      pool.query(`update distributed_locks set holder_id = 'x' where lock_name = $1`, [name]),
    ).rejects.toThrow(/acquire_lock/)
    await expect(pool.query(`insert into distributed_locks (lock_name, holder_id) values ('n', 'h')`)).rejects.toThrow(
      /acquire_lock/,
    )
  })

  test('can be read whatever a value holds', async () => {
    const name = newName()
    const claim: Claim = {
      key: `lock:${name}`,
      owner: 'o',
      weight: ALL,
      capacity: ALL,
      ttlMs: 9_000,
      value: '{"a":"\\u0000"}',
    }
    await store.acquire([claim])
    expect(await sql('select metadata from distributed_locks where lock_name = $1', name)).toBe('{"a":"\\u0000"}')
  })
})

describe('at another isolation level', () => {
  test.each(['repeatable read', 'serializable'])('%s, the functions refuse and say what to do', async (level) => {
    const client = await pool.connect()
    for (const call of [
      `acquire_lock('x', 'y')`,
      `release_lock('x', 'y')`,
      `leasehold_acquire('[{"key": "lock:x"}]', null)`,
    ]) {
      await client.query(`begin isolation level ${level}`)
      await expect(client.query(`select ${call}`)).rejects.toThrow(/READ COMMITTED only/)
      await client.query('rollback')
    }
    client.release()
  })
})

describe('a name that an open transaction decides about', () => {
  test('is answered unknown, the others of the batch are answered, and renewals go on', async () => {
    const [stuck, held, free] = [newName(), newName(), newName()]
    const impatient = postgres(pool, { timeout: '2s' })
    const claim = (name: string): Claim => ({
      key: `lock:${name}`,
      owner: 'us',
      weight: ALL,
      capacity: ALL,
      ttlMs: 60_000,
    })
    await impatient.acquire([claim(held)])
    const client = await pool.connect()
    await client.query('begin')
    await client.query(`select acquire_lock($1, 'python'), acquire_lock($2, 'python')`, [stuck, held])
    expect(await impatient.acquire([claim(stuck), claim(free)])).toMatchObject([
      { granted: 'unknown', error: { code: 'STORE_UNAVAILABLE', message: expect.stringContaining('stays open') } },
      { granted: true },
    ])
    expect(await impatient.renew([{ key: `lock:${held}`, owner: 'us', ttlMs: 60_000 }])).toMatchObject([
      { outcome: 'ours' },
    ])
    expect(await impatient.release([claim(held)])).toMatchObject([{ outcome: 'unknown' }])
    await client.query('rollback')
    client.release()
    expect(await impatient.acquire([claim(stuck)])).toMatchObject([{ granted: true }])
    await impatient.close()
  })

  test('does not make two transactions that lock in opposite order wait for each other for ever', async () => {
    const [a, b] = [newName(), newName()]
    const client = await pool.connect()
    await client.query('begin')
    await client.query(`select acquire_lock($1, 'python')`, [b])
    const claims = [a, b].map(
      (name): Claim => ({ key: `lock:${name}`, owner: 'us', weight: ALL, capacity: ALL, ttlMs: 60_000 }),
    )
    const batch = store.acquire(claims)
    const theirs = client.query(`select acquire_lock($1, 'python')`, [a]).then(
      () => 'served',
      (error: { code: string }) => error.code,
    )
    expect(['served', '40P01', '55P03']).toContain(await theirs)
    await client.query('rollback')
    client.release()
    expect((await batch).length).toBe(2)
  })
})

describe('an object of the same name that is not leasehold’s', () => {
  async function seeded(): Promise<Pool> {
    const seedPool = new Pool({ connectionString: await server.createDatabase() })
    await seedPool.query(seedSql)
    await seedPool.query(`select acquire_lock('held', 'old holder', 600, '{"a": 1}')`)
    await seedPool.query(
      `insert into distributed_locks values ('expired', 'x', now() - interval '1h', now() - interval '1m', '{}')`,
    )
    return seedPool
  }

  test('stops the migration, which explains and changes nothing', async () => {
    const seedPool = await seeded()
    await expect(migrate(seedPool)).rejects.toThrow(/table public.distributed_locks.*acquire_lock.*--adopt/s)
    expect((await seedPool.query(`select to_regclass('leasehold_leases') as t`)).rows).toEqual([{ t: null }])
    expect((await seedPool.query(`select acquire_lock('held', 'other')`)).rows).toEqual([{ acquire_lock: false }])
    await seedPool.end()
  })

  test('is adopted on request: held locks stay held, the old table is kept', async () => {
    const seedPool = await seeded()
    await migrate(seedPool, { adopt: true })
    const { rows } = await seedPool.query('select lock_name, holder_id, metadata from distributed_locks')
    expect(rows).toEqual([{ lock_name: 'held', holder_id: 'old holder', metadata: { a: 1 } }])
    const adopted = postgres(seedPool)
    const claim: Claim = { key: 'lock:held', owner: 'us', weight: ALL, capacity: ALL, ttlMs: 9_000 }
    expect(await adopted.acquire([claim])).toMatchObject([{ granted: false, blocker: { owner: 'old holder' } }])
    expect((await seedPool.query(`select release_lock('held', 'old holder')`)).rows).toEqual([{ release_lock: true }])
    expect(await adopted.acquire([claim])).toMatchObject([{ granted: true }])
    expect((await seedPool.query('select count(*)::int as n from distributed_locks_before_leasehold')).rows).toEqual([
      { n: 2 },
    ])
    expect(await migrate(seedPool, { adopt: true })).toBe(false)
    await seedPool.query(migrationSql({ adopt: true }))
    await adopted.close()
    await seedPool.end()
  })

  test('is left alone if it is something else altogether', async () => {
    const otherPool = new Pool({ connectionString: await server.createDatabase() })
    await otherPool.query(`create function acquire_lock(bigint) returns boolean language sql as 'select true'`)
    await expect(migrate(otherPool, { adopt: true })).rejects.toThrow(/cannot|not a function that can be adopted/)
    await migrate(otherPool, { schema: 'elsewhere' })
    expect((await otherPool.query(`select acquire_lock(1), elsewhere.acquire_lock('a', 'b') as ours`)).rows).toEqual([
      { acquire_lock: true, ours: true },
    ])
    await otherPool.end()
  })
})
