/**
 * The folder of the default store, which no other user may read, write or replace: a user who can write to the file can end
 * every lock in it, and a user who can replace it can make two holders run side by side.
 *
 * @module
 */
import { chmodSync, closeSync, constants, existsSync, lstatSync, openSync, realpathSync } from 'node:fs'
import { userInfo } from 'node:os'
import { dirname, isAbsolute, join } from 'node:path'
import { StoreUnavailableError } from '../errors.js'
import { makeFolder } from '../util/make-folder.js'

/** The user that runs this process, and the environment that names the folder. */
export interface UserAccount {
  env: { XDG_STATE_HOME?: string | undefined; HOME?: string | undefined }
  uid: number
  gid: number
  /** The home folder in the system's user database, whatever HOME says. */
  ownHome: () => string
}

const ROOT = 0
const WORLD_WRITABLE = 0o002
const GROUP_WRITABLE = 0o020
/** As /tmp has it: no user can rename or remove the files of another. */
const STICKY = 0o1000

export function currentAccount(): UserAccount {
  // Absent on Windows, where files have no such owners.
  const uid = process.geteuid?.() ?? -1
  return { env: process.env, uid, gid: process.getegid?.() ?? -1, ownHome: () => userInfo().homedir }
}

/**
 * The path of the default store's file: its folder is made if it is missing, and refused if another user can change or
 * replace it.
 */
export function defaultFile(account: UserAccount): string {
  const folder = join(stateHome(account), 'leasehold')
  try {
    return fileIn(folder, account)
  } catch (cause) {
    if (cause instanceof StoreUnavailableError) throw cause
    // A read-only file system, a folder without rights: the exit status must not say that a lock was lost.
    throw new StoreUnavailableError(`${folder}, where locks are kept by default, cannot be used`, { cause })
  }
}

function fileIn(folder: string, account: UserAccount): string {
  // Checked before anything is made: root would leave folders of its own in a home whose user could not use them any more.
  if (account.uid !== -1) refuseReplaceable(nearestExisting(dirname(folder)), account)
  try {
    makeFolder(folder, 0o700)
  } catch (cause) {
    throw new StoreUnavailableError(`${folder}, where locks are kept by default, cannot be made`, { cause })
  }
  if (account.uid === -1) return join(folder, 'locks.db')
  refuseForeign(folder, account)
  const real = realpathSync(folder)
  refuseReplaceable(dirname(real), account)
  refuseForeign(real, account)
  const { mode } = lstatSync(real)
  if (mode & (WORLD_WRITABLE | GROUP_WRITABLE)) {
    throw refusal(real, 'others may write to it', `look what is in it, then run: chmod 700 ${real}`)
  }
  if (mode & 0o077) chmodSync(real, 0o700)
  return privateFile(join(real, 'locks.db'), account)
}

function nearestExisting(folder: string): string {
  let path = folder
  while (!existsSync(path)) path = dirname(path)
  return path
}

/** The folder for state that outlives a process, by the XDG specification. */
function stateHome(account: UserAccount): string {
  const { XDG_STATE_HOME: state, HOME: home } = account.env
  // The specification says that a relative path there has to be ignored.
  if (state && isAbsolute(state)) return state
  // "sudo" may keep HOME: files that root makes there would be root's, and links that lie there are under the user's
  // control.
  const given = home && isAbsolute(home) && belongsHere(home, account) ? home : undefined
  return join(given ?? homeOf(account), '.local', 'state')
}

function homeOf({ ownHome }: UserAccount): string {
  try {
    return ownHome()
  } catch (cause) {
    throw new StoreUnavailableError('this user has no home to keep locks in: name a store with --store', { cause })
  }
}

function belongsHere(folder: string, { uid }: UserAccount): boolean {
  const facts = lstatSync(folder, { throwIfNoEntry: false })
  return uid === -1 || facts === undefined || facts.uid === uid || facts.uid === ROOT
}

/** A symbolic link is refused, too: the user who made it decides where it leads. */
function refuseForeign(path: string, { uid }: UserAccount): void {
  const owner = lstatSync(path).uid
  if (owner === uid || (owner === ROOT && lstatSync(path).isSymbolicLink())) return
  throw refusal(path, `it belongs to another user (${owner})`, 'name a store with --store')
}

/** A user who may write to one of these folders may put another one in the place of what is in it. */
function refuseReplaceable(folder: string, { uid, gid }: UserAccount): void {
  for (let path = realpathSync(folder); ; path = dirname(path)) {
    const facts = lstatSync(path)
    if (facts.uid !== uid && facts.uid !== ROOT) {
      throw refusal(path, `it belongs to another user (${facts.uid})`, 'name a store with --store')
    }
    // The primary group of a user usually has no other members.
    const byGroup = facts.mode & GROUP_WRITABLE && facts.gid !== gid && facts.gid !== ROOT
    const byOthers = (facts.mode & WORLD_WRITABLE || byGroup) && !(facts.mode & STICKY)
    if (byOthers) throw refusal(path, 'others may write to it', `run: chmod go-w ${path}`)
    if (path === dirname(path)) return
  }
}

/** SQLite would make the file readable for all; its companions (-wal, -shm) get the mode of the file. */
function privateFile(file: string, account: UserAccount): string {
  const facts = lstatSync(file, { throwIfNoEntry: false })
  if (!facts) {
    try {
      closeSync(openSync(file, constants.O_CREAT | constants.O_EXCL | constants.O_WRONLY, 0o600))
    } catch (error) {
      // Another process of this user was faster.
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    }
    return file
  }
  if (!facts.isFile()) throw refusal(file, 'it is not a file', 'remove it')
  refuseForeign(file, account)
  if (facts.mode & 0o077) chmodSync(file, 0o600)
  return file
}

function refusal(path: string, why: string, fix: string): StoreUnavailableError {
  return new StoreUnavailableError(`locks are not kept in ${path}, because ${why}: ${fix}`)
}
