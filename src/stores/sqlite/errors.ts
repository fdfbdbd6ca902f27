/**
 * Errors of SQLite, in words that tell the user what to do. None of them says who holds a lock.
 *
 * @module
 */
import { LeaseholdError, StoreUnavailableError } from '../../errors.js'

/** SQLITE_BUSY: another process is in a transaction. */
const BUSY = 5
/** SQLITE_LOCKED: another connection of this process is. */
const LOCKED = 6

/** The part of the message after the path, by SQLite's primary result code. */
const advice: Record<number, string> = {
  3: 'may not be used by this user: permission denied',
  8: 'is read-only for this process: the file and its directory must be writable',
  10: 'cannot be read or written: the disk reports an error',
  11: 'is damaged; nothing was changed. Stop everything that uses it, then move it away or restore it',
  13: 'cannot grow: the disk is full',
  14: 'cannot be opened: it must be a file in a directory where this process may create files',
  26: 'is not a SQLite database; nothing was changed. Give the store a file of its own',
}

/** Another connection is in the middle of a transaction: the call is worth another try. */
export function isBusy(error: unknown): boolean {
  const code = primaryCode(error)
  return code === BUSY || code === LOCKED
}

export function stillLocked(path: string, waitedMs: number, cause: unknown): StoreUnavailableError {
  const waited = `${Math.round(waitedMs)} ms`
  const hint = 'a process that hangs or was stopped in the middle of a transaction keeps it until it goes on or ends'
  return new StoreUnavailableError(`${path} is locked by another process, for ${waited} now: ${hint}`, { cause })
}

/** Errors of leasehold stay as they are; every other error becomes a `StoreUnavailableError` that names the file. */
export function explain(path: string, error: unknown): LeaseholdError {
  if (error instanceof LeaseholdError) return error
  const said = error instanceof Error ? error.message : String(error)
  const what = advice[primaryCode(error) ?? -1] ?? 'cannot be used'
  return new StoreUnavailableError(`${path} ${what} (${said})`, { cause: error })
}

/** Extended codes, such as SQLITE_BUSY_RECOVERY, carry the primary one in their low byte. */
function primaryCode(error: unknown): number | undefined {
  const code = (error as { errcode?: unknown } | undefined)?.errcode
  return typeof code === 'number' ? code & 0xff : undefined
}
