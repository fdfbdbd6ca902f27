/** The messages between `leasehold run` and its watchdog, one line of JSON each, and the clocks that both use. */
import type { CommandIdentity } from './process-tree.js'

/** From `leasehold run` to the watchdog. */
export type WatchdogOrder =
  /** The command has to be dead by then. Sent again with every renewal. */
  | { order: 'arm'; deadline: Deadline; sequence: number }
  /** The command is about to be started, as a child of `parent` that is none of the `others`. */
  | { order: 'start'; parent: number; others: number[]; ownSession: boolean }
  /** This is the command. */
  | { order: 'watch'; command: CommandIdentity }
  /** The command has ended, and so has the watchdog's work. */
  | { order: 'done' }

/** From the watchdog to `leasehold run`. */
export type WatchdogReport =
  | { report: 'ready' }
  /** The watchdog has this deadline. */
  | { report: 'armed'; sequence: number }
  /** The deadline is close, and the watchdog stops the command. */
  | { report: 'stopping' }
  /** The watchdog exits, after the order `done`. */
  | { report: 'bye'; stopped: boolean }

/** A moment, on the two clocks that all processes of a machine share. */
export interface Deadline {
  /** CLOCK_MONOTONIC in milliseconds. It cannot be set, but stands still while the machine sleeps. */
  monotonic: number
  /**
   * Epoch milliseconds. This clock goes on while the machine sleeps; if it is set forward, the command stops early,
   * which is safe.
   */
  wall: number
}

/** Milliseconds until the deadline, by the clock that is further on. */
export function leftUntil(deadline: Deadline): number {
  return Math.min(deadline.monotonic - monotonicNow(), deadline.wall - Date.now())
}

/**
 * The moment that is `remaining()` away. The clocks are read first: a process that is frozen in between would
 * otherwise add an old remaining time to a later time of day, and the deadline would come too late.
 */
export function deadlineIn(remaining: () => number): Deadline {
  const monotonic = monotonicNow()
  const wall = Date.now()
  const ms = remaining()
  return { monotonic: monotonic + ms, wall: wall + ms }
}

export function earlier(a: Deadline, b: Deadline): Deadline {
  return { monotonic: Math.min(a.monotonic, b.monotonic), wall: Math.min(a.wall, b.wall) }
}

function monotonicNow(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

/** Calls back with each line of a stream of JSON lines. A line without a newline at its end is incomplete and ignored. */
export function onLines<T>(stream: NodeJS.ReadableStream, receive: (message: T) => void): void {
  let rest = ''
  stream.setEncoding('utf8')
  stream.on('data', (text: string) => {
    const lines = (rest + text).split('\n')
    rest = lines.pop() as string
    for (const line of lines) receive(JSON.parse(line) as T)
  })
}
