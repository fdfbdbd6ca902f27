/**
 * What breaks locks in an SQLite file: a file system without locks, missing rights, and others who may write to it.
 *
 * @module
 */
import type { Stats } from 'node:fs'
import { realpath, stat, statfs } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { StoreUnavailableError } from '../errors.js'
import { type Defect, type DoctorOptions, type Examination, within } from './check.js'
import { trialOf } from './trial.js'

/** What statfs(2) says of file systems on which SQLite's locks or its shared memory do not work between machines. */
const NETWORK: Readonly<Record<number, string>> = {
  0x6969: 'NFS',
  0xff534d42: 'CIFS',
  0xfe534d42: 'SMB2',
  0x517b: 'SMB',
  0x01021997: '9P',
  0x5346414f: 'AFS',
  0x00c36400: 'Ceph',
  0x0bd00bd0: 'Lustre',
  0x01161970: 'GFS2',
  0x7461636f: 'OCFS2',
  0x786f4256: 'VirtualBox shared folder',
  0xbacbacbc: 'VMware shared folder',
  0x47504653: 'GPFS',
}
/** May be anything: sshfs, GlusterFS, a cloud drive, or a local disk. */
const FUSE = 0x65735546
const OVERLAY = 0x794c7630

/** Less free space in bytes: the write-ahead log alone takes 4 MB. */
const LEAST_FREE = 16 * 2 ** 20

const WRITE = 0o2
const GROUP_WRITE = 0o020
const OTHERS_WRITE = 0o002
const STICKY = 0o1000

/** The user that runs this process. */
export interface FileUser {
  uid: number
  groups: readonly number[]
}

/** Nothing here is synchronous: on a file system whose server is gone, a call may never return. */
export async function examineSqlite(url: string, { timeoutMs }: DoctorOptions): Promise<Examination> {
  const asked = resolve(decoded(url.slice('sqlite:'.length)))
  const there = await within(timeoutMs, isThere(asked))
  // What a link leads to is what others may write to.
  const file = there ? await within(timeoutMs, realpath(asked)) : asked
  const nearest = await within(timeoutMs, nearestExisting(dirname(file)))
  if (!(await stat(nearest)).isDirectory()) throw new StoreUnavailableError(`${nearest} is not a folder`)
  const user = currentUser()
  // A trial would make the file, perhaps at a path that was mistyped. And it is synchronous: it must not be begun on a file
  // system that does not answer.
  const trial = trialOf('sqlite', url)
  return {
    server: there ? `SQLite, ${file}` : `SQLite, ${file} (not there yet)`,
    close: async () => {},
    checks: [
      {
        id: 'sqlite.file-system',
        worst: 'danger',
        looksAt: 'the file system',
        run: async () => judgeFileSystem((await statfs(nearest)).type, nearest),
      },
      {
        id: 'sqlite.space',
        worst: 'danger',
        looksAt: 'the free space',
        run: async () => {
          const { bavail, bsize } = await statfs(nearest)
          return judgeSpace(bavail * bsize, nearest)
        },
      },
      {
        id: 'sqlite.rights',
        worst: 'danger',
        looksAt: 'the rights of this user',
        run: () => judgeRights(file, nearest, user),
      },
      {
        id: 'sqlite.others',
        worst: 'danger',
        looksAt: 'the rights of other users',
        run: () => judgeOthers(file, nearest, user),
      },
      { ...trial, skip: !there, run: () => stat(file).then(() => trial.run()) },
    ],
  }
}

/** As the store reads its URL: what is no escape is a plain character. */
function decoded(path: string): string {
  try {
    return decodeURI(path)
  } catch {
    return path
  }
}

async function isThere(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  )
}

async function nearestExisting(folder: string): Promise<string> {
  let path = folder
  while (!(await isThere(path))) path = dirname(path)
  return realpath(path)
}

function currentUser(): FileUser | undefined {
  const uid = process.geteuid?.()
  if (uid === undefined) return undefined
  return { uid, groups: [process.getegid?.() ?? -1, ...(process.getgroups?.() ?? [])] }
}

