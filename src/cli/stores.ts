import { mkdirSync } from 'node:fs'
import { homedir } from 'node:os'
import { isAbsolute, join } from 'node:path'
import { StoreUnavailableError } from '../errors.js'
import type { Locks } from '../locks.js'
import { type Input, type OptionSpec, UsageError } from './command.js'

export const storeOption: { store: OptionSpec } = {
  store: { value: 'URL', help: 'where locks are kept (default $LEASEHOLD_STORE, else a file in your state directory)' },
}

/** Opens the store that was asked for, lets `use` work on its locks, and closes it again. */
export async function withStore<T>(input: Input, use: (locks: Locks) => Promise<T>): Promise<T> {
  const url = input.value('store') || process.env.LEASEHOLD_STORE || defaultStore()
  if (url.startsWith('memory:')) {
    throw new UsageError('the store memory: lives inside one process, so that nobody else could see the lock')
  }
  // Only now: help and bad usage need not wait for it.
  const { createLocks, openStore } = await import('../index.js')
  const store = await openStore(url)
  const locks = createLocks(store)
  try {
    return await use(locks)
  } finally {
    // Whoever stopped waiting still has a place in line to give back.
    await locks.close({ grace: 0 })
    await store.close()
  }
}

/** One file for all processes of this user on this machine, where programs keep what outlives them. */
function defaultStore(): string {
  const { XDG_STATE_HOME: state } = process.env
  // The specification says that a relative path there has to be ignored.
  const base = state && isAbsolute(state) ? state : join(homedir(), '.local', 'state')
  const folder = join(base, 'leasehold')
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 })
  } catch (cause) {
    throw new StoreUnavailableError(`${folder}, where locks are kept by default, cannot be made`, { cause })
  }
  return `sqlite:${encodeURI(join(folder, 'locks.db'))}`
}
