/** What `leasehold run` and its watchdog say to each other, a line of JSON each, and the clocks they agree on. */
import type { Job } from './processes.js'

/** From `leasehold run` to the watchdog. */
export type WatchdogOrder =
  /** The command has to be dead by then. Sent again with every renewal. */
  | { order: 'arm'; deadline: Deadline; sequence: number }
  /** This is the command. */
  | { order: 'watch'; job: Job }
  /** The command has ended, and so has the watchdog's work. */
  | { order: 'done' }

/** From the watchdog to `leasehold run`. */
export type WatchdogReport =
  | { report: 'ready' }
  /** Knows this deadline. */
  | { report: 'armed'; sequence: number }
  /** The deadline is close, and the command is being stopped. */
  | { report: 'stopping' }
  /** Goes, since it was told that it is done. */
  | { report: 'bye'; stopped: boolean }

/** A moment, on the two clocks that all processes of a machine share. */
export interface Deadline {
  /** CLOCK_MONOTONIC in milliseconds. Nobody can set it, but it stands still while the machine sleeps. */
  monotonic: number
  /** Epoch milliseconds. Goes on while the machine sleeps; if it is set forward we stop early, which is safe. */
  wall: number
}

/** Milliseconds until then, by whichever clock is further on. */
export function leftUntil(deadline: Deadline): number {
  return Math.min(deadline.monotonic - monotonicNow(), deadline.wall - Date.now())
}

/**
 * The moment that is `remaining()` away. The clocks are read first: frozen in between, we would otherwise add what was
 * left then to a time that is long past it.
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

/** Calls back with each line of a stream that speaks JSON; what has no newline at the end was never finished. */
export function onLines<T>(stream: NodeJS.ReadableStream, receive: (message: T) => void): void {
  let rest = ''
  stream.setEncoding('utf8')
  stream.on('data', (text: string) => {
    const lines = (rest + text).split('\n')
    rest = lines.pop() as string
    for (const line of lines) receive(JSON.parse(line) as T)
  })
}
