/** What else lives in the database: other people's functions and tables, roles with few rights, hostile search paths. */
import { readFile } from 'node:fs/promises'
import pg, { Pool } from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { createLocks } from '../../../src/locks.js'
import { ALL, type Claim } from '../../../src/store.js'
import { guardedWrite, migrate, migrationSql, postgres } from '../../../src/stores/postgres/index.js'
import { seedSql } from './seed.js'

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres()
})

afterAll(() => server.stop())

async function withDatabase(use: (pool: Pool, url: string) => Promise<void>): Promise<void> {
  const url = await server.createDatabase()
  const pool = new Pool({ connectionString: url, max: 3 })
  try {
    await use(pool, url)
  } finally {
    await pool.end()
  }
}

const claimOf = (name: string, owner = 'us'): Claim => ({
  key: `lock:${name}`,
  owner,
  weight: ALL,
  capacity: ALL,
  ttlMs: 60_000,
})

describe('a migration beside objects of the user', () => {
  test('leaves functions alone that merely begin with leasehold_, the first time and the next', () =>
    withDatabase(async (pool) => {
      await pool.query(
        `create function leasehold_ground_rent(years int) returns int language sql as 'select years * 250'`,
      )
      await migrate(pool)
      await pool.query(migrationSql())
      expect((await pool.query('select leasehold_ground_rent(4) as rent')).rows).toEqual([{ rent: 1_000 }])
    }))

  test.each([
    ['create table leasehold_leases (flat int)', /table public.leasehold_leases/],
    [
      `create function leasehold_renew(flat int) returns int language sql as 'select 1'`,
      /leasehold_renew\(flat integer\)/,
    ],
    [
      `create function leasehold_renew(flats json) returns int language sql as 'select 1'`,
      /leasehold_renew\(flats json\)/,
    ],
  ])('stops before it replaces an object that only has one of its names: %s', (sql, message) =>
    withDatabase(async (pool) => {
      await pool.query(sql)
      await expect(migrate(pool)).rejects.toThrow(message)
      await expect(migrate(pool, { adopt: true })).rejects.toThrow(message)
      expect((await pool.query(`select to_regclass('leasehold_meta') as t`)).rows).toEqual([{ t: null }])
    }),
  )

  test.each(['integer, integer, integer, integer', 'varchar, varchar, integer, text', 'varchar, varchar, integer'])(
    'does not adopt acquire_lock(%s), which is not the one of the seed',
    (types) =>
      withDatabase(async (pool) => {
        await pool.query(seedSql)
        await pool.query('drop function acquire_lock(varchar, varchar, integer, jsonb)')
        await pool.query(`create function acquire_lock(${types}) returns text language sql as $$ select 'opened' $$`)
        await expect(migrate(pool, { adopt: true })).rejects.toThrow(/not a function that can be adopted/)
        expect((await pool.query('select count(*)::int as n from distributed_locks')).rows).toEqual([{ n: 0 }])
      }),
  )

  test('drops functions of its own that this version no longer has', () =>
    withDatabase(async (pool) => {
      await migrate(pool)
      await pool.query(`
        create function leasehold_old(text) returns int language sql as 'select 1';
        comment on function leasehold_old is 'leasehold';
        create function leasehold_theirs(text) returns int language sql as 'select 1'`)
      await pool.query(migrationSql())
      const { rows } = await pool.query(
        `select proname from pg_proc where proname in ('leasehold_old', 'leasehold_theirs')`,
      )
      expect(rows).toEqual([{ proname: 'leasehold_theirs' }])
    }))
})

