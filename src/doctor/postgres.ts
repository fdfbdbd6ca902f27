/**
 * What breaks locks in the lease table of PostgreSQL, and with advisory locks.
 *
 * @module
 */
import { errorCode } from '../clients/postgres/errors.js'
import { isMissing } from '../stores/postgres/errors.js'
import { parseUrl } from '../stores/postgres/open.js'
import { RELEASE, schemaNames, sqlString } from '../stores/postgres/schema.js'
import { installed } from '../stores/postgres/statements.js'
import { formatDuration } from '../util/duration.js'
import { splitUrlOptions } from '../util/url-options.js'
import type { Check, DoctorOptions, Examination, Defect } from './check.js'
import {
  type ExaminedPostgres,
  judgeDurability,
  judgeIdleTimeout,
  openPostgres,
  type PoolerMode,
  poolerMode,
  serverChecks,
} from './postgres-server.js'
import { trialOf } from './trial.js'

/** Shares of the notification queue. When it is full, every transaction that notifies fails. */
const QUEUE_FILLING = 0.1
const QUEUE_FULL = 0.5
/** Old transactions that are named. The oldest is the one that counts. */
const MOST_NAMED = 3
/** The first version with `idle_session_timeout`. */
const OLDEST_ADVISORY = 140_000

export async function examinePostgres(url: string, options: DoctorOptions): Promise<Examination> {
  const { connection, schema = 'public' } = parseUrl(url)
  const server = await openPostgres(connection, options)
  const { facts } = server
  return {
    server: `PostgreSQL ${facts.release}`,
    close: server.close,
    checks: [
      ...serverChecks('postgres', server, options),
      { id: 'postgres.schema', worst: 'danger', looksAt: 'the schema', run: () => judgeSchema(server, schema) },
      {
        id: 'postgres.creators',
        worst: 'warning',
        looksAt: 'who may create in the schema',
        run: () => judgeCreators(server, schema),
      },
      {
        id: 'postgres.pooler',
        worst: 'warning',
        looksAt: 'whether a pooler is in between',
        run: async () => judgePooler(await poolerMode(server, options.timeoutMs), 'warning'),
      },
      {
        id: 'postgres.idle-timeout',
        worst: 'warning',
        looksAt: 'idle_session_timeout',
        run: async () => judgeIdleTimeout(facts),
      },
      {
        id: 'postgres.durability',
        worst: 'warning',
        looksAt: 'fsync and standbys',
        run: async () => judgeDurability(facts),
      },
      {
        id: 'postgres.notifications',
        worst: 'danger',
        looksAt: 'pg_notification_queue_usage()',
        run: async () => judgeNotifications(await server.ask<number>('select pg_notification_queue_usage()::text')),
      },
      {
        id: 'postgres.old-transactions',
        worst: 'warning',
        looksAt: 'the sessions of other roles',
        run: () => judgeOldTransactions(server, schema, options),
      },
      trialOf('postgres', url),
    ],
  }
}

export async function examineAdvisory(url: string, options: DoctorOptions): Promise<Examination> {
  const { rest } = splitUrlOptions(url, ['schema', 'timeout'])
  const server = await openPostgres(rest.replace(/^postgres(ql)?\+advisory:/, 'postgres:'), options)
  const { facts } = server
  const version: Check = {
    id: 'advisory.version',
    worst: 'danger',
    looksAt: 'the version of the server',
    run: async () => judgeAdvisoryVersion(facts.version, facts.release),
  }
  return {
    server: `PostgreSQL ${facts.release}`,
    close: server.close,
    checks: [
      version,
      ...serverChecks('advisory', server, options),
      {
        id: 'advisory.pooler',
        worst: 'danger',
        looksAt: 'whether a pooler is in between',
        run: async () => judgePooler(await poolerMode(server, options.timeoutMs), 'danger'),
      },
      {
        id: 'advisory.idle-timeout',
        worst: 'danger',
        looksAt: 'idle_session_timeout',
        run: () => judgeSettable(server),
      },
      trialOf('advisory', url),
    ],
  }
}

function judgePooler(mode: PoolerMode, severity: 'danger' | 'warning'): Defect | undefined {
  if (mode !== 'transaction') return undefined
  const evidence = 'statements of one session ran on different backends: a pooler in transaction or statement mode'
  if (severity === 'danger') {
    return {
      severity,
      summary:
        'a pooler gives statements of one session to different backends: locks would be left on connections of others',
      evidence,
      fix: 'connect to PostgreSQL itself, or to a pool in session mode; or use postgres:// (lease table), which works through it',
    }
  }
  return {
    severity,
    summary:
      'notifications do not pass through this pooler: waiters find out with their next request, about a second later',
    evidence,
    fix: 'pool_mode = session for leasehold, or a direct connection; locks are safe in either case',
  }
}

