/**
 * The schema in the database: its version, its names, and the script that makes it.
 *
 * @module
 */
import { createHash } from 'node:crypto'
import { InvalidOptionError } from '../../errors.js'
import { knownOptions } from '../../util/options.js'
import * as embedded from './sql/embedded.js'
import { call } from './statements.js'

/** The .sql files and the preamble of calls, by name. Others than leasehold's own only in experiments that break the rule on purpose. */
export type SqlFiles = Readonly<Record<keyof typeof embedded | 'call', string>>

export const sqlFiles: SqlFiles = { ...embedded, call }

/** A format of the schema, and how an older one becomes it. Others than `RELEASE` only in tests. */
export interface SchemaRelease {
  /** The version of the format. A client works with a schema of its own version, or of a later one that still serves it. */
  version: number
  /** The oldest version of a client that this schema still serves. */
  serves: number
  /**
   * Grows with every change of the SQL that reaches the schema (test/stores/postgres/revision.test.ts remembers which): of two
   * packages of one version on one database, the newer one's functions stay.
   */
  revision: number
  /**
   * What brings an installed schema to a version, oldest first: statements of PL/pgSQL, with the placeholders of the .sql
   * files. Each runs once, before tables and functions are made, on a schema of an earlier version. A function whose
   * arguments or result change has to be dropped by it, and the view `distributed_locks` before a column of it changes.
   */
  upgrades: readonly { to: number; sql: string }[]
}

export const RELEASE: SchemaRelease = { version: 1, serves: 1, revision: 1, upgrades: [] }

/**
 * How long a migration asks for a lock on a table before it lets the others pass and tries again, in milliseconds. Every
 * call that needs the table waits for as long.
 */
const LOCK_TIMEOUT_MS = 200

export interface MigrationOptions {
  /** Where tables and functions live. */
  schema?: string | undefined
  /** Take over a table `distributed_locks` and functions `acquire_lock`, `release_lock` that are not ours, instead of stopping. */
  adopt?: boolean | undefined
  /**
   * The functions run with the rights of their owner, and every role with USAGE on the schema may call them without any right
   * to the tables. Needs a schema other than `public`. Later migrations keep it, unless it is given as `false`.
   */
  definer?: boolean | undefined
}

/** Everything that depends on the schema's name. */
export interface SchemaNames {
  schema: string
  /** Where changes are announced to every store on this schema. */
  channel: string
  /** Replaces the placeholders of a .sql file. */
  fill(sql: string, more?: Record<string, string | number>): string
}

export function schemaNames(schema: string): SchemaNames {
  if (typeof schema !== 'string' || !/^[^\0$]+$/u.test(schema) || Buffer.byteLength(schema) > 63) {
    throw new InvalidOptionError('schema', schema, 'the name of a PostgreSQL schema, 1 to 63 bytes, without $')
  }
  const quoted = `"${schema.replaceAll('"', '""')}"`
  // NOTIFY takes names of less than 64 bytes.
  const channel = `leasehold_${createHash('sha256').update(schema).digest('hex').slice(0, 16)}`
  const digest = (use: string): Buffer => createHash('sha256').update(`leasehold ${use} ${schema}`).digest()
  const facts: Record<string, string | number> = {
    schema: quoted,
    schemaText: sqlString(schema),
    schemaPrefix: sqlString(`${quoted}.`),
    metaText: sqlString(`${quoted}.leasehold_meta`),
    leasesText: sqlString(`${quoted}.leasehold_leases`),
    locksText: sqlString(`${quoted}.distributed_locks`),
    channelText: sqlString(channel),
    lockClass: digest('lock').readInt32BE(),
    sweepClass: digest('sweep').readInt32BE(),
    migrateKey: digest('migrate').readBigInt64BE().toString(),
  }
  return {
    schema,
    channel,
    fill: (sql, more = {}) =>
      sql.replace(/\{(\w+)\}/g, (whole, name: string) => String(more[name] ?? facts[name] ?? whole)),
  }
}

