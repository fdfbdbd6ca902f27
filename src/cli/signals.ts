import { inForeground } from './process-table.js'
import { type Job, signalGroup, signalSession } from './processes.js'

/** What people and supervisors send to end or to tell something. */
const PASSED_ON = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const

/** A keyboard sends these to everyone in the foreground: the command has already got them. */
const TYPED: ReadonlySet<NodeJS.Signals> = new Set(['SIGINT', 'SIGQUIT'])

/** The signals that `leasehold run` gets: until the command runs they end the waiting, from then on they are passed on. */
export class Signals {
  /** The one that ended the waiting. */
  caught: NodeJS.Signals | undefined

  /** Rejects when the waiting has to end. */
  readonly rejected: Promise<never>

  readonly #waiting = new AbortController()
  #job: Job | undefined

  constructor() {
    const { signal: ended } = this.#waiting
    this.rejected = new Promise((_, reject) => ended.addEventListener('abort', () => reject(ended.reason)))
    this.rejected.catch(() => {})
    for (const signal of PASSED_ON) process.on(signal, () => this.#receive(signal))
  }

  /** Aborts when the waiting has to end. */
  get ended(): AbortSignal {
    return this.#waiting.signal
  }

  passOnTo(job: Job, mayContinue: () => boolean): void {
    this.#job = job
    // In a terminal's session, the kernel stops, continues and resizes the command together with us.
    if (!job.ownSession) return
    process.on('SIGWINCH', () => signalGroup(job, 'SIGWINCH'))
    process.on('SIGTSTP', () => {
      // SIGSTOP, because the kernel ignores SIGTSTP for a group whose session has no terminal.
      signalSession(job, 'SIGSTOP')
      process.kill(process.pid, 'SIGSTOP')
    })
    process.on('SIGCONT', () => {
      if (mayContinue()) signalSession(job, 'SIGCONT')
    })
  }

  #receive(signal: NodeJS.Signals): void {
    if (!this.#job) {
      this.caught ??= signal
      this.#waiting.abort()
    } else if (this.#job.ownSession || !TYPED.has(signal) || !inForeground()) {
      signalGroup(this.#job, signal)
    }
  }
}
