/** `doctor` against PostgreSQL, the lease table and advisory locks, each with one thing wrong. */
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import {
  type PgBouncer,
  type PostgresServer,
  type StandbyServer,
  startPgBouncer,
  startPostgres,
  startProxy,
  startStandby,
} from '../../testbed/servers/index.js'
import { diagnose, type DoctorReport } from '../../src/doctor/index.js'
import { judgeNotifications } from '../../src/doctor/postgres.js'
import { migrate } from '../../src/stores/postgres/index.js'

let server: PostgresServer
let standby: StandbyServer
let transactions: PgBouncer
let sessions: PgBouncer

beforeAll(async () => {
  // As few locks as PostgreSQL allows, so that a test can use them up.
  const settings = { max_connections: 30, max_locks_per_transaction: 10, max_prepared_transactions: 2 }
  server = await startPostgres({ settings })
  const pool = new pg.Pool({ connectionString: server.url, max: 1 })
  await migrate(pool)
  await pool.end()
  await server.psql('create role plain login; create role narrow login; revoke create on schema public from public')
  await server.psql('create database empty')
  ;[transactions, sessions, standby] = await Promise.all([
    startPgBouncer({ postgres: server, mode: 'transaction' }),
    startPgBouncer({ postgres: server, mode: 'session' }),
    startStandby(server, { synchronous: true }),
  ])
})
afterAll(() => Promise.all([transactions, sessions, standby, server].map((one) => one?.stop())))

const shown = ({ findings }: DoctorReport): string[] => findings.map(({ id, severity }) => `${severity} ${id}`)
const advisory = (url: string): string => url.replace('postgres:', 'postgres+advisory:')
/** With this setting for all sessions of the URL. */
const setting = (name: string, value: string): string =>
  `${server.url}?options=${encodeURIComponent(`-c ${name}=${value}`)}`

test('a good server gets no finding, for the lease table and for advisory locks', async () => {
  const [table, locks] = [await diagnose(server.url), await diagnose(advisory(server.url))]
  expect(table.findings).toEqual([])
  expect(table).toMatchObject({ store: 'postgres', safe: true, server: expect.stringMatching(/^PostgreSQL \d/) })
  expect(locks.findings).toEqual([])
  expect(locks).toMatchObject({ store: 'advisory', safe: true })
})

test('PgBouncer: transaction mode is found, session mode is fine', async () => {
  expect(shown(await diagnose(transactions.url))).toEqual(['warning postgres.pooler'])
  expect(shown(await diagnose(advisory(transactions.url)))).toEqual(['danger advisory.pooler'])
  expect(shown(await diagnose(sessions.url))).toEqual([])
  expect(shown(await diagnose(advisory(sessions.url)))).toEqual([])
})

test('a schema in which every role may create is found', async () => {
  await server.psql('grant create on schema public to public')
  try {
    const { findings, safe } = await diagnose(server.url)
    expect(findings).toMatchObject([{ id: 'postgres.creators', severity: 'warning' }])
    expect(safe).toBe(true)
  } finally {
    await server.psql('revoke create on schema public from public')
  }
})

test('a standby instead of the primary is found', async () => {
  expect(shown(await diagnose(standby.url))).toEqual(['danger postgres.writable'])
  expect(shown(await diagnose(advisory(standby.url)))).toEqual(['danger advisory.writable'])
})

test('a standby that is not synchronous is found', async () => {
  await server.psql(`alter system set synchronous_standby_names = ''`)
  await server.psql('select pg_reload_conf()')
  const report = await diagnose(server.url)
  await server.psql('alter system reset synchronous_standby_names')
  expect(shown(report)).toEqual(['warning postgres.durability'])
  expect(report.findings[0]?.evidence).toBe('1 standby, none of them synchronous')
})

test('settings of the session that break locks are found', async () => {
  expect(shown(await diagnose(setting('default_transaction_read_only', 'on')))).toContain('danger postgres.writable')
  const idle = await diagnose(setting('idle_session_timeout', '90s'))
  expect(shown(idle)).toContain('warning postgres.idle-timeout')
  expect(idle.findings.find(({ id }) => id === 'postgres.idle-timeout')?.evidence).toBe('idle_session_timeout 1.5m')
  expect(shown(await diagnose(setting('synchronous_commit', 'off')))).toContain('warning postgres.durability')
})

