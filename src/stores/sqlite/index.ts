/**
 * Leases in a SQLite file: for several processes of one machine, with no server.
 *
 * @module
 */
import { resolve } from 'node:path'
import { InvalidOptionError } from '../../errors.js'
import type { Store } from '../../store.js'
import { knownOptions } from '../../util/options.js'
import { type World, realWorld } from '../../util/world.js'
import { type Machine, thisMachine } from './boot-clock.js'
import { loadDriver } from './driver.js'
import { SqliteStore } from './store.js'

export interface SqliteOptions {
  /** Time, timers and chance, for tests. Leases expire by the clock of `machine`. */
  world?: World | undefined
  /** The boot and the clock that all processes share, for tests. Leases of another boot have expired. */
  machine?: Machine | undefined
}

export type { Machine }

/**
 * A store in a file, which is created if it is missing. All processes of one machine that open the same file exclude each
 * other. The file is opened when it is first needed; a relative path is resolved now.
 */
export function sqlite(path: string, options: SqliteOptions = {}): Store {
  const file = checkPath(path)
  const driver = loadDriver()
  const { world = realWorld, machine = thisMachine() } = knownOptions(options, ['world', 'machine'])
  return new SqliteStore(file, driver, machine, world)
}

function checkPath(path: unknown): string {
  const takes = 'the path of a file'
  if (typeof path !== 'string' || path === '' || path.includes('\0')) throw new InvalidOptionError('path', path, takes)
  if (path.startsWith(':memory:')) throw new InvalidOptionError('path', path, `${takes}; for memory use memory()`)
  if (/^(sqlite|file):|^[a-z][a-z0-9+.-]*:\/\//i.test(path))
    throw new InvalidOptionError('path', path, `${takes}, not a URL; for a URL use openStore()`)
  return resolve(path)
}
