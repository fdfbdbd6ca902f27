import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { SystemUser } from './user.js'

// The client of reaper.mjs: one reaper for all servers that this process starts.

export interface Exit {
  code: number | null
  signal: string | null
}

interface Reply {
  id?: number
  error?: string
  dir?: string
  pid?: number
  exited?: number
  code?: number | null
  signal?: string | null
}

const DEAD = 'the process that runs the test servers has ended, and they with it'

class Reaper {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>
  readonly #pending = new Map<number, { resolve(reply: Reply): void; reject(error: Error): void }>()
  readonly #exits = new Map<number, (exit: Exit) => void>()
  readonly #exited = new Map<number, Promise<Exit>>()
  #lastId = 0
  #waits = 0
  #dead = false

  constructor() {
    const script = fileURLToPath(new URL('./reaper.mjs', import.meta.url))
    const runner = process.channel ? [String(process.ppid)] : []
    // detached: the reaper must survive a Ctrl-C that ends this process. NODE_OPTIONS is cleared, so that no loader or
    // inspector is loaded into it.
    this.#child = spawn(process.execPath, [script, ...runner], {
      detached: true,
      env: { ...process.env, NODE_OPTIONS: '' },
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    createInterface({ input: this.#child.stdout }).on('line', (line) => this.#receive(JSON.parse(line) as Reply))
    this.#child.stdin.on('error', () => {})
    this.#child.on('exit', () => {
      this.#dead = true
      for (const waiting of this.#pending.values()) waiting.reject(new Error(DEAD))
      for (const settle of this.#exits.values()) settle({ code: null, signal: 'SIGKILL' })
    })
    this.#keepAlive('unref')
  }

  /** Servers alone never keep this process running. Only a pending call to the reaper does. */
  async #whileAwake<T>(work: Promise<T>): Promise<T> {
    if (this.#waits++ === 0) this.#keepAlive('ref')
    try {
      return await work
    } finally {
      if (--this.#waits === 0) this.#keepAlive('unref')
    }
  }

  #keepAlive(word: 'ref' | 'unref'): void {
    this.#child[word]()
    for (const pipe of [this.#child.stdin, this.#child.stdout]) (pipe as Socket)[word]()
  }

  #receive(reply: Reply): void {
    if (reply.exited !== undefined) {
      void this.exitOf(reply.exited) // exitOf() may not have been called yet.
      this.#exits.get(reply.exited)?.({ code: reply.code ?? null, signal: reply.signal ?? null })
      return
    }
    const waiting = this.#pending.get(reply.id as number)
    this.#pending.delete(reply.id as number)
    if (reply.error === undefined) waiting?.resolve(reply)
    else waiting?.reject(new Error(reply.error))
  }

  #ask(request: object): Promise<Reply> {
    if (this.#dead) return Promise.reject(new Error(DEAD))
    const id = ++this.#lastId
    const reply = new Promise<Reply>((resolve, reject) => this.#pending.set(id, { resolve, reject }))
    this.#child.stdin.write(`${JSON.stringify({ id, ...request })}\n`)
    return this.#whileAwake(reply)
  }

  /** Makes an empty directory in the system's temporary one, owned by `user`. */
  async makeDir(prefix: string, user?: SystemUser): Promise<string> {
    return (await this.#ask({ do: 'dir', prefix, ...user })).dir as string
  }

  async spawn(dir: string, argv: string[], log: string, user?: SystemUser): Promise<number> {
    return (await this.#ask({ do: 'spawn', dir, argv, log, ...user })).pid as number
  }

  /** Resolves when the process has ended, even if it ended before the call. */
  exitOf(pid: number): Promise<Exit> {
    let exit = this.#exited.get(pid)
    if (!exit) {
      exit = new Promise((resolve) => this.#exits.set(pid, resolve))
      this.#exited.set(pid, exit)
    }
    return exit
  }

  async awaitExit(pid: number, withinMs: number): Promise<boolean> {
    const giveUp = new AbortController()
    const ended = this.exitOf(pid).then(() => true)
    const timeout = sleep(withinMs, false, { signal: giveUp.signal }).catch(() => false)
    try {
      return await this.#whileAwake(Promise.race([ended, timeout]))
    } finally {
      giveUp.abort()
    }
  }

  /** Runs a command that ends by itself. The reaper runs it, so that it is not left behind either. */
  async run(dir: string, argv: string[], user?: SystemUser): Promise<void> {
    const pid = await this.spawn(dir, argv, 'log', user)
    const { code, signal } = await this.#whileAwake(this.exitOf(pid))
    if (code !== 0)
      throw new Error(`${argv.join(' ')} ended with ${code ?? signal}\n${readFileSync(join(dir, 'log'), 'utf8')}`)
  }

  /** SIGSTOP, SIGCONT and SIGKILL are sent to the children too, and have taken effect when this resolves. */
  async signal(pid: number, signal: NodeJS.Signals): Promise<void> {
    await this.#ask({ do: 'signal', pid, signal })
  }

  async remove(dir: string): Promise<void> {
    await this.#ask({ do: 'remove', dir })
  }
}

let shared: Reaper | undefined

export function reaper(): Reaper {
  shared ??= new Reaper()
  return shared
}
