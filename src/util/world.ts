/**
 * The world outside: time and chance. Everything that depends on either takes a `World`, so that the whole core runs
 * inside a deterministic simulation.
 *
 * @module
 */
import { randomBytes } from 'node:crypto'

/** Cancels what was to be called back. */
export interface Cancel {
  (): void
  /** Sets whether the timer keeps the process alive. Absent in a world without processes, such as a simulation. */
  keepAlive?: (on: boolean) => void
}

export interface World {
  /**
   * Epoch milliseconds that only ever grow, with fractions: right when the process began, and from then on by a clock
   * that does not jump back. `exact`: even if the machine slept since a moment ago.
   */
  now: (exact?: boolean) => number
  /** Epoch milliseconds, to show to people and never to decide by. */
  date: () => number
  /**
   * Calls back once, not before `ms` have passed. Returns how to cancel. Keeps the process alive only if asked to:
   * a caller who waits would otherwise never be answered, while a heartbeat must not hold up the end of a program.
   */
  after: (ms: number, run: () => void, keepAlive?: boolean) => Cancel
  /** From 0 up to, but not including, 1. */
  random: () => number
  /** Sixteen random bytes for identities. */
  bytes: () => Uint8Array
  /** Processor time that this process has used, in milliseconds. Absent: a blocked and a frozen process look the same. */
  cpu?: (() => number) | undefined
}

/** The longest delay that setTimeout takes; a longer one fires at once (a 30-day timer did). Longer waits are called early and set again. */
const LONGEST_TIMER = 2 ** 31 - 1

/** The global of this name is a getter, and `node:process` reads every property of it when it is imported: 8 ms of a start for the clock alone. */
const self = process

/**
 * Milliseconds by CLOCK_MONOTONIC. `performance.now` reads the same clock and takes half as long again, several times per lock. Looked up at
 * each call: fake timers replace it.
 */
function monotonicNow(): number {
  const time = self.hrtime()
  return time[0] * 1_000 + time[1] / 1_000_000
}

let ahead = Number.NEGATIVE_INFINITY
let comparedAt = Number.NEGATIVE_INFINITY

/**
 * CLOCK_MONOTONIC stands still while a machine is suspended, but leases in a store go on. So elapsed time is the
 * larger of what the monotonic and the wall clock saw: a wall clock that jumps forward makes us give up early, which is
 * safe; one that jumps back changes nothing.
 */
function now(exact?: boolean): number {
  if (!exact) {
    const monotonic = monotonicNow()
    // The wall clock has whole milliseconds. Looking at it more often costs more than all the rest of an acquisition.
    if (monotonic >= comparedAt && monotonic < comparedAt + 1) return monotonic + ahead
  }
  compare()
  return comparedAt + ahead
}

function compare(): void {
  // In this order: a process that has to give up its processor between the two must not take that for a jump forward.
  const wall = Date.now()
  const monotonic = monotonicNow()
  // Only a clock that was replaced goes back, by fake timers in a test. From here on time is what that clock says.
  if (monotonic < comparedAt) ahead = Number.NEGATIVE_INFINITY
  comparedAt = monotonic
  const lead = wall - comparedAt
  // Whole milliseconds make the lead flicker by one: only more than that is a jump.
  if (lead > ahead + 1.5) ahead = lead
}

export const realWorld: World = {
  now,
  // Looked up at each call: a test may put another clock in its place.
  date: () => Date.now(),
  after(ms, run, keepAlive = false) {
    const timer = setTimeout(run, Math.min(Math.max(ms, 0), LONGEST_TIMER))
    if (!keepAlive) timer.unref()
    const cancel: Cancel = () => clearTimeout(timer)
    cancel.keepAlive = (on) => void (on ? timer.ref() : timer.unref())
    return cancel
  },
  random: Math.random,
  bytes: () => randomBytes(16),
  cpu() {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1_000
  },
}
