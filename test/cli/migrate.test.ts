import { execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../testbed/servers/index.js'
import { seedSql } from '../stores/postgres/seed.js'
import { type ProcessEnd, CliFixture } from './harness.js'

const fixture = new CliFixture()
let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres()
})

afterAll(() => server.stop())

let databases = 0

/** A new database: its URL, and a way to ask it something. */
async function database(): Promise<{ url: string; ask: (sql: string) => Promise<string> }> {
  const name = `migrated_${++databases}`
  return { url: await server.createDatabase(name), ask: (sql) => server.psql(sql, name) }
}

function migrate(url: string, ...options: string[]): Promise<ProcessEnd> {
  return fixture.leasehold('migrate', '--store', url, ...options).ended
}

test('migrate makes the tables, and a second run finds nothing to do', async () => {
  const { url, ask } = await database()
  const first = await migrate(url)
  expect(first).toMatchObject({ code: 0, stdout: '', stderr: 'leasehold: the schema "public" is up to date now\n' })
  expect(await ask(`select acquire_lock('by hand', 'me')`)).toBe('t')
  const second = await migrate(url)
  expect(second).toMatchObject({ code: 0, stderr: 'leasehold: the schema "public" was up to date already\n' })
  expect(await ask('select lock_name, holder_id from distributed_locks'), 'what is held stays held').toBe('by hand|me')
})

test('before migrate, the other commands name the command to run', async () => {
  const { url } = await database()
  const before = await fixture.leasehold('ls', '--store', url).ended
  expect(before.stderr).toContain('leasehold migrate')
  expect(before.code).not.toBe(0)
  expect((await migrate(url)).code).toBe(0)
  expect(await fixture.leasehold('run', 'job', '--store', url, '--', 'echo', 'done').ended).toMatchObject({
    code: 0,
    stdout: 'done\n',
  })
})

test('many processes migrate at once without an error', async () => {
  const { url, ask } = await database()
  const all = await Promise.all(Array.from({ length: 6 }, () => migrate(url)))
  expect(all.map(({ code, stderr }) => [code, stderr.replace(/(is|was) up to date (now|already)/, 'done')])).toEqual(
    all.map(() => [0, 'leasehold: the schema "public" done\n']),
  )
  expect(await ask('select count(*) from leasehold_meta')).toBe('1')
})

test('--schema puts everything into a schema of its own, whatever it is called', async () => {
  const { url, ask } = await database()
  expect(await migrate(url, '--schema', "Crew's locks")).toMatchObject({
    code: 0,
    stderr: `leasehold: the schema "Crew's locks" is up to date now\n`,
  })
  expect(await ask(`select to_regclass('leasehold_leases') is null`)).toBe('t')
  expect(await ask(`select "Crew's locks".acquire_lock('x', 'me')`)).toBe('t')
  const listed = await fixture.leasehold('ls', '--json', '--store', `${url}?schema=Crew's%20locks`).ended
  expect(listed.code).toBe(0)
  expect(JSON.parse(listed.stdout)).toMatchObject([{ name: 'x', holder: 'me' }])
})

test('--print touches nothing and prints SQL that psql runs, once or twice, to the same effect', async () => {
  const { url, ask } = await database()
  const printed = await migrate(url, '--print', '--schema', 'locks')
  expect(printed).toMatchObject({ code: 0, stderr: '' })
  expect(await ask(`select to_regclass('locks.leasehold_leases') is null`)).toBe('t')
  const file = fixture.path('printed.sql')
  await writeFile(file, printed.stdout)
  for (let i = 0; i < 2; i++) await promisify(execFile)('psql', ['-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', file, url])
  expect((await migrate(url, '--schema', 'locks')).stderr).toContain('was up to date already')
})

test('migrate stops at a foreign distributed_locks and changes nothing', async () => {
  const { url, ask } = await database()
  await ask(`${seedSql}; select acquire_lock('order', 'old', 600)`)
  const { code, stdout, stderr } = await migrate(url)
  expect({ code, stdout }).toEqual({ code: 64, stdout: '' })
  expect(stderr).toContain('not made by leasehold, and in the way: table public.distributed_locks')
  expect(stderr).toContain('function public.acquire_lock')
  expect(stderr).toContain('--adopt')
  expect(await ask(`select to_regclass('leasehold_meta') is null`)).toBe('t')
  expect(await ask(`select relkind from pg_class where relname = 'distributed_locks'`)).toBe('r')
  expect((await migrate(url, '--schema', 'beside')).code, 'another schema is free').toBe(0)
})

test('--adopt takes over a foreign table, and its locks stay with their holders', async () => {
  const { url, ask } = await database()
  await ask(`${seedSql}; select acquire_lock('order', 'old', 600), acquire_lock('over', 'old', -1)`)
  expect((await migrate(url, '--adopt')).code).toBe(0)
  expect(await ask('select lock_name, holder_id from distributed_locks')).toBe('order|old')
  const busy = await fixture.leasehold('run', 'order', '--wait', '0', '--store', url, '--', 'true').ended
  expect(busy.code).toBe(75)
  expect(await ask(`select release_lock('order', 'old')`)).toBe('t')
  expect((await fixture.leasehold('run', 'order', '--wait', '0', '--store', url, '--', 'true').ended).code).toBe(0)
  expect(await ask('select count(*) from distributed_locks_before_leasehold'), 'the old table is kept').toBe('2')
  expect((await migrate(url)).stderr).toContain('was up to date already')
})

test('migrate exits with 64 without a PostgreSQL URL and with 69 if the server is down', async () => {
  const other = await fixture.leasehold('migrate').ended
  expect(other.code, 'LEASEHOLD_STORE is an SQLite file').toBe(64)
  expect(other.stderr).toContain('migrate is for PostgreSQL')
  const away = await migrate('postgres://postgres@127.0.0.1:1/nowhere')
  expect(away.code).toBe(69)
  expect(away.stderr).toContain('ECONNREFUSED')
})

test('migrate puts the tables into the schema that the URL of the store names', async () => {
  const { url, ask } = await database()
  const store = `${url}?schema=locks`
  expect(await migrate(store)).toMatchObject({ code: 0, stderr: 'leasehold: the schema "locks" is up to date now\n' })
  expect(
    await ask(`select to_regclass('locks.leasehold_leases') is not null, to_regclass('leasehold_leases') is null`),
  ).toBe('t|t')
  expect(await fixture.leasehold('run', 'job', '--store', store, '--', 'echo', 'done').ended).toMatchObject({ code: 0 })
})
