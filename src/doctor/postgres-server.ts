/**
 * What can be wrong with a PostgreSQL server, for the lease table and for advisory locks.
 *
 * @module
 */
import type { PostgresDriver } from '../clients/postgres/driver.js'
import { openClient, type OpenPostgresClient, driverOf } from '../clients/postgres/open.js'
import { isPool } from '../clients/postgres/pg.js'
import { clientsLike } from '../clients/postgres/pg-session.js'
import type { PgClient } from '../clients/postgres/types.js'
import { MissingPackageError, UnsupportedError } from '../errors.js'
import { assertKeepsBackend } from '../stores/postgres-advisory/setup.js'
import { endClient } from '../clients/postgres/end-client.js'
import { formatDuration } from '../util/duration.js'
import { realWorld } from '../util/world.js'
import { within, type Check, type DoctorOptions, type Defect } from './check.js'
import { judgeLatency, judgeSkew, readClock } from './measure.js'

/** Shares of the lock table from which on it counts as filling up, and as full: a burst takes what is left. */
const FILLING = 0.5
const FULL = 0.9

/** What the server says about itself and about this role. */
export interface PostgresFacts {
  version: number
  release: string
  standby: boolean
  readOnly: boolean
  fsync: boolean
  synchronousCommit: string
  maxLocks: number
  idleSessionMs: number
  standbys: number
  synchronousStandbys: number
  seesOthers: boolean
}

const FACTS = `select json_build_object(
  'version', current_setting('server_version_num')::int,
  'release', current_setting('server_version'),
  'standby', pg_is_in_recovery(),
  'readOnly', current_setting('default_transaction_read_only') = 'on',
  'fsync', current_setting('fsync') = 'on',
  'synchronousCommit', current_setting('synchronous_commit'),
  'maxLocks', current_setting('max_locks_per_transaction')::int
    * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int),
  'idleSessionMs', coalesce((select setting::bigint from pg_settings where name = 'idle_session_timeout'), 0),
  'standbys', (select count(*) from pg_stat_replication),
  'synchronousStandbys', (select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum')),
  'seesOthers', pg_has_role(current_user, 'pg_read_all_stats', 'usage')
)::text`

export interface ExaminedPostgres {
  driver: PostgresDriver
  facts: PostgresFacts
  /** Undefined: `pg` is not installed, and nothing can be said about a pooler. */
  makeClient: (() => PgClient) | undefined
  ask<T>(sql: string): Promise<T>
  close: OpenPostgresClient['close']
}

export async function openPostgres(connection: string, { timeoutMs }: DoctorOptions): Promise<ExaminedPostgres> {
  const { client, close } = await openClient(connection)
  const driver = driverOf(client)
  const ask = async <T>(sql: string): Promise<T> =>
    JSON.parse((await within(timeoutMs, driver.run(sql, timeoutMs))) ?? 'null') as T
  try {
    const facts = await ask<PostgresFacts>(FACTS)
    return { driver, facts, ask, makeClient: isPool(client) ? clientsLike(client) : undefined, close }
  } catch (error) {
    await within(timeoutMs, close()).catch(() => {})
    throw error
  }
}

/** The checks that are the same for both stores. `store`: the first part of their IDs. */
export function serverChecks(store: string, server: ExaminedPostgres, options: DoctorOptions): Check[] {
  const { facts, ask } = server
  const check = (name: string, worst: Check['worst'], looksAt: string, run: Check['run']): Check => ({
    id: `${store}.${name}`,
    worst,
    looksAt,
    run,
  })
  return [
    check('writable', 'danger', 'whether the server takes writes', async () => judgeWritable(facts)),
    check('lock-table', 'danger', 'pg_locks', async () => {
      const used = await ask<number>("select count(*)::text from pg_locks where not fastpath and mode <> 'SIReadLock'")
      return judgeLockTable(used, facts.maxLocks)
    }),
    check('clock', 'warning', 'the clock of the server', async () =>
      judgeSkew(
        await readClock(
          () => ask<number>('select (extract(epoch from clock_timestamp()) * 1000)::numeric::text'),
          options.hostNow,
        ),
      ),
    ),
    check('latency', 'danger', 'the latency of the server', () =>
      judgeLatency(() => ask('select 1::text'), options.ttlMs),
    ),
  ]
}

