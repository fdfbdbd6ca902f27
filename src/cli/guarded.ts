/**
 * The other end of the guard's pipe, inside `leasehold run`: starts a guard, keeps it informed, and replaces one that
 * died or no longer answers.
 *
 * @module
 */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Readable } from 'node:stream'
import { isatty } from 'node:tty'
import { type Deadline, type GuardNews, type GuardOrder, onLines } from './guard-orders.js'
import type { Job } from './processes.js'

export interface GuardOptions {
  /** The guard's program. */
  file: string
  /** How long before the deadline stopping begins. */
  killAfterMs: number
  /** What stands in the command's environment. */
  mark: string
}

/** How long a guard that was dismissed may take to go. */
const FAREWELL_TAKES = 1_000

/** As many deadlines in a row as a busy machine may make it miss. */
const UNANSWERED = 2

export class Guarded {
  /** Settles when a guard knows the deadline: the command may start. */
  readonly armed: Promise<void>
  /** Whether a guard began to stop the command because the deadline came close. */
  stopped = false
  /** Called when there is no guard any more, and none can be started. */
  onUnprotected: (() => void) | undefined

  readonly #options: GuardOptions
  #settle: { armed: () => void; failed: (error: Error) => void } | undefined
  #process: ChildProcess
  #deadline: Deadline | undefined
  #job: Job | undefined
  #sequence = 0
  /** The last deadline that a guard has confirmed. */
  #confirmed = 0
  /** Whether this guard has started. */
  #ready = false
  #dismissed: (() => void) | undefined

  /** Starts at once, so that the guard gets ready while the lock is being acquired. */
  constructor(options: GuardOptions) {
    this.#options = options
    this.armed = new Promise((armed, failed) => {
      this.#settle = { armed, failed }
    })
    // Whoever does not get the lock never asks.
    this.armed.catch(() => {})
    this.#process = this.#start()
  }

  /** The command has to be dead by then, unless a later deadline is told before. */
  arm(deadline: Deadline): void {
    // A guard that is frozen protects nothing. Killed, it is replaced like one that died.
    if (this.#ready && this.#sequence - this.#confirmed >= UNANSWERED) this.#process.kill('SIGKILL')
    this.#deadline = deadline
    this.#tell({ order: 'arm', deadline, sequence: ++this.#sequence })
  }

  watch(job: Job): void {
    this.#job = job
    this.#tell({ order: 'watch', job })
  }

  /** Nothing is left to guard. */
  async dismiss(): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return
    // Waited in vain for a lock: it has not even begun.
    if (!this.#deadline) return void this.#process.kill('SIGKILL')
    const gone = new Promise<void>((resolve) => {
      this.#dismissed = resolve
    })
    this.#tell({ order: 'done' })
    const impatience = setTimeout(() => this.#process.kill('SIGKILL'), FAREWELL_TAKES)
    await gone
    clearTimeout(impatience)
  }

  #start(): ChildProcess {
    const { file, killAfterMs, mark } = this.#options
    // From source, the guard needs the same loader as we do; otherwise none of our flags (such as a debugger's port).
    const flags = file.endsWith('.ts') ? process.execArgv : []
    const guard = spawn(process.execPath, [...flags, file, String(killAfterMs), mark], {
      stdio: ['pipe', 'pipe', isatty(2) ? 'ignore' : 'inherit', 2],
      // A session of its own: what is typed in our terminal or sent to our group does not concern it.
      detached: true,
      // Neither NODE_OPTIONS, which could slow it down, nor marks, by which an outer guard would stop it.
      env: { PATH: process.env.PATH },
    })
    this.#ready = false
    this.#confirmed = this.#sequence
    guard.stdin?.on('error', () => {})
    guard.on('error', () => this.#ended(guard))
    guard.on('exit', () => this.#ended(guard))
    onLines<GuardNews>(guard.stdout as Readable, (news) => this.#hear(news))
    return guard
  }

  #hear(news: GuardNews): void {
    if (news.news === 'ready') {
      this.#ready = true
    } else if (news.news === 'armed') {
      this.#confirmed = news.sequence
      this.#settle?.armed()
    } else if (news.news === 'stopping') {
      this.stopped = true
    } else {
      this.stopped ||= news.stopped
      this.#dismissed?.()
    }
  }

  #ended(guard: ChildProcess): void {
    if (this.#dismissed) this.#dismissed()
    else if (guard !== this.#process) return
    else if (!this.#ready) this.#giveUp()
    else this.#replace()
  }

  #replace(): void {
    this.#process = this.#start()
    if (this.#job) this.watch(this.#job)
    if (this.#deadline) this.arm(this.#deadline)
  }

  /** It did not even start: another would not either. */
  #giveUp(): void {
    this.#settle?.failed(new Error('the guard process did not start'))
    this.onUnprotected?.()
  }

  #tell(order: GuardOrder): void {
    this.#process.stdin?.write(`${JSON.stringify(order)}\n`)
  }
}
