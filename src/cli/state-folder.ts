/**
 * The folder of the default store, which must be of no use to another user: whoever can write to the file can end every
 * lock in it, and whoever can replace it lets two holders run side by side.
 *
 * @module
 */
import { chmodSync, closeSync, constants, existsSync, lstatSync, mkdirSync, openSync, realpathSync } from 'node:fs'
import { userInfo } from 'node:os'
import { dirname, isAbsolute, join } from 'node:path'
import { StoreUnavailableError } from '../errors.js'

/** Who asks, and what the environment says. */
export interface Asker {
  env: { XDG_STATE_HOME?: string | undefined; HOME?: string | undefined }
  uid: number
  gid: number
  /** The home that the system knows for this user, whatever HOME says. */
  ownHome: () => string
}

const ROOT = 0
const WORLD_WRITABLE = 0o002
const GROUP_WRITABLE = 0o020
/** As /tmp has it: nobody can rename or remove what belongs to another. */
const STICKY = 0o1000

export function thisAsker(): Asker {
  // Absent on Windows, where files have no such owners.
  const uid = process.geteuid?.() ?? -1
  return { env: process.env, uid, gid: process.getegid?.() ?? -1, ownHome: () => userInfo().homedir }
}

/** The path of the default store's file: its folder is made if it is missing, and refused if another user has a hand in it. */
export function defaultFile(asker: Asker): string {
  const folder = join(stateHome(asker), 'leasehold')
  // Before anything is made: root would leave folders of its own to a user who could not use them any more.
  if (asker.uid !== -1) refuseReplaceable(nearestExisting(dirname(folder)), asker)
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 })
  } catch (cause) {
    throw new StoreUnavailableError(`${folder}, where locks are kept by default, cannot be made`, { cause })
  }
  if (asker.uid === -1) return join(folder, 'locks.db')
  refuseForeign(folder, asker)
  const real = realpathSync(folder)
  refuseReplaceable(dirname(real), asker)
  refuseForeign(real, asker)
  const { mode } = lstatSync(real)
  if (mode & (WORLD_WRITABLE | GROUP_WRITABLE)) {
    throw refusal(real, 'others may write to it', `look what is in it, then run: chmod 700 ${real}`)
  }
  if (mode & 0o077) chmodSync(real, 0o700)
  return privateFile(join(real, 'locks.db'), asker)
}

function nearestExisting(folder: string): string {
  let path = folder
  while (!existsSync(path)) path = dirname(path)
  return path
}

/** Where programs keep what outlives them. */
function stateHome(asker: Asker): string {
  const { XDG_STATE_HOME: state, HOME: home } = asker.env
  // The specification says that a relative path there has to be ignored.
  if (state && isAbsolute(state)) return state
  // "sudo" may keep HOME: what root makes there would be root's, and whatever lies there is under the user's control.
  const given = home && isAbsolute(home) && belongsHere(home, asker) ? home : undefined
  return join(given ?? homeOf(asker), '.local', 'state')
}

function homeOf({ ownHome }: Asker): string {
  try {
    return ownHome()
  } catch (cause) {
    throw new StoreUnavailableError('this user has no home to keep locks in: name a store with --store', { cause })
  }
}

function belongsHere(folder: string, { uid }: Asker): boolean {
  const facts = lstatSync(folder, { throwIfNoEntry: false })
  return uid === -1 || facts === undefined || facts.uid === uid || facts.uid === ROOT
}

/** Also if it is a symbolic link: whoever made that decides where it leads. */
function refuseForeign(path: string, { uid }: Asker): void {
  const owner = lstatSync(path).uid
  if (owner === uid || (owner === ROOT && lstatSync(path).isSymbolicLink())) return
  throw refusal(path, `it belongs to another user (${owner})`, 'name a store with --store')
}

/** A user who may write to one of these folders may put another one in the place of what is in it. */
function refuseReplaceable(folder: string, { uid, gid }: Asker): void {
  for (let path = realpathSync(folder); ; path = dirname(path)) {
    const facts = lstatSync(path)
    if (facts.uid !== uid && facts.uid !== ROOT) {
      throw refusal(path, `it belongs to another user (${facts.uid})`, 'name a store with --store')
    }
    // A group that is one's own is usually the user's alone.
    const byGroup = facts.mode & GROUP_WRITABLE && facts.gid !== gid && facts.gid !== ROOT
    const byOthers = (facts.mode & WORLD_WRITABLE || byGroup) && !(facts.mode & STICKY)
    if (byOthers) throw refusal(path, 'others may write to it', `run: chmod go-w ${path}`)
    if (path === dirname(path)) return
  }
}

/** SQLite would make the file readable for all; its companions (-wal, -shm) get the mode of the file. */
function privateFile(file: string, asker: Asker): string {
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
  refuseForeign(file, asker)
  if (facts.mode & 0o077) chmodSync(file, 0o600)
  return file
}

function refusal(path: string, why: string, fix: string): StoreUnavailableError {
  return new StoreUnavailableError(`locks are not kept in ${path}, because ${why}: ${fix}`)
}
