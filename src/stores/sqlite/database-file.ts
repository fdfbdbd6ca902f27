/**
 * Opening the database file: what must be true of it before leases in it can be trusted.
 *
 * @module
 */
import { realpathSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { StoreUnavailableError } from '../../errors.js'
import { makeFolder } from '../../util/make-folder.js'
import { type Machine, mayBeSameBoot } from './boot-clock.js'
import type { SqliteDatabase, SqliteDriver } from './driver.js'
import { schema } from './embedded.js'
import { SUBSCRIBER_TTL_MS } from './wakeup-file.js'

/** "LSHD": marks the file as leasehold's, so that the store never adds its tables to a database of the user's own. */
const APPLICATION_ID = 0x4c534844
/** Raised with every change of schema.sql. A file of another version is refused: its tables may mean something else. */
const SCHEMA_VERSION = 2
/**
 * Tolerance in milliseconds when times in the file are compared with the clock, where boots have no name. Processes of one
 * boot never differ by as much; a file from before a reboot is almost always further ahead.
 */
const FUTURE_TOLERANCE_MS = 1_000

export interface OpenFile {
  db: SqliteDatabase
  /** The real path, symbolic links followed: the directory of wake-up files lies beside it. */
  path: string
  /** Device and inode of the file that was opened. Another file may take its place under the same path. */
  identity: string
}

/**
 * Opens the file, and creates it if it is missing. A file that is not leasehold's is not changed.
 * The file must not be read by other means: closing it would drop SQLite's own locks on it in this process.
 */
export function openFile(path: string, driver: SqliteDriver, machine: Machine): OpenFile {
  makeFolder(dirname(path), 0o700)
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

function prepare(db: SqliteDatabase, path: string, machine: Machine): void {
  // SQLite's own waiting would block the event loop; write-retry.ts waits instead.
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
  // A killed process loses nothing without fsync. After a power failure no lease is valid any more, and tokens continue
  // from the wall clock: it is enough that the file is intact, and in WAL mode NORMAL guarantees that.
  db.exec('PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = 4194304')
  // Opening writes nothing in this case, so listings work although a process is frozen in the middle of a transaction.
  if (!empty && machine.boot !== '' && bootOf(db) === machine.boot) return
  db.exec('BEGIN IMMEDIATE')
  try {
    if (isEmpty(db)) create(db, machine)
    else refuseForeign(db, path)
    deleteRowsOfEarlierBoots(db, machine)
    db.exec('COMMIT')
  } catch (error) {
    db.exec('ROLLBACK')
    throw error
  }
}

function isEmpty(db: SqliteDatabase): boolean {
  return (db.prepare('SELECT count(*) AS n FROM sqlite_master').get() as { n: number }).n === 0
}

function refuseForeign(db: SqliteDatabase, path: string): void {
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

function bootOf(db: SqliteDatabase): string {
  return (db.prepare('SELECT boot FROM state').get() as { boot: string }).boot
}

function create(db: SqliteDatabase, machine: Machine): void {
  db.exec(schema)
  db.prepare("INSERT INTO state (id, boot, last_token, swept_to) VALUES (1, ?, 0, '')").run(machine.boot)
  db.exec(`PRAGMA application_id = ${APPLICATION_ID}; PRAGMA user_version = ${SCHEMA_VERSION}`)
}

/**
 * Processes that held leases before the machine was started anew are gone, and the times of their rows mean nothing on the
 * clock of this boot.
 *
 * Where a boot has no name, a row that was written later than now must be from an earlier boot: the clock of each boot begins
 * at zero. A row of an earlier boot that was not lasts for its own ttl at most, and expires like any other.
 */
function deleteRowsOfEarlierBoots(db: SqliteDatabase, machine: Machine): void {
  const boot = bootOf(db)
  if (boot === machine.boot && boot !== '') return
  if (!mayBeSameBoot(boot, machine.boot)) {
    for (const table of ['holders', 'waiters', 'subscribers', 'subscriptions', 'meters'])
      db.exec(`DELETE FROM ${table}`)
  } else {
    const soon = machine.now() + FUTURE_TOLERANCE_MS
    db.prepare('DELETE FROM holders WHERE expires_at - ttl_ms > ?').run(soon)
    db.prepare('DELETE FROM waiters WHERE expires_at - queue_ms > ?').run(soon)
    db.prepare('DELETE FROM subscribers WHERE expires_at - ? > ?').run(SUBSCRIBER_TTL_MS, soon)
    db.prepare('DELETE FROM meters WHERE touched_at > ?').run(soon)
  }
  if (machine.boot !== '') db.prepare('UPDATE state SET boot = ?').run(machine.boot)
}
