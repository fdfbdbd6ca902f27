/**
 * The watchdog: a process of its own that stops a command before its lock can be another's, also when the `leasehold run`
 * that holds the lock was killed or is frozen. It loads nothing but Node's own modules and two small files, because no
 * command starts before its watchdog is ready.
 *
 * Started with two arguments: how many milliseconds before the deadline stopping begins, and the command's tag. It
 * takes orders on stdin; when stdin closes without `done`, `leasehold run` has died.
 *
 * @module
 */
import { writeSync } from 'node:fs'
import { setPriority } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  type Deadline,
  type WatchdogReport,
  type WatchdogOrder,
  deadlineIn,
  earlier,
  leftUntil,
  onLines,
} from './watchdog-protocol.js'
import { type Job, jobIsAlive, killJob, terminateSession } from './processes.js'

/** Timers do not count the time a machine was asleep, so look this often whether the deadline has come closer. */
const LOOK_EVERY = 200
/** While something is dying: whether it is dead, and whether it forked something new meanwhile. */
const LOOK_AGAIN_AFTER = 10
/** From fork to exec, generously. */
const EXEC_TAKES = 100

class Watchdog {
  readonly #killAfterMs: number
  /** Until its process is known, it is found by its tag. */
  #job: Job
  #deadline: Deadline | undefined
  /** Set once stopping has begun: SIGKILL then. */
  #killAt: Deadline | undefined
  #orphaned = false
  #leaving = false
  #timer: NodeJS.Timeout | undefined

  constructor(killAfterMs: number, tag: string) {
    this.#killAfterMs = killAfterMs
    this.#job = { pid: 0, startedAt: undefined, ownSession: false, session: 0, tag }
  }

  obey(order: WatchdogOrder): void {
    if (order.order === 'arm') {
      this.#deadline = order.deadline
      tell({ report: 'armed', sequence: order.sequence })
    } else if (order.order === 'watch') {
      this.#job = order.job
    } else {
      void this.#leave()
    }
    this.#lookSoon(0)
  }

  /** If it had to be stopped, what has left its session is not spared either. */
  async #leave(): Promise<void> {
    this.#leaving = true
    while (this.#killAt && !killJob(this.#job)) await sleep(LOOK_AGAIN_AFTER)
    tell({ report: 'bye', stopped: this.#killAt !== undefined }, () => process.exit(0))
  }

  /** Nobody is left to renew the lock, to pass on signals or to take the exit status: there is no reason to wait. */
  async orphaned(): Promise<void> {
    // Died while it was starting the command? That may be between fork and exec, where it does not bear its tag yet.
    if (this.#deadline && this.#job.pid === 0) await sleep(EXEC_TAKES)
    if (this.#leaving) return
    // Only now: until here, time passes as ever.
    this.#orphaned = true
    if (this.#deadline && !this.#killAt && jobIsAlive(this.#job)) {
      say('leasehold: "leasehold run" died; stopping its command\n')
      this.#stop(this.#deadline)
    }
    this.#look()
  }

  /**
   * Never straight from a timer: if we come late, later deadlines may wait on stdin, and those are read before an
   * immediate has its turn.
   */
  #lookSoon(ms: number): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => setImmediate(() => this.#look()), ms)
  }

  #look(): void {
    if (this.#leaving) return
    const next = this.#act()
    if (next !== undefined) this.#lookSoon(next)
    else if (this.#orphaned) process.exit(0)
  }

  /** Does what is due; returns when to look again, or undefined when there is nothing more to do. */
  #act(): number | undefined {
    if (!this.#deadline) return undefined
    const untilStop = leftUntil(this.#deadline) - this.#killAfterMs
    // An orphaned watchdog that does not stop anything has found nothing to stop.
    if (!this.#killAt && untilStop > 0) return this.#orphaned ? undefined : Math.min(untilStop, LOOK_EVERY)
    this.#killAt ??= this.#stop(this.#deadline)
    const untilKill = leftUntil(this.#killAt)
    if (untilKill <= 0) return killJob(this.#job) ? undefined : LOOK_AGAIN_AFTER
    if (!this.#orphaned) return Math.min(untilKill, LOOK_EVERY)
    return jobIsAlive(this.#job) ? Math.min(untilKill, LOOK_AGAIN_AFTER) : undefined
  }

  /** A renewal that comes later changes nothing any more: the command was told to end, and has so long to do it. */
  #stop(deadline: Deadline): Deadline {
    this.#killAt = earlier(
      deadline,
      deadlineIn(() => this.#killAfterMs),
    )
    tell({ report: 'stopping' })
    if (leftUntil(this.#killAt) > 0) terminateSession(this.#job)
    return this.#killAt
  }
}

/** Descriptor 3 is the stderr of `leasehold run`. As its own stderr, Node would reset a terminal's modes when it exits. */
function say(text: string): void {
  try {
    writeSync(3, text)
  } catch {
    // Nobody reads it any more.
  }
}

function tell(report: WatchdogReport, told?: () => void): void {
  process.stdout.write(`${JSON.stringify(report)}\n`, told)
}

const [, , killAfterMs, tag] = process.argv
const watchdog = new Watchdog(Number(killAfterMs), tag as string)

// Meant for the command, or for `leasehold run`; whoever really wants to end a watchdog has SIGKILL.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGTSTP', 'SIGUSR1', 'SIGUSR2'] as const) {
  process.on(signal, () => {})
}
// Where that is allowed: on a busy machine, whoever has to queue comes late.
try {
  setPriority(-10)
} catch {}
// Not to keep a file system busy that somebody may want to unmount.
process.chdir('/')
// Nobody has to listen any more for the command to be stopped.
process.stdout.on('error', () => {})
process.stdin.on('error', () => {})
onLines<WatchdogOrder>(process.stdin, (order) => watchdog.obey(order))
process.stdin.on('close', () => void watchdog.orphaned())
tell({ report: 'ready' })
