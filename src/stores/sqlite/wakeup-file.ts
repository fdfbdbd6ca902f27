/**
 * How one process notifies another at once, without a server: every process that waits or holds watches a small file of its
 * own beside the database, and the notifying process appends to it.
 *
 * A file rather than a socket: an append is complete when the call returns, so a process may release and exit, and it keeps
 * no connection open to each of the others. (The database file itself would notify of every write of any process.)
 *
 * @module
 */
import {
  type FSWatcher,
  chmodSync,
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readSync,
  readdirSync,
  rmSync,
  statSync,
  watch,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import type { SqliteEvent } from './lease-table.js'

/**
 * How long, in milliseconds, a subscriber lives without being refreshed. Its process must have died or been frozen by then;
 * shorter would cost more refreshing transactions, longer would leave more dead files to append to.
 */
export const SUBSCRIBER_TTL_MS = 60_000
/**
 * Size in bytes from which the file is emptied. A message appended at that very moment is lost: messages are hints, and a
 * waiter asks again by itself.
 */
const LARGEST_BYTES = 256 * 1024
/**
 * Bytes read per event of the file. What is behind them in a file that grew faster is dropped: other users of a shared database may
 * write to it, and a file of gigabytes read at once would end the process.
 */
const MOST_BYTES = 4 * LARGEST_BYTES
/** Bytes read at a time: a few hundred messages, so that one read is enough almost always. */
const CHUNK_BYTES = 16 * 1024
/** What follows the path of the database in the name of the directory of wake-up files. */
const SUFFIX = '-wakeups'

export interface WakeupMessage {
  key: string
  event: SqliteEvent
}

export function wakeupDirectory(databasePath: string): string {
  return databasePath + SUFFIX
}

/** This process's own file, which only other processes write to. */
export class WakeupFile {
  readonly id: string
  readonly #path: string
  readonly #fd: number
  readonly #watcher: FSWatcher
  readonly #onMessage: (message: WakeupMessage) => void
  readonly #buffer = Buffer.allocUnsafe(CHUNK_BYTES)
  #offset = 0
  /** The beginning of a message whose end has not arrived. */
  #rest = ''
  #closed = false

  /** Throws if the file cannot be created or watched: then this process is not notified, and its waiters poll. */
  constructor(directory: string, id: string, onMessage: (message: WakeupMessage) => void, onBroken: () => void) {
    this.id = id
    this.#onMessage = onMessage
    this.#path = join(directory, id)
    const mode = createDirectory(directory)
    this.#fd = openSync(this.#path, 'wx+', mode)
    try {
      fchmodSync(this.#fd, mode)
      this.#watcher = watch(this.#path, { persistent: false }, () => this.#isSound() || onBroken())
      this.#watcher.on('error', onBroken)
    } catch (error) {
      closeSync(this.#fd)
      rmSync(this.#path, { force: true })
      throw error
    }
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#watcher.close()
    closeSync(this.#fd)
    remove(this.#path)
  }

  /** An error while the file is read, thrown from an event of the file, would end the process. */
  #isSound(): boolean {
    try {
      return this.#closed || this.#read()
    } catch {
      return false
    }
  }

  /**
   * False: the file was removed, and other processes can no longer find it. Whether it was removed or emptied is only looked for
   * where nothing was appended: each of these causes a call of its own, and every wake-up would pay for one more system call.
   */
  #read(): boolean {
    if (this.#readAppended() === 0) {
      const { nlink, size } = fstatSync(this.#fd)
      if (nlink === 0 || size >= this.#offset) return nlink > 0
      // Another program emptied it: nothing behind the former end would be read until it has grown as long again.
      this.#offset = 0
      this.#rest = ''
      this.#readAppended()
    }
    if (this.#offset > LARGEST_BYTES) {
      ftruncateSync(this.#fd, 0)
      this.#offset = 0
    }
    this.#deliver()
    return true
  }

  /** Returns how many bytes were read. */
  #readAppended(): number {
    const from = this.#offset
    let length: number
    do {
      length = readSync(this.#fd, this.#buffer, 0, this.#buffer.length, this.#offset)
      this.#offset += length
      // latin1 keeps the bytes of a character that two chunks share; decode() reads them as UTF-8, message by message.
      this.#rest += this.#buffer.toString('latin1', 0, length)
    } while (length === this.#buffer.length && this.#offset - from < MOST_BYTES)
    return this.#offset - from
  }

  #deliver(): void {
    const lines = this.#rest.split('\n')
    this.#rest = lines.pop() as string
    // No message is so long: without this, what has no line break would be kept for ever.
    if (this.#rest.length > LARGEST_BYTES) this.#rest = ''
    for (const line of lines) {
      const message = decode(line)
      if (message) this.#onMessage(message)
      if (this.#closed) break
    }
  }
}

/**
 * How a wake-up file is opened to append to it. Users who share the database may put anything in its place: a link would have this
 * process write to a file of its own user, and opening a named pipe would block it for ever.
 */
const APPENDING = constants.O_WRONLY | constants.O_APPEND | (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0)

/** An id comes from the database. One with a path in it would name a file outside of the directory. */
function isFileName(id: string): boolean {
  return /^[\w-]+$/.test(id)
}

/** Appends to the file of another process. A process that has ended meanwhile needs no notification, so errors are ignored. */
export function notify(directory: string, id: string, messages: readonly WakeupMessage[]): void {
  if (!isFileName(id)) return
  // The newline in front ends a message that a process which died in the middle of writing left behind: ours is still read.
  const text = messages.map((message) => `\n${encode(message)}\n`).join('')
  try {
    const fd = openSync(join(directory, id), APPENDING)
    try {
      writeSync(fd, text)
    } finally {
      closeSync(fd)
    }
  } catch {}
}

/**
 * Removes the files of the given dead subscribers, and of all that are not among the live ones in the database. A file younger
 * than `SUBSCRIBER_TTL_MS` stays: its process may not have added itself to the database yet.
 */
export function removeDeadFiles(
  directory: string,
  dead: readonly string[],
  known?: { live: ReadonlySet<string>; date: number },
): void {
  try {
    for (const id of dead) if (isFileName(id)) remove(join(directory, id))
    if (!known) return
    for (const id of readdirSync(directory)) {
      if (known.live.has(id)) continue
      const path = join(directory, id)
      const stat = statSync(path, { throwIfNoEntry: false })
      if (stat && known.date - stat.mtimeMs > SUBSCRIBER_TTL_MS) remove(path)
    }
  } catch {}
}

/**
 * Another program may have put a folder in its place, which stays. As an error it would end the process whose file is replaced, or
 * the clean-up of all other files.
 */
function remove(path: string): void {
  try {
    rmSync(path, { force: true })
  } catch {}
}

/** Users who may write to the database may notify, and no others. Returns the mode for a wake-up file. */
function createDirectory(directory: string): number {
  const mode = statSync(directory.slice(0, -SUFFIX.length)).mode & 0o666
  if (mkdirSync(directory, { recursive: true })) chmodSync(directory, mode | ((mode & 0o444) >> 2))
  return mode
}

function encode({ key, event }: WakeupMessage): string {
  return JSON.stringify({ key, event: 'token' in event ? { ...event, token: String(event.token) } : event })
}

function decode(line: string): WakeupMessage | undefined {
  if (line === '') return undefined
  try {
    const { key, event } = JSON.parse(Buffer.from(line, 'latin1').toString()) as WakeupMessage
    return { key, event: 'token' in event ? { ...event, token: BigInt(event.token) } : event }
  } catch {
    return undefined
  }
}
