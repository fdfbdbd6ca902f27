/**
 * The few methods of SQLite that the store calls, and where they come from: Node itself, or a package with the same API.
 *
 * @module
 */
import { createRequire } from 'node:module'
import { MissingPackageError } from '../../errors.js'

export type SqliteValue = string | number | null

export interface SqliteStatement {
  run(...values: SqliteValue[]): { changes: number | bigint }
  get(...values: SqliteValue[]): unknown
  all(...values: SqliteValue[]): unknown[]
}

export interface SqliteDatabase {
  exec(sql: string): void
  prepare(sql: string): SqliteStatement
  close(): void
}

export interface SqliteDriver {
  DatabaseSync: new (path: string) => SqliteDatabase
}

const PACKAGE = '@photostructure/sqlite'

/** Where SQLite is looked for, in this order. Each function throws or returns undefined if it is not there. */
const sources: (() => SqliteDriver | undefined)[] = [
  fromNode,
  () => createRequire(import.meta.url)(PACKAGE) as SqliteDriver,
]

let loaded: SqliteDriver | undefined

/** Loads SQLite when the first store is made, so that importing this module costs nothing and needs no package. */
export function loadDriver(from: typeof sources = sources): SqliteDriver {
  if (from === sources && loaded) return loaded
  const problems: string[] = []
  for (const source of from) {
    try {
      const driver = source()
      if (!driver?.DatabaseSync) continue
      if (from === sources) loaded = driver
      return driver
    } catch (error) {
      problems.push((error as Error).message.split('\n')[0] as string)
    }
  }
  const cause = problems.length > 0 ? { cause: new Error(problems.join('; ')) } : undefined
  throw new MissingPackageError('the SQLite store on Node before 22.13', [PACKAGE], cause)
}

function fromNode(): SqliteDriver | undefined {
  const original = Reflect.get(process, 'emitWarning') as (...all: unknown[]) => void
  // Node warns on stderr that its SQLite is experimental, once in every process. A user who runs a command under a lock
  // can do nothing about that; all other warnings pass.
  process.emitWarning = (...all: unknown[]) => {
    if (!/SQLite is an experimental/.test(String(all[0]))) original.apply(process, all)
  }
  try {
    return process.getBuiltinModule?.('node:sqlite') as unknown as SqliteDriver | undefined
  } finally {
    process.emitWarning = original
  }
}
