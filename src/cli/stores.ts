import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { InvalidOptionError, StoreUnavailableError } from '../errors.js'
import type { Locks } from '../locks.js'
import type { Store } from '../store.js'
import type { Input, OptionSpec } from './command.js'
import { defaultFile, thisAsker } from './state-folder.js'
import { UsageError } from './usage-error.js'

export const storeOption: { store: OptionSpec; 'store-file': OptionSpec } = {
  store: {
    value: 'URL',
    help: 'where locks are kept (default $LEASEHOLD_STORE, else a file in your state directory: this user, this machine)',
  },
  'store-file': { value: 'FILE', help: 'read that URL from a file that only its owner can read' },
}

/** The most that giving back what is ours may take: from then on it runs out by itself. */
const CLEAN_UP_MS = 2_000
/** The same after an outage: a server that did not answer will hardly do so now, and `--wait` is over. */
const OUTAGE_CLEAN_UP_MS = 300

/** Opens the store that was asked for, lets `use` work on its locks, and closes it again. */
export async function withStore<T>(input: Input, use: (locks: Locks) => Promise<T>): Promise<T> {
  const url = storeUrl(input) ?? `sqlite:${encodeURI(defaultFile(thisAsker()))}`
  if (url.startsWith('memory:')) {
    throw new UsageError('the store memory: lives inside one process, so that nobody else could see the lock')
  }
  // Only now: help and bad usage need not wait for it.
  const { createLocks } = await import('../index.js')
  const store = await openQuietly(input, url)
  const locks = createLocks(store)
  let cleanUpMs = CLEAN_UP_MS
  try {
    return await use(locks)
  } catch (error) {
    if (error instanceof StoreUnavailableError) cleanUpMs = OUTAGE_CLEAN_UP_MS
    throw error
  } finally {
    // A request that stopped waiting still has a queue entry to give back.
    await Promise.race([close(locks, store), sleep(cleanUpMs)])
  }
}

async function close(locks: Locks, store: Store): Promise<void> {
  await locks.close({ grace: 0 })
  await store.close()
}

/** The URL that was typed, is in the named file, or in the environment. */
export function storeUrl(input: Input): string | undefined {
  const file = input.value('store-file')
  if (file === undefined) return input.value('store') || process.env.LEASEHOLD_STORE || undefined
  if (input.has('store')) throw new UsageError('--store and --store-file exclude each other')
  return urlIn(file)
}

/** What stands in a file is a secret: no error shows any of it. */
async function openQuietly(input: Input, url: string): Promise<Store> {
  const { openStore } = await import('../index.js')
  try {
    return await openStore(url)
  } catch (error) {
    if (!(error instanceof InvalidOptionError) || !input.has('store-file')) throw error
    throw new UsageError(`the URL in ${input.value('store-file')} is not one of a store: ${error.option} is wrong`)
  }
}

function urlIn(file: string): string {
  const refuse = (why: string): UsageError => new UsageError(`--store-file ${file}: ${why}`)
  let descriptor: number
  try {
    descriptor = openSync(file, 'r')
  } catch (error) {
    throw refuse(`it cannot be read (${(error as NodeJS.ErrnoException).code})`)
  }
  try {
    // Of what was opened: under the same name there may be another file by now.
    const { mode, uid } = fstatSync(descriptor)
    const self = process.geteuid?.()
    if (self !== undefined && uid !== self && uid !== 0) throw refuse(`it belongs to another user (${uid})`)
    if (self !== undefined && mode & 0o077) throw refuse(`others can read or change it; run: chmod 600 ${file}`)
    const [line = ''] = readFileSync(descriptor, 'utf8').trim().split('\n')
    if (!/^[a-z][a-z+]*:/.test(line)) throw refuse('its first line is not the URL of a store')
    return line.trim()
  } finally {
    closeSync(descriptor)
  }
}