/** A string constant that means the same whatever `standard_conforming_strings` says. */
export function sqlString(value: string): string {
  const doubled = value.replaceAll("'", "''")
  return doubled.includes('\\') ? `E'${doubled.replaceAll('\\', '\\\\')}'` : `'${doubled}'`
}

/** The relations that are leasehold's. Anything else of these names is in the way. */
const RELATIONS = [
  'leasehold_meta',
  'leasehold_leases',
  'leasehold_queue',
  'leasehold_fences',
  'leasehold_secret',
  'leasehold_meters',
  'leasehold_takes',
  'leasehold_guards',
  'distributed_locks',
]

/** The functions that are called from outside, by a store, by SQL callers or by the server. With `definer` these run as their owner. */
const ENTRY_POINTS = [
  ...['acquire_lock', 'release_lock', 'leasehold_guard', 'leasehold_on_delete', 'leasehold_installed', 'leasehold_now'],
  ...['leasehold_acquire', 'leasehold_acquire_one', 'leasehold_acquire_all'],
  ...['leasehold_release', 'leasehold_release_one', 'leasehold_revoke'],
  ...['leasehold_renew', 'leasehold_renew_entries', 'leasehold_holders', 'leasehold_inspect', 'leasehold_take'],
  ...['leasehold_channel', 'leasehold_probe', 'leasehold_flush'],
]

/** In this order: PL/pgSQL looks for what it calls when it runs, plain SQL functions when they are made. */
function functionFiles({ keys, queue, acquire, renew, inspect, release, take, guard, surface }: SqlFiles): string[] {
  return [keys, queue, acquire, renew, inspect, release, take, guard, surface]
}

/** The statements of a migration, for one transaction. */
export function migrationScript(options: MigrationOptions, files: SqlFiles, release: SchemaRelease): string {
  const { schema = 'public', adopt = false, definer } = knownOptions(options, ['schema', 'adopt', 'definer'])
  const functions = functionFiles(files)
  const upgrades = release.upgrades.map(upgradeBlock)
  const parts = [
    files.begin,
    files.foreign,
    ...upgrades,
    files.tables,
    ...(adopt ? [files.adopt] : []),
    ...functions,
    files.end,
  ]
  const made = [...functions.join('').matchAll(/^create or replace function \{schema\}\.(\w+)/gm)].map(
    (found) => found[1],
  )
  const facts = {
    version: release.version,
    serves: release.serves,
    revision: release.revision,
    scriptText: sqlString(fingerprint(files)),
    lockTimeoutMs: LOCK_TIMEOUT_MS,
    adopt: String(adopt),
    definer: definer === undefined ? 'null::boolean' : String(definer),
    relationNames: sqlString(`{${RELATIONS.join(',')}}`).concat('::text[]'),
    functionNames: sqlString(`{${made.join(',')}}`).concat('::text[]'),
    entryNames: sqlString(`{${ENTRY_POINTS.join(',')}}`).concat('::text[]'),
  }
  const names = schemaNames(schema)
  return parts.map((part) => names.fill(part, facts)).join('\n')
}

/** Runs the statements on a schema of an earlier version, and not on a new one. */
function upgradeBlock({ to, sql }: { to: number; sql: string }): string {
  return `do $leasehold$
declare
  v_version integer;
begin
  if to_regclass({metaText}) is not null then
    execute 'select version from ' || {metaText} || ' where id = 1' into v_version;
  end if;
  if v_version < ${to} then
${sql}
  end if;
end $leasehold$;
`
}

/** Of what reaches the schema, without comments and indentation. */
export function fingerprint(files: SqlFiles): string {
  const bare = [files.tables, ...functionFiles(files)].map((part) =>
    part.replace(/--.*$/gm, '').replace(/\s+/g, ' ').trim(),
  )
  return createHash('sha256').update(JSON.stringify(bare)).digest('hex').slice(0, 32)
}
