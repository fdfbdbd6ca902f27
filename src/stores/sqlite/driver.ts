/**
 * The few methods of SQLite that we call, and where they come from: Node itself, or a package with the same API.
 *
 * @module
 */
import { createRequire } from 'node:module'
import { MissingPackageError } from '../../errors.js'

export type Value = string | number | null

export interface Statement {
  run(...values: Value[]): { changes: number | bigint }
  get(...values: Value[]): unknown
  all(...values: Value[]): unknown[]
}

export interface Database {
  exec(sql: string): void
  prepare(sql: string): Statement
  close(): void
}

export interface Driver {
  DatabaseSync: new (path: string) => Database
}

const PACKAGE = '@photostructure/sqlite'

/** Where to look, in this order. Each throws or returns undefined if it is not there. */
const sources: (() => Driver | undefined)[] = [fromNode, () => createRequire(import.meta.url)(PACKAGE) as Driver]

let loaded: Driver | undefined

/** Loads SQLite the first time somebody needs it, so that importing this module costs nothing and needs nothing. */
export function loadDriver(from: typeof sources = sources): Driver {
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

function fromNode(): Driver | undefined {
  const original = Reflect.get(process, 'emitWarning') as (...all: unknown[]) => void
  // Node says on stderr that its SQLite is experimental, once in every process. To somebody who runs a command under a
  // lock that says nothing they can act on; all other warnings pass.
  process.emitWarning = (...all: unknown[]) => {
    if (!/SQLite is an experimental/.test(String(all[0]))) original.apply(process, all)
  }
  try {
    return process.getBuiltinModule?.('node:sqlite') as unknown as Driver | undefined
  } finally {
    process.emitWarning = original
  }
}
