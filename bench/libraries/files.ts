// Locks of one machine: SQLite, and lock files.
import { mkdirSync, watch } from 'node:fs'
import { open as openFile, unlink } from 'node:fs/promises'
import { join } from 'node:path'
import type * as library from '../../src/index.js'
import type * as sqliteStore from '../../src/stores/sqlite/index.js'
import type { OpenLocker } from './locker.js'

const WAIT_MS = 60_000
/** A lock file's holder may be gone before the watcher is there: look again after this long in any case. */
const LOOK_AGAIN_MS = 50

export const leaseholdSqlite: OpenLocker = async (context) => {
  const { createLocks } = await context.leasehold<typeof library>('index.js')
  const { sqlite } = await context.leasehold<typeof sqliteStore>('stores/sqlite/index.js')
  const locks = createLocks(sqlite(join(context.address.folder, 'leasehold.db')), { wait: WAIT_MS })
  return {
    async acquire(name) {
      const lock = await locks.acquire(name)
      return () => lock.release()
    },
  }
}

/** Created exclusively, with the owner in it; a waiter is told by the operating system that it is gone. No ttl. */
export const lockFile: OpenLocker = async (context) => {
  const folder = join(context.address.folder, 'lock-files')
  mkdirSync(folder, { recursive: true })
  const waiters = new Set<() => void>()
  watch(folder, () => {
    for (const wake of waiters) wake()
  }).unref()
  const create = async (path: string): Promise<boolean> => {
    try {
      const file = await openFile(path, 'wx')
      await file.write(context.prefix)
      await file.close()
      return true
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
      throw error
    }
  }
  const changed = (): Promise<void> =>
    new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer)
        waiters.delete(wake)
        resolve()
      }
      const timer = setTimeout(wake, LOOK_AGAIN_MS)
      waiters.add(wake)
    })
  return {
    async acquire(name) {
      const path = join(folder, name.replaceAll(':', '-'))
      while (!(await create(path))) await changed()
      return () => unlink(path)
    },
  }
}

export const properLockfile =
  (retryMs?: number): OpenLocker =>
  async (context) => {
    const { lock } = context.peer<{ lock(path: string, options: object): Promise<() => Promise<void>> }>(
      'proper-lockfile',
    )
    const folder = join(context.address.folder, 'proper-lockfile')
    mkdirSync(folder, { recursive: true })
    const retry =
      retryMs === undefined ? {} : { retries: { retries: WAIT_MS / retryMs, minTimeout: retryMs, maxTimeout: retryMs } }
    return { acquire: (name) => lock(join(folder, name.replaceAll(':', '-')), { realpath: false, ...retry }) }
  }
