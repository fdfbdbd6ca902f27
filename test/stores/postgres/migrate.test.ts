import { execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { Client, Pool } from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { migrationsUnderLoad } from '../../../verify/campaigns/postgres-migrate.js'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { InvalidOptionError, UnsupportedError } from '../../../src/errors.js'
import { createLocks } from '../../../src/locks.js'
import { migrate, migrationSql, postgres, SchemaError } from '../../../src/stores/postgres/index.js'
import { open } from '../../../src/stores/postgres/open.js'
import { driverOf } from '../../../src/clients/postgres/open.js'
import { migrateWith } from '../../../src/stores/postgres/migrate.js'
import { RELEASE, type SchemaRelease, sqlFiles } from '../../../src/stores/postgres/schema.js'
import { clientOf, type Library, storeAt } from '../../../testbed/postgres/fixture.js'

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres()
})

afterAll(() => server.stop())

async function withPool<T>(url: string, use: (pool: Pool) => Promise<T>): Promise<T> {
  const pool = new Pool({ connectionString: url, max: 12 })
  try {
    return await use(pool)
  } finally {
    await pool.end()
  }
}

test.concurrent('the first call without the schema rejects at once and says what to run, although it may wait', async () => {
  const store = storeAt('pg', await server.createDatabase())
  const locks = createLocks(store, { wait: '1h' })
  const error = await locks.acquire('a').catch((reason: unknown) => reason)
  expect(error).toBeInstanceOf(UnsupportedError)
  expect((error as Error).message).toMatch(/leasehold migrate/)
  await locks.close()
  await store.close()
})

test.concurrent('a store whose first call came too early works as soon as the schema is there', async () => {
  const url = await server.createDatabase()
  await withPool(url, async (pool) => {
    const store = postgres(pool)
    await expect(store.renew([{ key: 'lock:a', owner: 'x', ttlMs: 1_000 }])).rejects.toThrow(SchemaError)
    await migrate(pool)
    expect(await store.renew([{ key: 'lock:a', owner: 'x', ttlMs: 1_000 }])).toEqual([{ outcome: 'gone' }])
    await store.close()
  })
})

for (const library of ['pg', 'postgres.js'] as Library[]) {
  test.concurrent(`many processes may migrate at once, with ${library}`, async () => {
    const url = await server.createDatabase()
    const clients = Array.from({ length: 12 }, () => clientOf(library, url, 1))
    const done = await Promise.all(clients.map(({ client }) => migrate(client)))
    expect(done.some((applied) => applied)).toBe(true)
    const { client, end } = clientOf(library, url)
    expect(await migrate(client), 'there is nothing left to do').toBe(false)
    await Promise.all([...clients, { end }].map((each) => each.end()))
  })
}

test.concurrent('the first call with migrate: true makes the schema, from many stores at once', async () => {
  const url = await server.createDatabase()
  const stores = Array.from({ length: 8 }, () => storeAt('pg', url, { migrate: true, timeout: '20s' }))
  const claim = (i: number) => ({ key: `lock:${i}`, owner: 'x', weight: 1, capacity: 1, ttlMs: 1_000 })
  const answers = await Promise.all(stores.map(async (store, i) => store.acquire([claim(i)])))
  expect(answers.flat().every((answer) => answer.granted === true)).toBe(true)
  await Promise.all(stores.map((store) => store.close()))
})

test.concurrent.each([`a"b'c`, 'Größe {schema} %s \\', 'x'.repeat(63)])(
  'the schema may be called %s',
  async (schema) => {
    const url = await server.createDatabase()
    await withPool(url, async (pool) => {
      await migrate(pool, { schema })
      expect(await migrate(pool, { schema })).toBe(false)
      const [here, there] = [postgres(pool, { schema }), postgres(pool, { migrate: true })]
      const claim = { key: "lock:it's \\ \u{1f512}", owner: "o'\\\u{e9}", weight: 1, capacity: 1, ttlMs: 9_000 }
      expect(await here.acquire([claim])).toMatchObject([{ granted: true }])
      expect(await here.acquire([{ ...claim, owner: 'other' }])).toMatchObject([
        { granted: false, blocker: { owner: claim.owner } },
      ])
      expect(await there.acquire([{ ...claim, owner: 'other' }]), 'another schema is another world').toMatchObject([
        { granted: true },
      ])
      expect(await here.holders?.("lock:it's")).toMatchObject([{ key: claim.key, owner: claim.owner }])
      await here.close()
      await there.close()
    })
  },
)

