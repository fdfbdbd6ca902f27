import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { InvalidOptionError, StoreUnavailableError } from '../errors.js'
import type { Locks } from '../locks.js'
import type { Input, OptionSpec } from './command.js'
import { defaultFile, currentAccount } from './state-folder.js'
import { UsageError } from './usage-error.js'

export const storeOption: { store: OptionSpec; 'store-file': OptionSpec } = {
  store: {
    value: 'URL',
    help: 'where locks are kept (default $LEASEHOLD_STORE, else a file in your state directory: this user, this machine)',
  },
  'store-file': { value: 'FILE', help: 'read that URL from a file that only its owner can read', file: true },
}

/** The most that closing may take, in milliseconds. Leases that could not be released by then expire by their ttl. */
const CLOSE_TIMEOUT_MS = 2_000
/** The same after an outage: a server that did not answer will hardly answer now, and `--wait` must be respected. */
const OUTAGE_CLOSE_TIMEOUT_MS = 300

/** Opens the store that the options name, calls `use` with its locks, and closes it. */
export async function withStore<T>(input: Input, use: (locks: Locks) => Promise<T>): Promise<T> {
  const locks = await openWithoutLeaks(input, sharedStoreUrl(input))
  let cleanUpMs = CLOSE_TIMEOUT_MS
  try {
    return await use(locks)
  } catch (error) {
    if (error instanceof StoreUnavailableError) cleanUpMs = OUTAGE_CLOSE_TIMEOUT_MS
    throw error
  } finally {
    // A request that stopped waiting still has a queue entry to remove.
    await Promise.race([locks.close({ grace: 0 }), sleep(cleanUpMs)])
  }
}

/** The URL of a store that other processes can see: from the options, or the default one. */
export function sharedStoreUrl(input: Input): string {
  const url = storeUrl(input) ?? `sqlite:${encodeURI(defaultFile(currentAccount()))}`
  if (!url.startsWith('memory:')) return url
  throw new UsageError('the store memory: lives inside one process, so that no other process could see the lock')
}

/** The URL from the options, from the named file, or from the environment. */
export function storeUrl(input: Input): string | undefined {
  const file = input.value('store-file')
  // With --store "$URL" and URL unset, a lock for all machines would become one for this user and this machine.
  if (input.value('store') === '') throw new UsageError('--store takes URL; it was empty')
  if (file === undefined) return input.value('store') ?? (process.env.LEASEHOLD_STORE || undefined)
  if (input.has('store')) throw new UsageError('--store and --store-file exclude each other')
  return urlIn(file)
}

async function openWithoutLeaks(input: Input, url: string): Promise<Locks> {
  // Imported late: help and bad usage need not wait for it.
  const { openLocks } = await import('../index.js')
  return withoutLeaks(input, () => openLocks(url))
}

/** The content of a store file is a secret: no error of `open` shows any of it. */
export async function withoutLeaks<T>(input: Input, open: () => Promise<T>): Promise<T> {
  try {
    return await open()
  } catch (error) {
    if (!(error instanceof InvalidOptionError) || !input.has('store-file')) throw error
    throw new UsageError(`the URL in ${input.value('store-file')} is not one of a store: ${error.option} is wrong`)
  }
}

function urlIn(file: string): string {
  const line = secretLineIn('--store-file', file)
  if (!/^[a-z][a-z+]*:/.test(line)) {
    throw new UsageError(`--store-file ${file}: its first line is not the URL of a store`)
  }
  return line
}

/** The first line of a file that only its owner can read. */
export function secretLineIn(option: string, file: string): string {
  const refuse = (why: string): UsageError => new UsageError(`${option} ${file}: ${why}`)
  let descriptor: number
  try {
    descriptor = openSync(file, 'r')
  } catch (error) {
    throw refuse(`it cannot be read (${(error as NodeJS.ErrnoException).code})`)
  }
  try {
    // fstat, not stat: another file may have this name by now.
    const facts = fstatSync(descriptor)
    const { mode, uid } = facts
    if (facts.isDirectory()) throw refuse('it is a directory')
    const self = process.geteuid?.()
    if (self !== undefined && uid !== self && uid !== 0) throw refuse(`it belongs to another user (${uid})`)
    if (self !== undefined && mode & 0o077) throw refuse(`others can read or change it; run: chmod 600 ${file}`)
    const [line = ''] = readFileSync(descriptor, 'utf8').trim().split('\n')
    return line.trim()
  } finally {
    closeSync(descriptor)
  }
}