test('a missing schema, an older one, a newer one and an older revision are found', async () => {
  const missing = await diagnose(server.urlOf('empty'))
  expect(shown(missing)).toContain('danger postgres.schema')
  expect(missing.findings.find(({ id }) => id === 'postgres.schema')?.fix).toBe(
    'leasehold migrate --store postgres://…',
  )
  const asIf = async (change: string): Promise<DoctorReport> => {
    await server.psql(`update leasehold_meta set ${change}`)
    return diagnose(server.url, { ignore: ['postgres.durability'] })
  }
  const [{ version, serves, revision }] = JSON.parse(
    await server.psql('select json_agg(leasehold_meta) from leasehold_meta'),
  )
  const older = await asIf(`version = ${version - 1}`)
  const newer = await asIf(`version = ${version + 2}, serves = ${version + 1}`)
  const revised = await asIf(`version = ${version}, serves = ${serves}, revision = ${revision - 1}`)
  await server.psql(`update leasehold_meta set revision = ${revision}`)
  expect(shown(older)).toEqual(['danger postgres.schema'])
  expect(shown(newer)).toEqual(['danger postgres.schema'])
  expect(newer.findings[0]?.fix).toBe('update leasehold')
  expect(shown(revised)).toEqual(['warning postgres.schema'])
})

test('a role without rights is found, on the tables and on the sequence', async () => {
  const url = server.url.replace('postgres@', 'narrow@')
  const table = await diagnose(url, { ignore: ['postgres.durability'] })
  expect(table.safe).toBe(false)
  expect(
    table.findings.some(({ severity, evidence }) => severity === 'danger' && /permission denied/.test(evidence)),
  ).toBe(true)
  const locks = await diagnose(advisory(url))
  expect(shown(locks)).toEqual(['danger advisory.trial'])
  expect(locks.findings[0]?.evidence).toContain('GRANT')
})

test('sessions of other roles that cannot be seen leave their check unmade, which is not danger', async () => {
  await server.psql('grant select, insert, update, delete on all tables in schema public to plain')
  const report = await diagnose(server.url.replace('postgres@', 'plain@'), { ignore: ['postgres.durability'] })
  expect(shown(report)).toEqual(['unknown postgres.old-transactions'])
  expect(report.safe).toBe(true)
})

test('a lock table that is nearly full is found', async () => {
  const hog = new pg.Client(server.url)
  await hog.connect()
  const most = 10 * (30 + 2)
  await hog.query(`select count(pg_advisory_lock(7, n)) from generate_series(1, ${most * 0.6}) as n`)
  const filling = await diagnose(server.url, { ignore: ['postgres.durability'] })
  await hog.query(`select count(pg_advisory_lock(8, n)) from generate_series(1, ${most * 0.35}) as n`)
  const full = await diagnose(advisory(server.url))
  await hog.end()
  expect(shown(filling)).toEqual(['warning postgres.lock-table'])
  expect(shown(full)).toEqual(['danger advisory.lock-table'])
})

test('old transactions that keep dead rows are found and named', async () => {
  const old = new pg.Client({ connectionString: server.url, application_name: 'reports\x1b[31m' })
  await old.connect()
  await old.query('begin isolation level repeatable read')
  await old.query('select 1 from leasehold_meta')
  await old.query('select pg_sleep(0.1)')
  const options = { ignore: ['postgres.durability'] }
  const young = await diagnose(server.url, options)
  const report = await diagnose(server.url, { ...options, oldTransactionMs: 50 })
  await old.query(`prepare transaction 'forgotten'`)
  const prepared = await diagnose(server.url, { ...options, oldTransactionMs: 1 })
  await old.query(`rollback prepared 'forgotten'`)
  await old.end()
  expect(shown(young)).toEqual([])
  expect(shown(report)).toEqual(['warning postgres.old-transactions'])
  expect(report.findings[0]?.evidence).toMatch(/^session \d+ \(reports.*, idle in transaction\) for .*dead rows/)
  expect(prepared.findings[0]?.evidence).toContain('prepared transaction forgotten for')
})

test('a clock that differs, and latency against the ttl, are found', async () => {
  const clock = await diagnose(server.url, {
    hostNow: () => Date.now() + 5_000,
    ignore: ['postgres.durability', 'postgres.trial'],
  })
  expect(shown(clock)).toEqual(['warning postgres.clock'])
  expect(clock.findings[0]?.evidence).toMatch(/^the server is 5(\.0)?s behind this host/)
  const proxy = await startProxy(server.port)
  proxy.delay(20)
  const slow = await diagnose(proxy.through(server.url), { ttlMs: 60, ignore: ['postgres.durability'] })
  await proxy.stop()
  expect(shown(slow)).toEqual(['danger postgres.latency'])
})

test('a full queue of notifications is judged by its share', () => {
  expect(judgeNotifications(0.02)).toBe(undefined)
  expect(judgeNotifications(0.2)).toMatchObject({
    severity: 'warning',
    evidence: 'pg_notification_queue_usage() is 20 %',
  })
  expect(judgeNotifications(0.7)).toMatchObject({ severity: 'danger' })
})

test('a wrong password and a server that is not there are told without the password', async () => {
  const report = await diagnose('postgres://me:hunter2@127.0.0.1:1/db')
  expect(report).toMatchObject({ reachable: false, safe: false, findings: [{ id: 'postgres.reachable' }] })
  expect(JSON.stringify(report)).not.toContain('hunter2')
})
