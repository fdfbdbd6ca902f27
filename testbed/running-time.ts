/** How long something took, without the times at which this process did not run. */

/** TICK_MS: how often the event loop is looked at. Shorter costs processor time, longer counts a stall as more. */
const TICK_MS = 10

/** LONGEST_MS: what a stall counts as, at most. Less would make a loop that is only busy look faster than it is. */
const LONGEST_MS = 4 * TICK_MS

export interface Stopwatch {
  /** Milliseconds during which the event loop turned. */
  ms(): number
  /** The rest, in milliseconds: the process was stopped, or had no processor. */
  stalledMs(): number
  stop(): void
}

/**
 * Measures what a promise in milliseconds is about: the library, and not the machine. A process that gets no processor for a
 * second, or whose disk takes that long inside a synchronous call, cannot do anything in time, so that second does not count.
 */
export function startStopwatch(): Stopwatch {
  const beganAt = performance.now()
  let ran = 0
  let last = beganAt
  const sinceLast = (): number => Math.min(performance.now() - last, LONGEST_MS)
  const ms = (): number => ran + sinceLast()
  const timer = setInterval(() => {
    ran += sinceLast()
    last = performance.now()
  }, TICK_MS)
  timer.unref()
  return { ms, stalledMs: () => performance.now() - beganAt - ms(), stop: () => clearInterval(timer) }
}