test.concurrent.each(['', 'x'.repeat(64), 'a$b'])('the schema cannot be called %j', (schema) => {
  expect(() => postgres(new Pool(), { schema })).toThrow(InvalidOptionError)
})

test.concurrent('postgres() refuses what is not a pool, and says why if it is a single client', async () => {
  expect(() => postgres(new Client() as never)).toThrow(/single Client/)
  expect(() => postgres({} as never)).toThrow(InvalidOptionError)
})

test.concurrent('the printed script makes the schema with psql, and may run twice', async () => {
  const url = await server.createDatabase()
  const file = join(server.dir, 'printed.sql')
  await writeFile(file, migrationSql())
  for (let i = 0; i < 2; i++) await promisify(execFile)('psql', ['-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', file, url])
  await withPool(url, async (pool) => expect(await migrate(pool)).toBe(false))
})

test.concurrent('a schema that is too new for this code is refused, one that still serves it is not', async () => {
  const url = await server.createDatabase()
  await withPool(url, async (pool) => {
    await migrate(pool)
    const renewed = () => postgres(pool).renew([{ key: 'lock:a', owner: 'x', ttlMs: 1_000 }])
    await pool.query('update leasehold_meta set version = 99')
    expect(await renewed()).toEqual([{ outcome: 'gone' }])
    expect(await migrate(pool), 'what serves it need not be changed').toBe(false)
    await pool.query('update leasehold_meta set serves = 99')
    await expect(renewed()).rejects.toThrow(/update the package/)
    await expect(migrate(pool)).rejects.toThrow(/newer than this leasehold/)
    await pool.query('update leasehold_meta set version = 0, serves = 0')
    await expect(renewed()).rejects.toThrow(/leasehold migrate/)
  })
})

test.concurrent('an upgrade runs once on a schema of an earlier version, and keeps what is held in it', async () => {
  const url = await server.createDatabase()
  await withPool(url, async (pool) => {
    const [driver, store] = [driverOf(pool), postgres(pool, { listen: false })]
    const lease = { key: 'lock:a', owner: 'x', ttlMs: 60_000 }
    await migrate(pool)
    const [held] = await store.acquire([{ ...lease, weight: 1, capacity: 1 }])
    await pool.query(
      `create function leasehold_ground_rent(years int) returns int language sql as 'select years * 250'`,
    )
    await pool.query(`create function leasehold_former() returns int language sql as 'select 1'`)
    await pool.query(`comment on function leasehold_former() is 'leasehold'`)
    const [first, second] = [RELEASE.version + 1, RELEASE.version + 2]
    const release: SchemaRelease = {
      ...RELEASE,
      version: second,
      upgrades: [
        { to: first, sql: 'alter table {schema}.leasehold_leases add column floor integer;' },
        { to: second, sql: 'update {schema}.leasehold_leases set floor = coalesce(floor, 0) + 3;' },
      ],
    }
    expect(await migrateWith(driver, {}, sqlFiles, release)).toBe(true)
    expect(await migrateWith(driver, {}, sqlFiles, release), 'there is nothing left to do').toBe(false)
    expect(await migrateWith(driver, {}, sqlFiles, { ...release, revision: 7 }), 'no upgrade runs again').toBe(true)
    expect((await pool.query('select version, revision, floor from leasehold_meta, leasehold_leases')).rows).toEqual([
      { version: second, revision: 7, floor: 3 },
    ])
    expect(await store.renew([{ ...lease, token: held?.granted === true ? held.token : 0n }])).toEqual([
      { outcome: 'ours', ttlMs: 60_000 },
    ])
    expect((await pool.query('select leasehold_ground_rent(1) as rent')).rows, "a user's function stays").toEqual([
      { rent: 250 },
    ])
    const former = `select to_regprocedure('leasehold_former()') as found`
    expect((await pool.query(former)).rows, 'a function that is no longer made is dropped').toEqual([{ found: null }])
    await store.close()
  })
})