async function judgeSchema({ driver }: ExaminedPostgres, schema: string): Promise<Defect | undefined> {
  const named = schema === 'public' ? '' : ` --schema ${schema}`
  const fix = `leasehold migrate --store postgres://…${named}`
  const defect = (summary: string, evidence: string, more: Partial<Defect> = {}): Defect => ({
    severity: 'danger',
    summary,
    evidence,
    fix,
    ...more,
  })
  let answer: string | undefined
  try {
    answer = await driver.run(schemaNames(schema).fill(installed), 5_000)
  } catch (error) {
    const { message } = error as Error
    if (isMissing(error)) return defect('the tables of leasehold are missing', message)
    if (errorCode(error) !== '42501') throw error
    const grant = 'grant this role what docs/stores/postgres.md says under "Rights"'
    return defect("this role may not use leasehold's tables", message, { fix: grant })
  }
  if (answer === undefined) return defect('the tables of leasehold are missing', `nothing is installed in "${schema}"`)
  const { version, serves, revision } = JSON.parse(answer) as { version: number; serves: number; revision: number }
  const found = `schema "${schema}" has version ${version}, revision ${revision}; this leasehold has ${RELEASE.version}, ${RELEASE.revision}`
  if (version < RELEASE.version) return defect('the tables are of an older version', found)
  if (serves > RELEASE.version) {
    return defect('the tables are of a newer version, which no longer serves this one', found, {
      fix: 'update leasehold',
    })
  }
  if (version === RELEASE.version && revision < RELEASE.revision) {
    return defect('the functions are of an older revision: what was fixed since is not in use', found, {
      severity: 'warning',
    })
  }
  return undefined
}

/** The default for `public` before PostgreSQL 15, and in databases that were upgraded from there. */
async function judgeCreators({ ask }: ExaminedPostgres, schema: string): Promise<Defect | undefined> {
  const allMay = await ask<boolean>(`select coalesce((
    select pg_catalog.has_schema_privilege('public', oid, 'CREATE') from pg_catalog.pg_namespace where nspname = ${sqlString(schema)}
  ), false)::pg_catalog.text`)
  if (!allMay) return undefined
  return {
    severity: 'warning',
    summary:
      "every role may create in leasehold's schema: tables and functions that another role puts there before `leasehold migrate` would be used as leasehold's own",
    evidence: `PUBLIC has the right CREATE on the schema "${schema}"`,
    fix: `revoke create on schema "${schema}" from public; or give leasehold a schema of its own (--schema)`,
  }
}

/** Exported for its test: filling the queue takes gigabytes. */
export function judgeNotifications(usage: number): Defect | undefined {
  if (usage < QUEUE_FILLING) return undefined
  return {
    severity: usage >= QUEUE_FULL ? 'danger' : 'warning',
    summary: 'the queue of notifications fills up; once it is full, every transaction that notifies fails',
    evidence: `pg_notification_queue_usage() is ${(usage * 100).toFixed(0)} %`,
    fix: 'end the session that listens and sits in a transaction: select pid, xact_start from pg_stat_activity order by xact_start',
  }
}

interface OldTransaction {
  who: string
  ageMs: number
}

async function judgeOldTransactions(
  { ask, facts }: ExaminedPostgres,
  schema: string,
  { oldTransactionMs }: DoctorOptions,
): Promise<Defect | undefined> {
  const age = (since: string): string => `round(extract(epoch from clock_timestamp() - ${since}) * 1000)`
  const old = await ask<OldTransaction[]>(`select coalesce(json_agg(old), '[]')::text from (
    select * from (
      select 'session ' || pid || ' (' || coalesce(nullif(application_name, ''), '-') || ', ' || coalesce(state, '-') || ')' as who,
             ${age('xact_start')} as "ageMs"
        from pg_stat_activity
       where (backend_xmin is not null or backend_xid is not null) and xact_start is not null and pid <> pg_backend_pid()
         and backend_type <> 'walsender'
      union all
      select 'prepared transaction ' || gid, ${age('prepared')} from pg_prepared_xacts
    ) as every where "ageMs" > ${oldTransactionMs} order by "ageMs" desc limit ${MOST_NAMED}
  ) as old`)
  if (old.length === 0) {
    // Of other roles, sessions are listed without their transactions.
    if (!facts.seesOthers) throw new Error('this role is no member of pg_read_all_stats')
    return undefined
  }
  const dead = await ask<number>(`select coalesce(sum(n_dead_tup), 0)::text from pg_stat_user_tables
    where schemaname = ${sqlString(schema)} and relname like 'leasehold\\_%'`)
  const named = old.map(({ who, ageMs }) => `${who} for ${formatDuration(ageMs)}`)
  return {
    severity: 'warning',
    summary:
      'old transactions keep dead rows from being removed: every lock and release leaves some, and all get slower',
    evidence: `${named.join('; ')}; ${dead} dead rows in leasehold's tables`,
    fix: 'end them (pg_terminate_backend, ROLLBACK PREPARED), and set idle_in_transaction_session_timeout',
  }
}

function judgeAdvisoryVersion(version: number, release: string): Defect | undefined {
  if (version >= OLDEST_ADVISORY) return undefined
  return {
    severity: 'danger',
    summary: 'without idle_session_timeout, a holder that freezes never lets go',
    evidence: `PostgreSQL ${release}`,
    fix: 'PostgreSQL 14 or newer; or postgres:// (lease table)',
  }
}

/** In one statement, so that a pooler cannot spread it. The setting ends with the transaction. */
async function judgeSettable({ ask }: ExaminedPostgres): Promise<Defect | undefined> {
  const wanted = '12345ms'
  const set = await ask<string[]>(
    `select json_build_array(set_config('idle_session_timeout', '${wanted}', true), current_setting('idle_session_timeout'))::text`,
  )
  if (set.every((value) => value === wanted)) return undefined
  return {
    severity: 'danger',
    summary: 'idle_session_timeout cannot be set, so that a holder that freezes never lets go',
    evidence: `set to ${wanted}, and it is ${set[1]}`,
    fix: 'connect to PostgreSQL itself: something in between drops the setting',
  }
}