describe('a hostile search path', () => {
  test('does not reach into the functions, for any caller', () =>
    withDatabase(async (pool, url) => {
      await migrate(pool)
      await pool.query(`do $$ begin create role mallory login; exception when duplicate_object then end $$`)
      await pool.query('grant create, usage on schema public to mallory')
      const mallory = new Pool({ connectionString: url.replace('postgres@', 'mallory@'), max: 1 })
      await mallory.query(`
        create table loot (who text);
        grant insert on loot to public;
        create function evil(a integer, b double precision) returns double precision language plpgsql as $$
        begin
          insert into public.loot values (current_user);
          return a::float8 operator(pg_catalog.*) b;
        end $$;
        create operator public.* (leftarg = integer, rightarg = double precision, function = evil);
        create function public.clock_timestamp() returns timestamptz language plpgsql as $$
        begin
          insert into public.loot values (current_user);
          return pg_catalog.clock_timestamp();
        end $$;
        create function public.leasehold_release_one(varchar, varchar) returns integer language plpgsql as $$
        begin
          insert into public.loot values (current_user);
          return 1;
        end $$`)
      const client = await pool.connect()
      await client.query('set search_path = public, pg_catalog')
      await client.query(`select acquire_lock('a', 'b', 30)`)
      await client.query(`select leasehold_guard('a', 1)`)
      await client.query(`select release_lock('a', 'b')`)
      await client.query('select * from distributed_locks')
      client.release()
      const path = new Pool({ connectionString: `${url}?options=-csearch_path%3Dpublic,pg_catalog`, max: 1 })
      const store = postgres(path)
      await store.acquire([claimOf('a'), claimOf('b')])
      await store.renew([{ ...claimOf('a') }])
      await store.release([claimOf('a')])
      await store.take?.([
        { key: 'limiter:a', cost: 1, limits: [{ algorithm: 'token-bucket', limit: 5, perMs: 1_000, burst: 5 }] },
      ])
      await store.now?.()
      await store.close()
      expect((await pool.query('select * from loot')).rows).toEqual([])
      await Promise.all([mallory.end(), path.end()])
    }))

  test.each([
    `create function public.leasehold_lock(p_keys text[]) returns integer[] language plpgsql as 'begin return null; end';
     comment on function public.leasehold_lock(text[]) is 'leasehold'`,
    `create table public.leasehold_fences (id integer primary key, token bigint not null);
     comment on table public.leasehold_fences is 'leasehold'`,
  ])('is refused where another role has planted something with our names and our mark', (planted) =>
    withDatabase(async (pool, url) => {
      await server.psql(`do $$ begin create role mallory login; exception when duplicate_object then end $$`)
      await pool.query('grant create, usage on schema public to mallory')
      const mallory = new Pool({ connectionString: url.replace('postgres@', 'mallory@'), max: 1 })
      await mallory.query(planted)
      // Replaced, it would still belong to its owner, who could change it again.
      await expect(migrate(pool)).rejects.toThrow(
        /belong to a role that could change them afterwards: .* of the role mallory/,
      )
      const { rows } = await pool.query(`select to_regclass('public.leasehold_leases') as made`)
      expect(rows).toEqual([{ made: null }])
      await mallory.end()
    }),
  )

  test('of a schema that a plain role has installed works for that role, and not for a superuser', () =>
    withDatabase(async (pool, url) => {
      await server.psql(`do $$ begin create role deployer login; exception when duplicate_object then end $$`)
      await pool.query('grant create, usage on schema public to deployer')
      const deployer = new Pool({ connectionString: url.replace('postgres@', 'deployer@'), max: 1 })
      expect(await migrate(deployer)).toBe(true)
      // Another role finds it installed, and has nothing to write.
      expect(await migrate(pool)).toBe(false)
      await deployer.query(`update leasehold_meta set script = 'another'`)
      await expect(migrate(pool)).rejects.toThrow(/of the role deployer/)
      expect(await migrate(deployer)).toBe(true)
      await deployer.end()
    }))

  test('lets no function of another role be called in place of one of the schema, whatever its arguments', () =>
    withDatabase(async (pool, url) => {
      await server.psql(`do $$ begin create role mallory login; exception when duplicate_object then end $$`)
      await migrate(pool)
      await pool.query('grant create, usage on schema public to mallory')
      const { rows } = await pool.query(`
        select proname as name, pronargs - pronargdefaults as least, prorettype::regtype::text as result, proretset as isset,
          array(select t::regtype::text from unnest(proargtypes) with ordinality as a (t, n) order by n) as types
        from pg_proc where pronamespace = 'public'::regnamespace and prorettype <> 'trigger'::regtype`)
      const mallory = new Pool({ connectionString: url.replace('postgres@', 'mallory@'), max: 1 })
      await mallory.query('create table loot (what text); grant insert on loot to public')
      const taken = new Set(rows.map(({ name, types }) => `${name}(${types.join()})`))
      const plant = async (name: string, types: string[], result: string): Promise<void> => {
        const signature = `${name}(${types.join()})`
        if (taken.has(signature)) return
        taken.add(signature)
        await mallory.query(`create function public.${signature} returns ${result} language plpgsql as $$
          begin insert into public.loot values (${pg.escapeLiteral(signature)}); return null; end $$`)
      }
      // Arguments that literals and columns fit at least as well: each by itself, all at once, and without those that have a default.
      const closer: Record<string, string> = { text: 'varchar', 'double precision': 'integer', bigint: 'integer' }
      for (const { name, least, result, isset, types } of rows) {
        const returns = isset || result === 'record' ? 'json' : result === 'void' ? 'integer' : result
        for (let count = least; count <= types.length; count++) {
          const declared: string[] = types.slice(0, count)
          const others = declared.map((type) => closer[type] ?? type)
          await plant(name, declared, returns)
          await plant(name, others, returns)
          for (const i of declared.keys()) await plant(name, declared.with(i, others[i] as string), returns)
        }
      }
      const sql = async (text: string): Promise<unknown> => Object.values((await pool.query(text)).rows[0] as object)[0]
      expect(await sql(`select public.acquire_lock('a'::varchar, 'b'::varchar, 30, '{}'::jsonb)`)).toBe(true)
      expect(await sql(`select public.release_lock('a'::varchar, 'b'::varchar)`)).toBe(true)
      const store = postgres(pool)
      const locks = createLocks(store, { wait: '5s' })
      for (let i = 0; i < 150; i++) await (await locks.acquire(`s${i % 20}`)).release()
      await (await locks.acquireAll(['x', 'y'])).release()
      const announced = { ...claimOf('announced'), announce: true, queueMs: 3_000 }
      await store.acquire([announced, { ...announced, owner: 'next' }, { ...announced, owner: 'third' }])
      await store.renew([
        { ...announced, value: '1' },
        { ...announced, owner: 'next', queued: true },
      ])
      await store.release([announced])
      await store.acquire([{ ...announced, owner: 'thief', steal: true }])
      expect(await store.revoke?.('lock:announced')).toHaveLength(1)
      await pool.query('delete from leasehold_leases')
      const limit = { limit: 5, perMs: 1_000, burst: 5 }
      for (const algorithm of ['token-bucket', 'sliding-window', 'fixed-window'] as const) {
        const request = { key: `limiter:${algorithm}`, limits: [{ algorithm, ...limit }] }
        await store.take?.([
          { ...request, cost: 4 },
          { ...request, cost: 4 },
          { ...request, cost: -1 },
        ])
      }
      await locks.close()
      await store.close()
      expect((await pool.query('select * from loot')).rows).toEqual([])
      await mallory.end()
    }))

  test('is pinned on every function of the schema', () =>
    withDatabase(async (pool) => {
      await migrate(pool)
      const { rows } = await pool.query(`
        select proname from pg_proc where pronamespace = 'public'::regnamespace
        and not ('search_path=pg_catalog, pg_temp' = any (coalesce(proconfig, '{}')))`)
      expect(rows).toEqual([])
    }))
})