function judgeWritable({ standby, readOnly }: PostgresFacts): Defect | undefined {
  if (standby) {
    return {
      severity: 'danger',
      summary: 'this server is a standby: it takes no writes, and locks on it exclude nobody on the primary',
      evidence: 'pg_is_in_recovery() is true',
      fix: 'connect to the primary; with several hosts in the URL: ?target_session_attrs=read-write',
    }
  }
  if (!readOnly) return undefined
  return {
    severity: 'danger',
    summary: 'transactions of this role take no writes',
    evidence: 'default_transaction_read_only is on',
    fix: 'ALTER ROLE <role> SET default_transaction_read_only = off (or the database, or the server)',
  }
}

function judgeLockTable(used: number, most: number): Defect | undefined {
  if (used < most * FILLING) return undefined
  return {
    severity: used >= most * FULL ? 'danger' : 'warning',
    summary: 'the table of locks in shared memory is filling up: when it is full, statements fail with 53200',
    evidence: `${used} of about ${most} entries (max_locks_per_transaction × (max_connections + max_prepared_transactions)) are in use`,
    fix: 'raise max_locks_per_transaction in postgresql.conf and restart the server, or find who takes so many (pg_locks)',
  }
}

/** What a pooler between us and the server does with sessions. */
export type PoolerMode = 'none' | 'session' | 'transaction'

/** A pooler makes up the process ID that it names; whether it keeps one backend for a session is tried. */
export async function poolerMode({ makeClient }: ExaminedPostgres, timeoutMs: number): Promise<PoolerMode> {
  if (!makeClient) throw new MissingPackageError('this check', ['pg'])
  const client = makeClient()
  client.on('error', () => {})
  try {
    await within(timeoutMs, client.connect())
    const pid = await within(timeoutMs, backendOf(client))
    if (client.processID === pid) return 'none'
    await within(timeoutMs, assertKeepsBackend(client, pid, { open: makeClient, world: realWorld }))
    return 'session'
  } catch (error) {
    if (error instanceof UnsupportedError) return 'transaction'
    throw error
  } finally {
    await endClient(client, realWorld)
  }
}

async function backendOf(client: PgClient): Promise<number> {
  const { rows } = (await client.query('select pg_backend_pid() as pid')) as { rows: { pid: number }[] }
  return Number(rows[0]?.pid)
}

/** What ends sessions that are idle, and with them the connection on which grants are announced. */
export function judgeIdleTimeout({ idleSessionMs }: PostgresFacts): Defect | undefined {
  if (idleSessionMs === 0) return undefined
  return {
    severity: 'warning',
    summary:
      'the server ends idle sessions, also the one on which waiters listen: hand-offs are late until it is open again',
    evidence: `idle_session_timeout ${formatDuration(idleSessionMs)}`,
    fix: 'ALTER ROLE <role> SET idle_session_timeout = 0',
  }
}

export function judgeDurability(facts: PostgresFacts): Defect[] {
  const { fsync, synchronousCommit, standbys, synchronousStandbys } = facts
  const defects: Defect[] = []
  if (!fsync || synchronousCommit === 'off') {
    defects.push({
      severity: 'warning',
      summary: 'a crash of the server forgets the latest locks, and two processes then hold the same one',
      evidence: `fsync ${fsync ? 'on' : 'off'}, synchronous_commit ${synchronousCommit}`,
      fix: 'fsync = on in postgresql.conf; ALTER ROLE <role> SET synchronous_commit = on',
    })
  }
  if (standbys > 0 && synchronousStandbys === 0) {
    defects.push({
      severity: 'warning',
      summary: 'a failover forgets the latest locks, and two processes then hold the same one',
      evidence: `${standbys} standby${standbys === 1 ? '' : 's'}, none of them synchronous`,
      fix: "synchronous_standby_names = 'ANY 1 (*)' in postgresql.conf",
    })
  }
  return defects
}
