/**
 * The schema in the database: what it is, how it gets there, and how a store notices that it is missing.
 *
 * @module
 */
import { createHash } from 'node:crypto'
import { InvalidOptionError } from '../../errors.js'
import { knownOptions } from '../../util/options.js'
import { realWorld } from '../../kit/world.js'
import { type Database, databaseOf, type PostgresClient } from './database.js'
import { explain, isBroken } from './explain.js'
import { isMissing, SchemaError } from './schema-error.js'
import * as embedded from './sql/embedded.js'

/** The .sql files, by name. Others than the embedded ones only in experiments that break the rule on purpose. */
export type Sources = Readonly<Record<keyof typeof embedded, string>>

export const sources: Sources = embedded

/** What this code needs. A schema of a later version may still serve it, and says so itself. */
const VERSION = 3

/** The oldest client that the schema of this version still serves. */
const SERVES = 3

/**
 * Grows with every change of the SQL that reaches the schema (test/stores/postgres/revision.test.ts remembers which): of two
 * packages of one version on one database, the newer one's functions stay.
 */
export const REVISION: number = 1

/** How long a migration may take, waiting for others included. */
const PATIENCE_MS = 120_000

/**
 * How long a migration asks for a lock on a table before it lets the others pass and tries again. Everybody who wants the
 * table waits for as long.
 */
const LOCK_TIMEOUT_MS = 200

/** Pause between attempts: several times as long as each holds the others up. */
const PAUSE_MS = 600

export interface MigrationOptions {
  /** Where tables and functions live. */
  schema?: string | undefined
  /** Take over a table `distributed_locks` and functions `acquire_lock`, `release_lock` that are not ours, instead of stopping. */
  adopt?: boolean | undefined
  /**
   * The functions run with the rights of their owner, and whoever has USAGE on the schema may call them without any right
   * to the tables. Needs a schema other than `public`. Later migrations keep it, unless it is given as `false`.
   */
  definer?: boolean | undefined
}

/** Everything that depends on the schema's name. */
export interface Names {
  schema: string
  channel: string
  /** Completes a .sql file. */
  fill(sql: string, more?: Record<string, string | number>): string
}

export function namesOf(schema: string): Names {
  if (typeof schema !== 'string' || !/^[^\0$]+$/u.test(schema) || Buffer.byteLength(schema) > 63) {
    throw new InvalidOptionError('schema', schema, 'the name of a PostgreSQL schema, 1 to 63 bytes, without $')
  }
  const quoted = `"${schema.replaceAll('"', '""')}"`
  // NOTIFY takes names of less than 64 bytes.
  const channel = `leasehold_${createHash('sha256').update(schema).digest('hex').slice(0, 16)}`
  const digest = (use: string): Buffer => createHash('sha256').update(`leasehold ${use} ${schema}`).digest()
  const facts: Record<string, string | number> = {
    schema: quoted,
    schemaText: text(schema),
    schemaPrefix: text(`${quoted}.`),
    metaText: text(`${quoted}.leasehold_meta`),
    leasesText: text(`${quoted}.leasehold_leases`),
    locksText: text(`${quoted}.distributed_locks`),
    channelText: text(channel),
    lockClass: digest('lock').readInt32BE(),
    sweepClass: digest('sweep').readInt32BE(),
    migrateKey: digest('migrate').readBigInt64BE().toString(),
    version: VERSION,
    serves: SERVES,
  }
  return {
    schema,
    channel,
    fill: (sql, more = {}) =>
      sql.replace(/\{(\w+)\}/g, (whole, name: string) => String(more[name] ?? facts[name] ?? whole)),
  }
}

/** A string constant that means the same whatever `standard_conforming_strings` says. */
export function text(value: string): string {
  const doubled = value.replaceAll("'", "''")
  return doubled.includes('\\') ? `E'${doubled.replaceAll('\\', '\\\\')}'` : `'${doubled}'`
}

/** The script that `migrate` applies, for `leasehold migrate --print` and for those who have their own migrations. */
export function migrationSql(options: MigrationOptions = {}): string {
  return `begin;\n${body(options, sources, REVISION)}commit;\n`
}

/** The relations that are ours. Anything else of these names is in the way. */
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

/** plpgsql looks for what it calls when it runs, plain SQL functions when they are made. */
function functionFiles({ keys, queue, acquire, renew, inspect, release, take, guard, surface }: Sources): string[] {
  return [keys, queue, acquire, renew, inspect, release, take, guard, surface]
}

