/**
 * The other end of the watchdog's pipe, inside `leasehold run`: starts a watchdog, keeps it informed, and replaces one that
 * died or no longer answers.
 *
 * @module
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import type { Readable } from 'node:stream'
import { isatty } from 'node:tty'
import { type Deadline, type WatchdogReport, type WatchdogOrder, onLines } from './watchdog-protocol.js'
import type { CommandIdentity } from './process-tree.js'

export interface WatchdogOptions {
  /** The watchdog's program. */
  file: string
  /** How long before the deadline stopping begins. */
  killAfterMs: number
  /** Text in the command's environment, by which its processes are found. */
  tag: string
}

/**
 * The most that a dismissed watchdog may take to exit, in milliseconds. Without it, a frozen one would keep `leasehold
 * run` for ever.
 */
const EXIT_TIMEOUT_MS = 1_000

/** Deadlines in a row that a watchdog may leave unconfirmed: on a busy machine it is late once, a frozen one always. */
const MAX_UNCONFIRMED = 2

export class WatchdogClient {
  /** Settles when a watchdog knows the deadline: the command may start. */
  readonly armed: Promise<void>
  /** Whether a watchdog began to stop the command because the deadline came close. */
  stopped = false
  /** Called when the watchdog is gone and no other can be started. */
  onUnprotected: (() => void) | undefined

  readonly #options: WatchdogOptions
  #settle: { armed: () => void; failed: (error: Error) => void } | undefined
  #process: ChildProcess
  #deadline: Deadline | undefined
  #command: CommandIdentity | undefined
  /** Whether the command leads a session of its own, from the moment that it may be started. */
  #ownSession: boolean | undefined
  /** Every watchdog so far. They are children of this process like the command, and must not be taken for it. */
  readonly #pids: number[] = []
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
    // A run that does not get the lock never awaits it: the rejection must not end the process.
    this.armed.catch(() => {})
    this.#process = this.#start()
  }

  /** The command has to be dead by this deadline, unless a later one is sent before. */
  arm(deadline: Deadline): void {
    // A frozen watchdog protects nothing. After SIGKILL it is replaced like one that died.
    if (this.#ready && this.#sequence - this.#confirmed >= MAX_UNCONFIRMED) this.#process.kill('SIGKILL')
    this.#deadline = deadline
    this.#sendOrder({ order: 'arm', deadline, sequence: ++this.#sequence })
  }

  /** The command is about to be started. If this process dies before it can call `watch()`, the watchdog looks for it. */
  expect(ownSession: boolean): void {
    this.#ownSession = ownSession
    this.#sendOrder({ order: 'start', parent: process.pid, others: this.#pids, ownSession })
  }

  watch(command: CommandIdentity): void {
    this.#command = command
    this.#sendOrder({ order: 'watch', command })
  }

  /** The command has ended, or was never started: the watchdog may exit. */
  async dismiss(): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return
    // A watchdog that is not ready yet reads no orders, and there is nothing that it would have to stop.
    if (!this.#deadline || !this.#ready) {
      this.#dismissed = () => {}
      this.#process.kill('SIGKILL')
      return
    }
    const gone = new Promise<void>((resolve) => {
      this.#dismissed = resolve
    })
    this.#sendOrder({ order: 'done' })
    const impatience = setTimeout(() => this.#process.kill('SIGKILL'), EXIT_TIMEOUT_MS)
    await gone
    clearTimeout(impatience)
  }

  /** Resolves when a dismissed watchdog has exited, so that nothing of `leasehold run` is left when it exits itself. */
  async exited(): Promise<void> {
    const watchdog = this.#process
    if (watchdog.pid === undefined || watchdog.exitCode !== null || watchdog.signalCode !== null) return
    const impatience = setTimeout(() => watchdog.kill('SIGKILL'), EXIT_TIMEOUT_MS)
    await once(watchdog, 'exit')
    clearTimeout(impatience)
  }

  #start(): ChildProcess {
    const { file, killAfterMs, tag } = this.#options
    // From source, the watchdog needs the same loader as this process; otherwise none of its flags (such as a
    // debugger's port).
    const flags = file.endsWith('.ts') ? process.execArgv : []
    const watchdog = spawn(process.execPath, [...flags, file, String(killAfterMs), tag], {
      stdio: ['pipe', 'pipe', isatty(2) ? 'ignore' : 'inherit', 2],
      // A session of its own: signals from the terminal or to the group of `leasehold run` must not end the watchdog.
      detached: true,
      // Neither NODE_OPTIONS, which could slow it down, nor tags, by which an outer watchdog would stop it.
      env: { PATH: process.env.PATH },
    })
    if (watchdog.pid !== undefined) this.#pids.push(watchdog.pid)
    this.#ready = false
    this.#confirmed = this.#sequence
    watchdog.stdin?.on('error', () => {})
    watchdog.on('error', () => this.#ended(watchdog))
    watchdog.on('exit', () => this.#ended(watchdog))
    onLines<WatchdogReport>(watchdog.stdout as Readable, (report) => this.#handleReport(report))
    return watchdog
  }

  #handleReport(report: WatchdogReport): void {
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
    if (this.#command) this.watch(this.#command)
    else if (this.#ownSession !== undefined) this.expect(this.#ownSession)
    if (this.#deadline) this.arm(this.#deadline)
  }

  /** This watchdog did not start, so another would not either: trying again would never end. */
  #giveUp(): void {
    this.#settle?.failed(new Error('the watchdog process did not start'))
    this.onUnprotected?.()
  }

  #sendOrder(order: WatchdogOrder): void {
    this.#process.stdin?.write(`${JSON.stringify(order)}\n`)
  }
}