test.concurrent('no upgrade runs on a schema that is made anew', async () => {
  await withPool(await server.createDatabase(), async (pool) => {
    const upgrades = [{ to: RELEASE.version + 1, sql: `raise exception 'there was nothing to upgrade';` }]
    const release = { ...RELEASE, version: RELEASE.version + 1, upgrades }
    expect(await migrateWith(driverOf(pool), {}, sqlFiles, release)).toBe(true)
  })
})

test.concurrent('an older package leaves the functions of a newer one alone', async () => {
  const url = await server.createDatabase()
  await withPool(url, async (pool) => {
    const driver = driverOf(pool)
    const next = { ...RELEASE, revision: RELEASE.revision + 1 }
    const newer = { ...sqlFiles, renew: sqlFiles.renew.replace('cannot renew', 'may not renew') }
    expect(await migrateWith(driver, {}, newer, next)).toBe(true)
    expect(await migrate(pool), 'there is nothing left to do for it').toBe(false)
    await expect(pool.query(migrationSql()), 'its script says so too').rejects.toThrow(/newer than this leasehold/)
    expect(await migrateWith(driver, {}, newer, next)).toBe(false)
    const { rows } = await pool.query(
      `select prosrc ~ 'may not renew' as newer from pg_proc where proname = 'leasehold_renew'`,
    )
    expect(rows).toEqual([{ newer: true }])
  })
})

test.concurrent('migrations under load beside an idle transaction make no call wait for a second, and lose no lock', async () => {
  let slowestMs = Number.POSITIVE_INFINITY
  // Calls that have to wait for a migration do so every time. On a busy machine, some wait for the processor.
  for (let round = 0; round < 4 && slowestMs >= 1_000; round++) {
    const figures = await migrationsUnderLoad(await server.createDatabase(), 3)
    expect(figures).toMatchObject({ migrations: 3, failed: 0, lost: 0, firstError: '', groundRent: 250 })
    slowestMs = Math.min(slowestMs, figures.slowestMs)
  }
  expect(slowestMs).toBeLessThan(1_000)
})

test.concurrent('the error for a role without rights says what to grant', async () => {
  const url = await server.createDatabase()
  await withPool(url, (pool) => migrate(pool))
  await server.psql('CREATE ROLE poor LOGIN')
  const store = storeAt('pg', url.replace('postgres@', 'poor@'))
  await expect(store.acquire([{ key: 'lock:a', owner: 'x', weight: 1, capacity: 1, ttlMs: 1_000 }])).rejects.toThrow(
    /grant it/,
  )
  await store.close()
})

test.concurrent('a store opened by URL closes the connections that it opened', async ({ expect }) => {
  const url = await server.createDatabase('by_url')
  const store = await open(`${url}?migrate=true&schema=of+its+own&application_name=mine&timeout=10s`)
  expect(store.timeoutMs).toBe(10_000)
  expect(await store.now?.()).toBeCloseTo(Date.now(), -4)
  const watch = store.watch?.('lock:a', () => {})
  expect(await watch?.ready).toBe(true)
  expect(await server.psql(`select to_regclass('"of its own".leasehold_leases') is not null`, 'by_url')).toBe('t')
  expect(
    await server.psql(
      `select distinct application_name from pg_stat_activity where datname = 'by_url' and pid <> pg_backend_pid()`,
    ),
  ).toBe('mine')
  await store.close()
  await expect.poll(() => server.psql(`select count(*) from pg_stat_activity where datname = 'by_url'`)).toBe('0')
})
