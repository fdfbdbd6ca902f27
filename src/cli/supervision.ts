/**
 * A command that runs under a lock: how it is started, stopped, killed, and when it has ended with all that it started.
 *
 * @module
 */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { isatty } from 'node:tty'
import { exitCode, exitCodeOfSignal } from './exit-codes.js'
import { say } from './output.js'
import {
  type Job,
  TAGS,
  jobOf,
  killJob,
  sessionIsAlive,
  signalSession,
  terminateSession,
  withTag,
} from './processes.js'

/** While something is dying: how often to look whether it is dead. */
const LOOK_EVERY = 10

/** What should be dead for so long is worth a word. */
const SUSPICIOUSLY_LONG = 2_000

export interface SupervisionOptions {
  command: readonly string[]
  /** Added to our own environment. */
  env: Record<string, string>
  tag: string
  killAfterMs: number
}

/** Why a file cannot be executed, for those reasons whose own words say too little. */
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
  readonly job: Job
  /** Why the command was stopped or killed by us; undefined if it was not. */
  stopped: string | undefined
  /** The exit status of the command, once it has ended with everything in its session. */
  readonly ended: Promise<number>

  readonly #killAfterMs: number
  #killing: Promise<void> | undefined

  static async start(options: SupervisionOptions): Promise<Supervision> {
    const [file = '', ...args] = options.command
    // A session of its own can be stopped as a whole. But it could not read from a terminal: there, it stays in ours.
    const ownSession = !isatty(0)
    const env = { ...process.env, ...options.env, [TAGS]: withTag(options.tag) }
    const child = await spawned(file, args, { stdio: 'inherit', detached: ownSession, env })
    return new Supervision(child, jobOf(child.pid as number, ownSession, options.tag), options.killAfterMs)
  }

  private constructor(child: ChildProcess, job: Job, killAfterMs: number) {
    this.job = job
    this.#killAfterMs = killAfterMs
    this.ended = this.#untilTheEnd(child)
  }

  /** At once, and everything: the lock may already be another's. */
  kill(why: string): void {
    this.stopped ??= why
    this.#killing ??= this.#killAll()
  }

  /** With time to tidy up: the lock is still ours for a while. */
  stop(why: string): void {
    this.stopped ??= why
    terminateSession(this.job)
    setTimeout(() => this.kill(why), this.#killAfterMs).unref()
  }

  async #untilTheEnd(child: ChildProcess): Promise<number> {
    const [code, signal] = (await once(child, 'exit')) as [number | null, NodeJS.Signals | null]
    if (this.stopped) this.kill(this.stopped)
    else await this.#clearSession()
    await this.#killing
    return signal ? exitCodeOfSignal(signal) : (code as number)
  }

  /** What the command left behind in its session would go on working after the lock is released. */
  async #clearSession(): Promise<void> {
    if (!sessionIsAlive(this.job)) return
    terminateSession(this.job)
    const since = performance.now()
    let killedAt: number | undefined
    let told = false
    for (let pause = LOOK_EVERY; sessionIsAlive(this.job); pause = Math.min(pause * 1.5, 100)) {
      await sleep(pause)
      const now = performance.now()
      if (now - since < this.#killAfterMs) continue
      signalSession(this.job, 'SIGKILL')
      // From the first SIGKILL on: this process may itself have had no processor for seconds before.
      killedAt ??= now
      if (told || now - killedAt < SUSPICIOUSLY_LONG) continue
      told = true
      say(`something that the command left behind in session ${this.job.pid} cannot be killed; still holding the lock`)
    }
  }

  async #killAll(): Promise<void> {
    while (!killJob(this.job)) await sleep(LOOK_EVERY)
  }
}

/** Node tells some reasons by an event and throws the others. */
async function spawned(file: string, args: readonly string[], options: SpawnOptions): Promise<ChildProcess> {
  // Shells say that there is no such command; Node would say that its own argument is wrong.
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
