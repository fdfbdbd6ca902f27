import { type Job, inForeground, signalJob } from './processes.js'

/** What people and supervisors send to end or to tell something. */
const PASSED_ON = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const

/** A keyboard sends these to everyone in the foreground: the command has already got them. */
const TYPED: ReadonlySet<NodeJS.Signals> = new Set(['SIGINT', 'SIGQUIT'])

/** The signals that `leasehold run` gets: until the command runs they end the waiting, from then on they are passed on. */
export class Signals {
  /** The one that ended the waiting. */
  caught: NodeJS.Signals | undefined

  readonly #waiting = new AbortController()
  #job: Job | undefined

  constructor() {
    for (const signal of PASSED_ON) process.on(signal, () => this.#receive(signal))
  }

  /** Aborts when the waiting has to end. */
  get ended(): AbortSignal {
    return this.#waiting.signal
  }

  passOnTo(job: Job, mayContinue: () => boolean): void {
    this.#job = job
    // In a terminal's own group, the kernel stops, continues and resizes the command together with us.
    if (!job.ownGroup) return
    process.on('SIGWINCH', () => signalJob(job, 'SIGWINCH'))
    process.on('SIGTSTP', () => {
      // SIGSTOP, because the kernel ignores SIGTSTP for a group whose session has no terminal.
      signalJob(job, 'SIGSTOP')
      process.kill(process.pid, 'SIGSTOP')
    })
    process.on('SIGCONT', () => {
      if (mayContinue()) signalJob(job, 'SIGCONT')
    })
  }

  #receive(signal: NodeJS.Signals): void {
    if (!this.#job) {
      this.caught ??= signal
      this.#waiting.abort()
    } else if (this.#job.ownGroup || !TYPED.has(signal) || !inForeground()) {
      signalJob(this.#job, signal)
    }
  }
}
