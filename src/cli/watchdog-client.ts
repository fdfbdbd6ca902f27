/**
 * The other end of the watchdog's pipe, inside `leasehold run`: starts a watchdog, keeps it informed, and replaces one that
 * died or no longer answers.
 *
 * @module
 */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Readable } from 'node:stream'
import { isatty } from 'node:tty'
import { type Deadline, type WatchdogReport, type WatchdogOrder, onLines } from './watchdog-protocol.js'
import type { Job } from './processes.js'

export interface WatchdogOptions {
  /** The watchdog's program. */
  file: string
  /** How long before the deadline stopping begins. */
  killAfterMs: number
  /** What stands in the command's environment. */
  tag: string
}

/** How long a watchdog that was dismissed may take to go. */
const FAREWELL_TAKES = 1_000

/** As many deadlines in a row as a busy machine may make it miss. */
const UNANSWERED = 2

export class WatchdogClient {
  /** Settles when a watchdog knows the deadline: the command may start. */
  readonly armed: Promise<void>
  /** Whether a watchdog began to stop the command because the deadline came close. */
  stopped = false
  /** Called when there is no watchdog any more, and none can be started. */
  onUnprotected: (() => void) | undefined

  readonly #options: WatchdogOptions
  #settle: { armed: () => void; failed: (error: Error) => void } | undefined
  #process: ChildProcess
  #deadline: Deadline | undefined
  #job: Job | undefined
  #sequence = 0
  /** The last deadline that a watchdog has confirmed. */
  #confirmed = 0
  /** Whether this watchdog has started. */
  #ready = false
  #dismissed: (() => void) | undefined

  /** Starts at once, so that the watchdog gets ready while the lock is being acquired. */
  constructor(options: WatchdogOptions) {
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
    // A watchdog that is frozen protects nothing. Killed, it is replaced like one that died.
    if (this.#ready && this.#sequence - this.#confirmed >= UNANSWERED) this.#process.kill('SIGKILL')
    this.#deadline = deadline
    this.#tell({ order: 'arm', deadline, sequence: ++this.#sequence })
  }

  watch(job: Job): void {
    this.#job = job
    this.#tell({ order: 'watch', job })
  }

  /** Nothing is left to protect. */
  async dismiss(): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return
    // The command has not been started, or has ended: a watchdog that has not even begun need not say good-bye.
    if (!this.#deadline || !this.#ready) return void this.#process.kill('SIGKILL')
    const gone = new Promise<void>((resolve) => {
      this.#dismissed = resolve
    })
    this.#tell({ order: 'done' })
    const impatience = setTimeout(() => this.#process.kill('SIGKILL'), FAREWELL_TAKES)
    await gone
    clearTimeout(impatience)
  }

  #start(): ChildProcess {
    const { file, killAfterMs, tag } = this.#options
    // From source, the watchdog needs the same loader as we do; otherwise none of our flags (such as a debugger's port).
    const flags = file.endsWith('.ts') ? process.execArgv : []
    const watchdog = spawn(process.execPath, [...flags, file, String(killAfterMs), tag], {
      stdio: ['pipe', 'pipe', isatty(2) ? 'ignore' : 'inherit', 2],
      // A session of its own: what is typed in our terminal or sent to our group does not concern it.
      detached: true,
      // Neither NODE_OPTIONS, which could slow it down, nor tags, by which an outer watchdog would stop it.
      env: { PATH: process.env.PATH },
    })
    this.#ready = false
    this.#confirmed = this.#sequence
    watchdog.stdin?.on('error', () => {})
    watchdog.on('error', () => this.#ended(watchdog))
    watchdog.on('exit', () => this.#ended(watchdog))
    onLines<WatchdogReport>(watchdog.stdout as Readable, (report) => this.#hear(report))
    return watchdog
  }

  #hear(report: WatchdogReport): void {
    if (report.report === 'ready') {
      this.#ready = true
    } else if (report.report === 'armed') {
      this.#confirmed = report.sequence
      this.#settle?.armed()
    } else if (report.report === 'stopping') {
      this.stopped = true
    } else {
      this.stopped ||= report.stopped
      this.#dismissed?.()
    }
  }

  #ended(watchdog: ChildProcess): void {
    if (this.#dismissed) this.#dismissed()
    else if (watchdog !== this.#process) return
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
    this.#settle?.failed(new Error('the watchdog process did not start'))
    this.onUnprotected?.()
  }

  #tell(order: WatchdogOrder): void {
    this.#process.stdin?.write(`${JSON.stringify(order)}\n`)
  }
}
