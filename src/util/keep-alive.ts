/**
 * Keeps the process running for something that is awaited, or runs in the background on purpose.
 *
 * @module
 */

// Taken when this module is loaded: fake timers that a test installs later must not see it.
const { setInterval, clearInterval } = globalThis

/** setTimeout takes at most this. */
const LONGEST_TIMER = 2 ** 31 - 1

/** Until the returned function is called. */
export function keepAlive(): () => void {
  const timer = setInterval(() => {}, LONGEST_TIMER)
  return () => clearInterval(timer)
}
