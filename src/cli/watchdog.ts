/**
 * The watchdog: a process of its own that stops a command before its lock can be another's, also when the `leasehold run`
 * that holds the lock was killed or is frozen. It loads nothing but Node's own modules and three small files, because
 * no command starts before its watchdog is ready.
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
import { childrenOf } from './process-table.js'
import { ProcessTree } from './process-tree.js'

/**
 * How often the deadline is compared with the clocks, in milliseconds: timers do not count the time a machine was
 * asleep.
 */
const CHECK_DEADLINE_MS = 200
/**
 * How often processes that got SIGKILL are listed again, in milliseconds: one of them may have forked a new one
 * meanwhile.
 */
const POLL_DYING_MS = 10

class Watchdog {
  readonly #killAfterMs: number
  readonly #tag: string
  /** The command's processes. Until the first of them is known, they are found by the tag. */
  #processes: ProcessTree
  /** Set from the moment that the command may be started until `watch` names its process. */
  #start: Extract<WatchdogOrder, { order: 'start' }> | undefined
  #deadline: Deadline | undefined
  /** Set once stopping has begun: the moment of SIGKILL. */
  #killAt: Deadline | undefined
  #orphaned = false
  #leaving = false
  #timer: NodeJS.Timeout | undefined

  constructor(killAfterMs: number, tag: string) {
    this.#killAfterMs = killAfterMs
    this.#tag = tag
    this.#processes = ProcessTree.unknown(tag)
  }

  handleOrder(order: WatchdogOrder): void {
    if (order.order === 'arm') {
      this.#deadline = order.deadline
      sendReport({ report: 'armed', sequence: order.sequence })
    } else if (order.order === 'start') {
      this.#start = order
    } else if (order.order === 'watch') {
      this.#start = undefined
      this.#processes = new ProcessTree(order.command)
    } else {
      void this.#leave()
    }
    this.#scheduleCheck(0)
  }

  /** A command that had to be stopped is killed completely, with the processes that left its session. */
  async #leave(): Promise<void> {
    this.#leaving = true
    while (this.#killAt && !this.#processes.kill()) await sleep(POLL_DYING_MS)
    sendReport({ report: 'bye', stopped: this.#killAt !== undefined }, () => process.exit(0))
  }

  /**
   * `leasehold run` died. No process renews the lock, passes signals on or takes the exit status: the command is
   * stopped at once.
   */
  orphaned(): void {
    this.#orphaned = true
    this.#check()
  }

  /**
   * Never checks directly in a timer: if the timer is late, later deadlines may be waiting on stdin. Those are read before
   * an immediate runs; without it, a renewed command would be killed.
   */
  #scheduleCheck(ms: number): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => setImmediate(() => this.#check()), ms)
  }

  #check(): void {
    if (this.#leaving) return
    const next = this.#act()
    if (next !== undefined) this.#scheduleCheck(next)
    else if (this.#orphaned) process.exit(0)
  }

  /** Does what is due. Returns the milliseconds until the next check, or undefined when nothing is left to do. */
  #act(): number | undefined {
    if (!this.#deadline) return undefined
    // Not after `leasehold run` has died: another process may have its PID by then.
    if (this.#start && !this.#orphaned) this.#findStarted(this.#start)
    if (this.#orphaned && !this.#killAt) {
      if (this.#processes.isAlive()) {
        say('leasehold: "leasehold run" died; stopping its command\n')
        this.#stop(this.#deadline)
      } else if (!this.#start) {
        return undefined
      }
    }
    const untilStop = leftUntil(this.#deadline) - this.#killAfterMs
    if (!this.#killAt && untilStop > 0) return Math.min(untilStop, this.#start ? POLL_DYING_MS : CHECK_DEADLINE_MS)
    this.#killAt ??= this.#stop(this.#deadline)
    const untilKill = leftUntil(this.#killAt)
    if (untilKill <= 0) return this.#processes.kill() ? undefined : POLL_DYING_MS
    if (!this.#orphaned) return Math.min(untilKill, CHECK_DEADLINE_MS)
    return this.#processes.isAlive() || this.#start ? Math.min(untilKill, POLL_DYING_MS) : undefined
  }

  /**
   * A `leasehold run` that dies right after it started the command cannot send `watch`. The command is then found by its
   * tag, but a child between fork and exec does not have the tag yet, nor has a process that cleared its environment. So the
   * command is also looked for among the children of `leasehold run` while that lives, and until the deadline.
   */
  #findStarted({ parent, others, ownSession }: Extract<WatchdogOrder, { order: 'start' }>): void {
    const pid = childrenOf(parent).find((one) => one !== process.pid && !others.includes(one))
    if (pid === undefined) return
    this.#start = undefined
    this.#processes = ProcessTree.of(pid, ownSession, this.#tag)
  }

  /** Begins to stop the command. A later renewal does not stop the stopping: the command has got SIGTERM already. */
  #stop(deadline: Deadline): Deadline {
    this.#killAt = earlier(
      deadline,
      deadlineIn(() => this.#killAfterMs),
    )
    sendReport({ report: 'stopping' })
    if (leftUntil(this.#killAt) > 0) this.#processes.terminateSession()
    return this.#killAt
  }
}

/**
 * Descriptor 3 is the stderr of `leasehold run`. If it were the watchdog's own stderr, Node would reset a terminal's
 * modes on exit.
 */
function say(text: string): void {
  try {
    writeSync(3, text)
  } catch {
    // The reader of stderr is gone: the command has to be stopped all the same.
  }
}

function sendReport(report: WatchdogReport, sent?: () => void): void {
  process.stdout.write(`${JSON.stringify(report)}\n`, sent)
}

const [, , killAfterMs, tag] = process.argv
const watchdog = new Watchdog(Number(killAfterMs), tag as string)

// These signals are meant for the command or for `leasehold run`. A watchdog that died of one would leave the command
// unwatched.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGTSTP', 'SIGUSR1', 'SIGUSR2'] as const) {
  process.on(signal, () => {})
}
// A higher priority, where that is allowed: on a busy machine, a watchdog that waits for a processor kills too late.
try {
  setPriority(-10)
} catch {}
// The working directory of `leasehold run` would keep its file system from being unmounted.
process.chdir('/')
// The command is stopped even if `leasehold run` reads no reports any more.
process.stdout.on('error', () => {})
process.stdin.on('error', () => {})
onLines<WatchdogOrder>(process.stdin, (order) => watchdog.handleOrder(order))
process.stdin.on('close', () => watchdog.orphaned())
sendReport({ report: 'ready' })
