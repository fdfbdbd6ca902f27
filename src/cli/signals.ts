import { inForeground } from './process-table.js'
import type { ProcessTree } from './process-tree.js'

/** The signals that people and supervisors send to end a command or to trigger something in it. */
const FORWARDED = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const

/** A keyboard sends these to the whole foreground group: the command has already got them, and must not get them twice. */
const FROM_KEYBOARD: ReadonlySet<NodeJS.Signals> = new Set(['SIGINT', 'SIGQUIT'])

/** These ask for the end. Others, such as SIGHUP, many commands take for something else. */
const ENDING: ReadonlySet<NodeJS.Signals> = new Set(['SIGINT', 'SIGTERM', 'SIGQUIT'])

/** The signals that `leasehold run` or `elect` gets: while no command runs they end the wait, otherwise they are passed on. */
export class Signals {
  /** The signal that ended the wait. */
  caught: NodeJS.Signals | undefined

  /** A signal has asked for the end, whether or not a command was there to get it. */
  askedToEnd = false

  /** Rejects when a signal ends the wait. */
  readonly rejected: Promise<never>

  readonly #waiting = new AbortController()
  #processes: ProcessTree | undefined
  #mayContinue: () => boolean = () => true
  #forwardsJobControl = false

  constructor() {
    const { signal: ended } = this.#waiting
    this.rejected = new Promise((_, reject) => ended.addEventListener('abort', () => reject(ended.reason)))
    this.rejected.catch(() => {})
    for (const signal of FORWARDED) process.on(signal, () => this.#receive(signal))
  }

  /** Aborts when a signal ends the wait. */
  get ended(): AbortSignal {
    return this.#waiting.signal
  }

  forwardTo(processes: ProcessTree, mayContinue: () => boolean): void {
    this.#processes = processes
    this.#mayContinue = mayContinue
    // In a terminal's session, the kernel stops, continues and resizes the command together with `leasehold run`.
    if (!processes.ownSession || this.#forwardsJobControl) return
    this.#forwardsJobControl = true
    process.on('SIGWINCH', () => this.#processes?.signalGroup('SIGWINCH'))
    process.on('SIGTSTP', () => {
      // SIGSTOP, because the kernel ignores SIGTSTP for a group whose session has no terminal.
      this.#processes?.signalSession('SIGSTOP')
      process.kill(process.pid, 'SIGSTOP')
    })
    process.on('SIGCONT', () => {
      if (this.#mayContinue()) this.#processes?.signalSession('SIGCONT')
    })
  }

  /** The command has ended, and another may be started later: until then a signal ends the wait. */
  stopForwarding(): void {
    this.#processes = undefined
  }

  #receive(signal: NodeJS.Signals): void {
    this.askedToEnd ||= ENDING.has(signal)
    if (!this.#processes) {
      this.caught ??= signal
      this.#waiting.abort()
    } else if (this.#processes.ownSession || !FROM_KEYBOARD.has(signal) || !inForeground()) {
      this.#processes.signalGroup(signal)
    }
  }
}