/** `type`: of statfs(2). Exported for its test, which cannot mount a network file system. */
export function judgeFileSystem(type: number, folder: string): Defect | undefined {
  const network = NETWORK[type >>> 0]
  const evidence = `${folder} is on ${network ?? (type === FUSE ? 'FUSE' : 'overlayfs')}`
  if (network !== undefined) {
    return {
      severity: 'danger',
      summary: 'on a network file system two machines can hold the same lock',
      evidence,
      fix: 'a file on a local disk, for the processes of one machine; for several machines Redis or PostgreSQL',
    }
  }
  if (type === FUSE) {
    return {
      severity: 'warning',
      summary: 'this file system may be one of the network, on which two machines can hold the same lock',
      evidence,
      fix: 'a file on a local disk, unless you know that this one is local and supports shared memory maps',
    }
  }
  if (type !== OVERLAY) return undefined
  return {
    severity: 'note',
    summary: "the file is in a container's own layer: other containers do not see it, and it ends with this one",
    evidence,
    fix: 'a volume that all containers of this machine share, if they should exclude each other',
  }
}

function judgeSpace(free: number, folder: string): Defect | undefined {
  if (free >= LEAST_FREE) return undefined
  return {
    severity: free < LEAST_FREE / 8 ? 'danger' : 'warning',
    summary: 'the disk is full, or nearly: then no lock can be acquired or renewed',
    evidence: `${Math.floor(free / 2 ** 10)} KiB free for ${folder}`,
    fix: 'make room',
  }
}

/** A file or folder of the store, and who may do what with it. */
interface PathFacts {
  path: string
  stats: Stats
}

/** Of those that are there. */
async function factsOf(...paths: string[]): Promise<PathFacts[]> {
  const found = await Promise.all(paths.map(async (path) => ({ path, stats: await stat(path).catch(() => undefined) })))
  return found.filter((one): one is PathFacts => one.stats !== undefined)
}

/** Exported for its test, which has one user only. */
export async function judgeRights(
  file: string,
  folder: string,
  user: FileUser | undefined,
): Promise<Defect | undefined> {
  if (!user || user.uid === 0) return undefined
  const parts = await factsOf(folder, file, `${file}-wal`, `${file}-shm`, `${file}-wakeups`)
  const closed = parts.filter(({ stats }) => !mayWrite(stats, user))
  if (closed.length === 0) return undefined
  return {
    severity: 'danger',
    summary: 'this user may not write where the locks are kept',
    evidence: closed.map(rightsOf).join('; '),
    fix: 'let a group own the folder and all files of the store, and let it write: chgrp, chmod g+rwX; or a file of your own',
  }
}

/** Exported for the same reason. */
export async function judgeOthers(
  file: string,
  folder: string,
  user: FileUser | undefined,
): Promise<Defect | undefined> {
  if (!user) return undefined
  const parts = await factsOf(file, `${file}-wal`, `${file}-shm`, folder)
  // In a sticky folder, as /tmp is, nobody can replace the files of others.
  const open = parts.filter(({ stats: { mode } }) => mode & OTHERS_WRITE && !(mode & STICKY))
  if (open.length > 0) {
    return {
      severity: 'danger',
      summary: 'every user of this machine may end every lock in it, or put another file in its place',
      evidence: open.map(rightsOf).join('; '),
      fix: `chmod o-w ${open.map(({ path }) => path).join(' ')}`,
    }
  }
  const shared = parts.filter(({ stats: { uid, gid, mode } }) => {
    const foreign = uid !== user.uid && uid !== 0
    return foreign || (mode & GROUP_WRITE && gid !== user.groups[0] && gid !== 0)
  })
  if (shared.length === 0) return undefined
  return {
    severity: 'note',
    summary: 'other users may write to it, and so end every lock in it',
    evidence: shared.map(rightsOf).join('; '),
    fix: 'nothing, if they are meant to share the locks; else a file of your own',
  }
}

function mayWrite({ mode, uid, gid }: Stats, user: FileUser): boolean {
  const shift = uid === user.uid ? 6 : user.groups.includes(gid) ? 3 : 0
  return ((mode >> shift) & WRITE) !== 0
}

function rightsOf({ path, stats: { mode, uid, gid } }: PathFacts): string {
  return `${path}: mode ${(mode & 0o7777).toString(8)}, user ${uid}, group ${gid}`
}
