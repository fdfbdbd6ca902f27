// The processes of one library, seen from the parent.
import { type ChildProcess, fork } from 'node:child_process'
import type { Start } from './child.js'
import type { Member } from './types.js'

/** A process loads a library and connects within this, or the library counts as failed. */
const OPEN_LIMIT_MS = 30_000
/** Longest answer to a call that names no limit of its own. */
const CALL_LIMIT_MS = 60_000
/** Lines of a process's error output that are kept for the message if it fails. */
const LAST_WORDS = 2_000

interface Pending {
  resolve(result: unknown): void
  reject(error: Error): void
  timer: NodeJS.Timeout
}

interface Reply {
  id: number
  result?: unknown
  error?: string
}

class LibraryProcess implements Member {
  readonly #child: ChildProcess
  readonly #pending = new Map<number, Pending>()
  #lastId = 0
  #said = ''
  readonly opened: Promise<unknown>

  constructor(program: string, start: Start) {
    this.#child = fork(program, [JSON.stringify(start)], {
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      execArgv: ['--expose-gc'],
      env: { ...process.env, NODE_OPTIONS: '' },
    })
    this.opened = this.#expect(0, `opening ${start.library}`, OPEN_LIMIT_MS)
    this.#child.on('message', (reply: Reply) => this.#settle(reply))
    this.#child.stderr?.on('data', (text: Buffer) => (this.#said = `${this.#said}${text}`.slice(-LAST_WORDS)))
    this.#child.on('exit', (code, signal) => {
      for (const id of this.#pending.keys()) this.#settle({ id, error: `its process ended (${code ?? signal})` })
    })
  }

  #expect(id: number, what: string, limitMs: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#settle({ id, error: `${what} took longer than ${limitMs} ms` }), limitMs)
      this.#pending.set(id, { resolve, reject, timer })
    })
  }

  #settle({ id, result, error }: Reply): void {
    const pending = this.#pending.get(id)
    if (!pending) return
    this.#pending.delete(id)
    clearTimeout(pending.timer)
    if (error === undefined) pending.resolve(result)
    else pending.reject(new Error(`${error}\n${this.#said}`.trim()))
  }

  call<T>(name: string, args: object = {}, limitMs: number = CALL_LIMIT_MS): Promise<T> {
    const id = ++this.#lastId
    const answer = this.#expect(id, `"${name}"`, limitMs)
    if (this.#child.connected) this.#child.send({ id, name, args })
    else this.#settle({ id, error: 'its process has ended' })
    return answer as Promise<T>
  }

  async close(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const gone = new Promise((resolve) => this.#child.once('exit', resolve))
    this.#child.kill('SIGKILL')
    await gone
  }
}

export interface Crew {
  members: readonly Member[]
  close(): Promise<void>
}

export async function openCrew(program: string, size: number, start: Omit<Start, 'member'>): Promise<Crew> {
  const members = Array.from({ length: size }, (_, member) => new LibraryProcess(program, { ...start, member }))
  const close = async (): Promise<void> => {
    await Promise.all(members.map((member) => member.close()))
  }
  try {
    await Promise.all(members.map((member) => member.opened))
    return { members, close }
  } catch (error) {
    await close()
    throw error
  }
}
