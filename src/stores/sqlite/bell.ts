/**
 * How one process tells another at once, without a server: every process that waits watches a small file of its own
 * beside the database, and whoever lets go appends to it.
 *
 * A file rather than a socket: appending is over when the call returns, so a process may release and exit, and it needs
 * no connection kept open to each of the others. (The database file itself would ring at every write of anybody.)
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
import type { WakeUp } from './books.js'

/** A bell that has not been refreshed for this long belongs to a dead process. */
export const BELL_LEASE_MS = 60_000
/** Begin the file anew beyond this. What is appended at that very moment is lost: these are hints, somebody asks again. */
const LARGEST = 256 * 1024

export interface Message {
  key: string
  event: WakeUp
}

/** Our own bell: a file that only others write to. */
export class Bell {
  readonly id: string
  readonly #path: string
  readonly #fd: number
  readonly #watcher: FSWatcher
  readonly #hear: (message: Message) => void
  readonly #buffer = Buffer.allocUnsafe(16 * 1024)
  #offset = 0
  /** The beginning of a message whose end has not arrived. */
  #rest = ''
  #closed = false

  /** Throws if it cannot be: then nothing rings, and whoever waits has to poll. */
  constructor(directory: string, id: string, hear: (message: Message) => void, onBroken: () => void) {
    this.id = id
    this.#hear = hear
    this.#path = join(directory, id)
    const mode = openDirectory(directory)
    this.#fd = openSync(this.#path, 'wx+', mode)
    try {
      fchmodSync(this.#fd, mode)
      this.#watcher = watch(this.#path, { persistent: false }, () => (this.#gone() ? onBroken() : this.#listen()))
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
    rmSync(this.#path, { force: true })
  }

  /** Somebody removed the file: others can no longer find it. */
  #gone(): boolean {
    return this.#closed || fstatSync(this.#fd).nlink === 0
  }

  #listen(): void {
    for (;;) {
      const length = readSync(this.#fd, this.#buffer, 0, this.#buffer.length, this.#offset)
      if (length === 0) break
      this.#offset += length
      // latin1 keeps bytes apart that a chunk may cut in two; decode() puts them together per message.
      this.#rest += this.#buffer.toString('latin1', 0, length)
    }
    if (this.#offset > LARGEST) {
      ftruncateSync(this.#fd, 0)
      this.#offset = 0
    }
    const lines = this.#rest.split('\n')
    this.#rest = lines.pop() as string
    for (const line of lines) {
      const message = decode(line)
      if (message) this.#hear(message)
      if (this.#closed) return
    }
  }
}

/** Rings the bell of another process. That it has gone meanwhile is no trouble of ours. */
export function ring(directory: string, id: string, messages: readonly Message[]): void {
  // Also in front: if somebody died in the middle of its last message, ours is still read.
  const text = messages.map((message) => `\n${encode(message)}\n`).join('')
  try {
    const fd = openSync(join(directory, id), constants.O_WRONLY | constants.O_APPEND)
    try {
      writeSync(fd, text)
    } finally {
      closeSync(fd)
    }
  } catch {}
}

/** Bells that are named nowhere in the database, and those told to be dead. A young one may not be written down yet. */
export function clearDeadBells(
  directory: string,
  dead: readonly string[],
  known?: { live: ReadonlySet<string>; date: number },
): void {
  try {
    for (const id of dead) rmSync(join(directory, id), { force: true })
    if (!known) return
    for (const id of readdirSync(directory)) {
      if (known.live.has(id)) continue
      const path = join(directory, id)
      const stat = statSync(path, { throwIfNoEntry: false })
      if (stat && known.date - stat.mtimeMs > BELL_LEASE_MS) rmSync(path, { force: true })
    }
  } catch {}
}

/** Whoever may write to the database may ring, and nobody else. Returns the mode for a bell. */
function openDirectory(directory: string): number {
  const mode = statSync(directory.replace(/-bells$/, '')).mode & 0o666
  if (mkdirSync(directory, { recursive: true })) chmodSync(directory, mode | ((mode & 0o444) >> 2))
  return mode
}

function encode({ key, event }: Message): string {
  return JSON.stringify({ key, event: 'token' in event ? { ...event, token: String(event.token) } : event })
}

function decode(line: string): Message | undefined {
  if (line === '') return undefined
  try {
    const { key, event } = JSON.parse(Buffer.from(line, 'latin1').toString()) as Message
    return { key, event: 'token' in event ? { ...event, token: BigInt(event.token) } : event }
  } catch {
    return undefined
  }
}
