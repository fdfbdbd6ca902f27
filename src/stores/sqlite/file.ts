/**
 * Opening the database file: what must be true before anyone may lock by it.
 *
 * @module
 */
import { mkdirSync, realpathSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { StoreUnavailableError } from '../../errors.js'
import { BELL_LEASE_MS } from './bell.js'
import type { Database, Driver } from './driver.js'
import { schema } from './embedded.js'
import { type Machine, mayBeSameBoot } from './machine.js'

/** "LSHD": marks the file as ours, so that we never move into somebody's own database. */
const APPLICATION_ID = 0x4c534844
const SCHEMA_VERSION = 1

export interface OpenFile {
  db: Database
  /** Where it really is, symbolic links followed: the bells lie beside it. */
  path: string
  /** Which file was opened. Another one may take its place under the same name. */
  identity: string
}

/**
 * Opens the file, and creates it if it is missing. Nothing of a file that is not ours is changed.
 * Never read the file by other means: closing it would drop SQLite's own locks on it in this process.
 */
export function openFile(path: string, driver: Driver, machine: Machine): OpenFile {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
  const db = new driver.DatabaseSync(path)
  try {
    prepare(db, path, machine)
    return { db, path: realpathSync(path), identity: identify(path) as string }
  } catch (error) {
    db.close()
    throw error
  }
}

/** Undefined: there is no such file. */
export function identify(path: string): string | undefined {
  const stat = statSync(path, { throwIfNoEntry: false, bigint: true })
  return stat && `${stat.dev}:${stat.ino}`
}

function prepare(db: Database, path: string, machine: Machine): void {
  // SQLite would sleep with the event loop in its hands; turnstile.ts does the waiting.
  db.exec('PRAGMA busy_timeout = 0')
  const empty = isEmpty(db)
  if (!empty) refuseForeign(db, path)
  // A commit writes whole pages, and a lease has about 200 bytes. Measured: 1.08 times as fast as 4096; 1024 is slower
  // as soon as leases carry metadata, which then take a page of their own.
  db.exec('PRAGMA page_size = 2048')
  const mode = db.prepare('PRAGMA journal_mode = WAL').get() as { journal_mode: string }
  if (mode.journal_mode !== 'wal') {
    throw new StoreUnavailableError(
      `${path} cannot use write-ahead logging, which needs a local disk: network filesystems do not work`,
    )
  }
  // A killed process needs no fsync to lose nothing. After a power failure no lease is valid any more, and tokens go
  // on from the wall clock: what matters is that the file is whole, and in WAL mode NORMAL guarantees that.
  db.exec('PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = 4194304')
  // Nothing to write: whoever only looks gets in although somebody hangs in the middle of a transaction.
  if (!empty && machine.boot !== '' && bootOf(db) === machine.boot) return
  db.exec('BEGIN IMMEDIATE')
  try {
    if (isEmpty(db)) create(db, machine)
    else refuseForeign(db, path)
    forgetEarlierBoot(db, machine)
    db.exec('COMMIT')
  } catch (error) {
    db.exec('ROLLBACK')
    throw error
  }
}

function isEmpty(db: Database): boolean {
  return (db.prepare('SELECT count(*) AS n FROM sqlite_master').get() as { n: number }).n === 0
}

function refuseForeign(db: Database, path: string): void {
  const { application_id: id } = db.prepare('PRAGMA application_id').get() as { application_id: number }
  if (id !== APPLICATION_ID) {
    throw new StoreUnavailableError(
      `${path} is a SQLite database of something else; nothing was changed. Give the store a file of its own`,
    )
  }
  const { user_version: version } = db.prepare('PRAGMA user_version').get() as { user_version: number }
  if (version !== SCHEMA_VERSION) {
    throw new StoreUnavailableError(
      `${path} was written by another version of leasehold (schema ${version}, this one knows ${SCHEMA_VERSION}); nothing was changed`,
    )
  }
}

function bootOf(db: Database): string {
  return (db.prepare('SELECT boot FROM state').get() as { boot: string }).boot
}

function create(db: Database, machine: Machine): void {
  db.exec(schema)
  db.prepare("INSERT INTO state (id, boot, last_token, swept_to) VALUES (1, ?, 0, '')").run(machine.boot)
  db.exec(`PRAGMA application_id = ${APPLICATION_ID}; PRAGMA user_version = ${SCHEMA_VERSION}`)
}

/**
 * Whoever held something before the machine was started anew is gone, and its times mean nothing on our clock.
 *
 * Where a boot has no name, a row that was written later than now must be from before: the clock of each boot begins at
 * zero. One that was not has at most its own ttl left, and passes like any other.
 */
function forgetEarlierBoot(db: Database, machine: Machine): void {
  const boot = bootOf(db)
  if (boot === machine.boot && boot !== '') return
  if (!mayBeSameBoot(boot, machine.boot)) {
    db.exec('DELETE FROM holders; DELETE FROM places; DELETE FROM bells; DELETE FROM watchers; DELETE FROM meters')
  } else {
    const soon = machine.now() + 1_000
    db.prepare('DELETE FROM holders WHERE expires_at - ttl_ms > ?').run(soon)
    db.prepare('DELETE FROM places WHERE expires_at - place_ms > ?').run(soon)
    db.prepare('DELETE FROM bells WHERE expires_at - ? > ?').run(BELL_LEASE_MS, soon)
    db.prepare('DELETE FROM meters WHERE touched_at > ?').run(soon)
  }
  if (machine.boot !== '') db.prepare('UPDATE state SET boot = ?').run(machine.boot)
}