describe('a role with the grants of docs/stores/postgres.md', () => {
  /** The SQL of the page, as it stands there. */
  async function documented(heading: string): Promise<string> {
    const page = await readFile(new URL('../../../docs/stores/postgres.md', import.meta.url), 'utf8')
    const block = new RegExp(`### ${heading}\n[^#]*?\`\`\`sql\n(.*?)\`\`\``, 's').exec(page)?.[1]
    if (!block) throw new Error(`there is no SQL under "${heading}"`)
    return block
  }

  /** Everything that a user of the store does. */
  async function useAll(pool: Pool, schema: string): Promise<void> {
    const store = postgres(pool, { schema })
    const locks = createLocks(store, { wait: '5s' })
    expect(await locks.withLock('a', async () => 'done')).toBe('done')
    // Some of these sweep.
    for (let i = 0; i < 100; i++) await (await locks.acquire(`s${i}`)).release()
    const both = await locks.acquireAll(['x', 'y'])
    await both.release()
    expect((await locks.limiter('l', { limit: 5, per: '1s' }).take('k')).allowed).toBe(true)
    await guardedWrite(pool, { resource: 'r', token: 5n, schema }, async () => {})
    const holder = await locks.acquire('contended')
    const other = createLocks(store, { wait: '5s' })
    const waiter = other.acquire('contended')
    await expect.poll(async () => (await locks.waiters('contended')).length).toBe(1)
    await holder.release()
    expect((await waiter).isHeld).toBe(true)
    expect(await locks.forceRelease('contended')).toHaveLength(1)
    await sqlOnly(pool, schema)
    await locks.close({ grace: 0 })
    await other.close({ grace: 0 })
    await store.close()
  }

  async function sqlOnly(pool: Pool, schema: string): Promise<void> {
    const ask = async (sql: string) => (await pool.query(sql)).rows
    expect(await ask(`select ${schema}.acquire_lock('q', 'h', 30) as ok`)).toEqual([{ ok: true }])
    expect(await ask(`select lock_name from ${schema}.distributed_locks where lock_name = 'q'`)).toHaveLength(1)
    await ask(`delete from ${schema}.distributed_locks where lock_name = 'q'`)
    expect(await ask(`select ${schema}.acquire_lock('q', 'h2', 30) as ok`)).toEqual([{ ok: true }])
    expect(await ask(`select ${schema}.release_lock('q', 'h2') as ok`)).toEqual([{ ok: true }])
  }

  async function asRole(url: string, role: string, use: (pool: Pool) => Promise<void>): Promise<void> {
    const pool = new Pool({ connectionString: url.replace('postgres@', `${role}@`), max: 3 })
    try {
      await use(pool)
    } finally {
      await pool.end()
    }
  }

  test('can use everything, and with migrate: true finds nothing to do', () =>
    withDatabase(async (pool, url) => {
      await server.psql(`do $$ begin create role app login; exception when duplicate_object then end $$`)
      await migrate(pool)
      await pool.query('revoke all on schema public from public')
      await asRole(url, 'app', async (app) => {
        await expect(app.query(`select acquire_lock('q', 'h')`)).rejects.toThrow(/permission denied|does not exist/)
      })
      await pool.query(await documented('A role that uses the locks'))
      await asRole(url, 'app', async (app) => {
        await useAll(app, 'public')
        const store = postgres(app, { migrate: true })
        expect(await store.acquire([claimOf('m')])).toMatchObject([{ granted: true }])
        await store.close()
      })
    }))

  test('can call the functions and touch no table after a migration with definer', () =>
    withDatabase(async (pool, url) => {
      await server.psql(`do $$ begin create role caller login; exception when duplicate_object then end $$`)
      await migrate(pool, { schema: 'locks', definer: true })
      await pool.query(await documented('A role that may only call'))
      await asRole(url, 'caller', async (caller) => {
        await useAll(caller, 'locks')
        for (const table of ['leasehold_leases', 'leasehold_meta', 'leasehold_guards']) {
          await expect(caller.query(`select * from locks.${table}`)).rejects.toThrow(/permission denied/)
          await expect(caller.query(`delete from locks.${table}`)).rejects.toThrow(/permission denied/)
        }
        // Past the rule: a lease beside another's, the end of one, and a forged grant.
        for (const inner of [
          `write_lease('lock:a', null, 7, 'me', 1, 1, 9, now(), 60000, false, null, null)`,
          `evict('lock:a')`,
          `hand_off('lock:a', now(), null, false)`,
          `end_lease('lock:a', 'o', null, false)`,
          `notify('a subscriber', '["granted", "lock:a", "me", "9", 60000]', false)`,
        ])
          await expect(caller.query(`select locks.leasehold_${inner}`), inner).rejects.toThrow(/permission denied/)
      })
      // A later migration without the option keeps it so.
      await pool.query(migrationSql({ schema: 'locks' }))
      await asRole(url, 'caller', (caller) => sqlOnly(caller, 'locks'))
    }))

  test('does not get there by the right of all roles to the schema public', () =>
    withDatabase(async (pool) => {
      await expect(migrate(pool, { definer: true })).rejects.toThrow(/a schema of its own/)
    }))
})