function body(options: MigrationOptions, files: Sources, revision: number): string {
  const { schema = 'public', adopt = false, definer } = knownOptions(options, ['schema', 'adopt', 'definer'])
  const { begin, foreign, tables, end } = files
  const functions = functionFiles(files)
  const parts = [begin, foreign, tables, ...(adopt ? [files.adopt] : []), ...functions, end]
  const names = namesOf(schema)
  const made = [...functions.join('').matchAll(/^create or replace function \{schema\}\.(\w+)/gm)].map(
    (found) => found[1],
  )
  const facts = {
    scriptText: text(fingerprint(files)),
    revision,
    lockTimeoutMs: LOCK_TIMEOUT_MS,
    adopt: String(adopt),
    definer: definer === undefined ? 'null::boolean' : String(definer),
    relationNames: text(`{${RELATIONS.join(',')}}`).concat('::text[]'),
    functionNames: text(`{${made.join(',')}}`).concat('::text[]'),
  }
  return parts.map((part) => names.fill(part, facts)).join('\n')
}

/** Of what reaches the schema, without comments and indentation. */
export function fingerprint(files: Sources): string {
  const bare = [files.tables, ...functionFiles(files)].map((part) =>
    part.replace(/--.*$/gm, '').replace(/\s+/g, ' ').trim(),
  )
  return createHash('sha256').update(JSON.stringify(bare)).digest('hex').slice(0, 32)
}

/**
 * Creates or updates the schema. Any number of processes may do so at once. Resolves with whether anything had to be
 * done.
 */
export async function migrate(client: PostgresClient, options: MigrationOptions = {}): Promise<boolean> {
  return migrateDatabase(databaseOf(client), options)
}

export async function migrateDatabase(
  database: Database,
  options: MigrationOptions = {},
  files: Sources = sources,
  revision: number = REVISION,
): Promise<boolean> {
  const names = namesOf(options.schema ?? 'public')
  const script = body(options, files, revision)
  const deadline = realWorld.now() + PATIENCE_MS
  for (;;) {
    const found = await readMeta(database, names).catch((error: unknown) => {
      throw explain(error, names)
    })
    if (found && isInstalled(found, options, files, revision)) return false
    const failure = await database.run(script, PATIENCE_MS).then(
      () => undefined,
      (error: unknown) => error,
    )
    if (failure === undefined) return true
    const code = (failure as { code?: string }).code
    // Somebody holds a table that has to change; or a newer package was quicker, and the next look shows it.
    if (!['55P03', 'LH003'].includes(code ?? '') || realWorld.now() > deadline) throw refused(failure, names)
    await new Promise<void>((resolve) => realWorld.after(PAUSE_MS * (0.5 + realWorld.random()), resolve, true))
  }
}

/** What is there is as new as what we would make, and serves us. */
function isInstalled(
  found: Meta,
  { definer, schema = 'public' }: MigrationOptions,
  files: Sources,
  revision: number,
): boolean {
  const newer = found.version > VERSION || (found.version === VERSION && found.revision > revision)
  if (newer && found.serves > VERSION) {
    throw new SchemaError(
      `the schema "${schema}" is of version ${found.version}, newer than this leasehold, which knows ${VERSION}: update the package`,
    )
  }
  if (newer) return true
  const same = found.version === VERSION && found.revision === revision && found.script === fingerprint(files)
  return same && (definer === undefined || definer === found.definer)
}

function refused(error: unknown, names: Names): Error {
  const { message, hint } = error as { message: string; hint?: string }
  if (isBroken(error)) return explain(error, names)
  return new SchemaError(`the migration was refused: ${message}${hint ? `. ${hint}` : ''}`, { cause: error })
}

interface Meta {
  version: number
  serves: number
  script: string
  revision: number
  definer: boolean
}

async function readMeta(database: Database, names: Names): Promise<Meta | undefined> {
  const question = names.fill('select {schema}.leasehold_installed()::pg_catalog.text')
  try {
    const found = await database.run(question, PATIENCE_MS)
    return found === undefined ? undefined : (JSON.parse(found) as Meta)
  } catch (error) {
    if (isMissing(error)) return undefined
    throw error
  }
}

/** Throws, and says what to run, unless the schema is there and understands this code. */
export async function checkSchema(database: Database, names: Names): Promise<void> {
  const meta = await readMeta(database, names)
  const run = `run: leasehold migrate --store postgres://…${names.schema === 'public' ? '' : ` --schema ${names.schema}`}`
  if (!meta)
    throw new SchemaError(`the schema "${names.schema}" has no tables of leasehold; ${run} (or: await migrate(pool))`)
  if (meta.version < VERSION) {
    throw new SchemaError(
      `the schema "${names.schema}" is of version ${meta.version}, this leasehold needs ${VERSION}; ${run}`,
    )
  }
  if (meta.serves > VERSION) {
    throw new SchemaError(
      `the schema "${names.schema}" is of version ${meta.version} and no longer serves this leasehold (${VERSION}): update the package`,
    )
  }
}
