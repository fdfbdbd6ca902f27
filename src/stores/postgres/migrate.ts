/**
 * How the schema gets into the database, and how a store notices that it is missing.
 *
 * @module
 */
import type { PostgresClient, PostgresDriver } from '../../clients/postgres/driver.js'
import { errorCode } from '../../clients/postgres/errors.js'
import { driverOf } from '../../clients/postgres/open.js'
import { realWorld } from '../../util/world.js'
import { explainError, isBroken, isMissing, SchemaError } from './errors.js'
import {
  fingerprint,
  type MigrationOptions,
  migrationScript,
  RELEASE,
  type SchemaNames,
  type SchemaRelease,
  type SqlFiles,
  schemaNames,
  sqlFiles,
} from './schema.js'
import { installed } from './statements.js'

/** Bounds a whole migration in milliseconds, waiting for other processes included. */
const MIGRATION_TIMEOUT_MS = 120_000

/**
 * Pause between two attempts in milliseconds: several times as long as each attempt holds up the callers that want the same
 * table, so that they get through in between.
 */
const PAUSE_MS = 600

/** The script that `migrate` applies, for `leasehold migrate --print` and for those who have their own migrations. */
export function migrationSql(options: MigrationOptions = {}): string {
  return `begin;\n${migrationScript(options, sqlFiles, RELEASE)}commit;\n`
}

/**
 * Creates or updates the schema. Any number of processes may do so at once. Resolves with whether anything had to be
 * done.
 */
export async function migrate(client: PostgresClient, options: MigrationOptions = {}): Promise<boolean> {
  return migrateWith(driverOf(client), options)
}

/** The same with other SQL or another release: only in experiments and tests. */
export async function migrateWith(
  driver: PostgresDriver,
  options: MigrationOptions = {},
  files: SqlFiles = sqlFiles,
  release: SchemaRelease = RELEASE,
): Promise<boolean> {
  const names = schemaNames(options.schema ?? 'public')
  const script = migrationScript(options, files, release)
  const deadline = realWorld.now() + MIGRATION_TIMEOUT_MS
  for (;;) {
    const found = await readMeta(driver, names).catch((error: unknown) => {
      throw explainError(error, names.schema)
    })
    if (found && isInstalled(found, options, files, release)) return false
    const failure = await driver.run(script, MIGRATION_TIMEOUT_MS).then(
      () => undefined,
      (error: unknown) => error,
    )
    if (failure === undefined) return true
    // 55P03: another transaction holds a table that has to change. LH003: a newer package was quicker, and the next look shows it.
    const again = ['55P03', 'LH003'].includes(errorCode(failure) ?? '')
    if (!again || realWorld.now() > deadline) throw refused(failure, names)
    await new Promise<void>((resolve) => realWorld.after(PAUSE_MS * (0.5 + realWorld.random()), resolve, true))
  }
}

/** Whether what is there is as new as what this package would make, and serves it. */
function isInstalled(
  found: InstalledSchema,
  { definer, schema = 'public' }: MigrationOptions,
  files: SqlFiles,
  { version, revision }: SchemaRelease,
): boolean {
  const newer = found.version > version || (found.version === version && found.revision > revision)
  if (newer && found.serves > version) {
    throw new SchemaError(
      `the schema "${schema}" is of version ${found.version}, newer than this leasehold, which knows ${version}: update the package`,
    )
  }
  if (newer) return true
  const same = found.version === version && found.revision === revision && found.script === fingerprint(files)
  return same && (definer === undefined || definer === found.definer)
}

function refused(error: unknown, names: SchemaNames): Error {
  const { message, hint } = error as { message: string; hint?: string }
  if (isBroken(error)) return explainError(error, names.schema)
  return new SchemaError(`the migration was refused: ${message}${hint ? `. ${hint}` : ''}`, { cause: error })
}

/** The row of leasehold_meta. */
interface InstalledSchema {
  version: number
  serves: number
  script: string
  revision: number
  definer: boolean
}

async function readMeta(driver: PostgresDriver, names: SchemaNames): Promise<InstalledSchema | undefined> {
  try {
    const found = await driver.run(names.fill(installed), MIGRATION_TIMEOUT_MS)
    return found === undefined ? undefined : (JSON.parse(found) as InstalledSchema)
  } catch (error) {
    if (isMissing(error)) return undefined
    throw error
  }
}

/** Throws, and says what to run, unless the schema is there and understands this code. */
export async function checkSchema(driver: PostgresDriver, names: SchemaNames): Promise<void> {
  const { version } = RELEASE
  const meta = await readMeta(driver, names)
  const run = `run: leasehold migrate --store postgres://…${names.schema === 'public' ? '' : ` --schema ${names.schema}`}`
  if (!meta)
    throw new SchemaError(`the schema "${names.schema}" has no tables of leasehold; ${run} (or: await migrate(pool))`)
  if (meta.version < version) {
    throw new SchemaError(
      `the schema "${names.schema}" is of version ${meta.version}, this leasehold needs ${version}; ${run}`,
    )
  }
  if (meta.serves > version) {
    throw new SchemaError(
      `the schema "${names.schema}" is of version ${meta.version} and no longer serves this leasehold (${version}): update the package`,
    )
  }
}
