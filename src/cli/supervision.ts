/**
 * A command that runs under a lock: how it is started, stopped, killed, and when it has ended with all that it started.
 *
 * @module
 */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { exitCode, exitCodeOfSignal } from './exit-codes.js'
import { say } from './output.js'
import { ProcessTree, TAGS, withTag } from './process-tree.js'

/**
 * First pause between two listings of processes that are about to end, in milliseconds: short, since the lock stays
 * held meanwhile.
 */
const POLL_DYING_MS = 10

/**
 * A process that lives this long after SIGKILL, in milliseconds, hangs in the kernel: a message then says why the lock is
 * still held.
 */
const UNKILLABLE_AFTER_MS = 2_000

export interface SupervisionOptions {
  command: readonly string[]
  /** Added to the environment of `leasehold run`. */
  env: Record<string, string>
  tag: string
  /**
   * A session of its own can be stopped as a whole. But it cannot read from a terminal, so there the command stays in
   * that session.
   */
  ownSession: boolean
  killAfterMs: number
}

/** Why a file cannot be executed, for those error codes whose own message says too little. */
const REASONS: Record<string, string> = {
  EACCES: 'it may not be executed, or is a directory',
  ENOTDIR: 'a part of its path is not a directory',
  ETXTBSY: 'something is writing to it',
  ELOOP: 'there are too many symbolic links on its path',
  E2BIG: 'its arguments and environment are too long',
}

/** The command could not be started; carries the exit status that shells give for that. */
export class NotStartedError extends Error {
  readonly exitCode: number

  constructor(file: string, { code = '', message }: NodeJS.ErrnoException) {
    const missing = code === 'ENOENT'
    const reason = REASONS[code] ? `${REASONS[code]} (${code})` : message
    super(
      missing ? `there is no command ${JSON.stringify(file)}` : `${JSON.stringify(file)} cannot be started: ${reason}`,
    )
    this.exitCode = missing ? exitCode.notFound : exitCode.notExecutable
  }
}

export class Supervision {
  readonly processes: ProcessTree
  /** Why `leasehold run` stopped or killed the command; undefined if it did not. */
  stopped: string | undefined
  /** The exit status of the command, once it has ended with everything in its session. */
  readonly ended: Promise<number>

  readonly #killAfterMs: number
  #killing: Promise<void> | undefined

  static async start(options: SupervisionOptions): Promise<Supervision> {
    const [file = '', ...args] = options.command
    const { ownSession, tag } = options
    const env = { ...process.env, ...options.env, [TAGS]: withTag(tag) }
    const child = await spawned(file, args, { stdio: 'inherit', detached: ownSession, env })
    return new Supervision(child, ProcessTree.of(child.pid as number, ownSession, tag), options.killAfterMs)
  }

  private constructor(child: ChildProcess, processes: ProcessTree, killAfterMs: number) {
    this.processes = processes
    this.#killAfterMs = killAfterMs
    this.ended = this.#untilTheEnd(child)
  }

  /** Kills every process of the command at once: another process may already hold the lock. */
  kill(why: string): void {
    this.stopped ??= why
    this.#killing ??= this.#killAll()
  }

  /** Stops the command with time to tidy up: the lock is still held for a while. */
  stop(why: string): void {
    this.stopped ??= why
    this.processes.terminateSession()
    setTimeout(() => this.kill(why), this.#killAfterMs).unref()
  }

  async #untilTheEnd(child: ChildProcess): Promise<number> {
    const [code, signal] = (await once(child, 'exit')) as [number | null, NodeJS.Signals | null]
    if (this.stopped) this.kill(this.stopped)
    else await this.#clearSession()
    await this.#killing
    return signal ? exitCodeOfSignal(signal) : (code as number)
  }

  /** Ends processes that the command left behind in its session: they would go on working after the lock is released. */
  async #clearSession(): Promise<void> {
    if (!this.processes.sessionIsAlive()) return
    this.processes.terminateSession()
    const since = performance.now()
    let killedAt: number | undefined
    let warned = false
    for (let pause = POLL_DYING_MS; this.processes.sessionIsAlive(); pause = Math.min(pause * 1.5, 100)) {
      await sleep(pause)
      const now = performance.now()
      if (now - since < this.#killAfterMs) continue
      this.processes.signalSession('SIGKILL')
      // Counted from the first SIGKILL: this process may itself have had no processor for seconds before.
      killedAt ??= now
      if (warned || now - killedAt < UNKILLABLE_AFTER_MS) continue
      warned = true
      say(
        `something that the command left behind in session ${this.processes.identity.pid} cannot be killed; still holding the lock`,
      )
    }
  }

  async #killAll(): Promise<void> {
    while (!this.processes.kill()) await sleep(POLL_DYING_MS)
  }
}

/** Node reports some errors of a start by an event and throws the others. */
async function spawned(file: string, args: readonly string[], options: SpawnOptions): Promise<ChildProcess> {
  // Shells say that there is no such command; Node would complain about an argument of spawn().
  if (file === '') throw new NotStartedError(file, Object.assign(new Error(), { code: 'ENOENT' }))
  let child: ChildProcess
  try {
    child = spawn(file, args, options)
  } catch (error) {
    throw new NotStartedError(file, error as NodeJS.ErrnoException)
  }
  if (child.pid !== undefined) return child
  const [error] = (await once(child, 'error')) as [NodeJS.ErrnoException]
  throw new NotStartedError(file, error)
}
