/**
 * Attempts that prove something only if they finish within some time.
 *
 * @module
 */

/** TRIES: how often an attempt is made. The last has 81 times as long as the first, and no machine stops for so long. */
const TRIES = 5

/** Thrown when the machine was too slow for an attempt to prove anything. */
class TooSlow extends Error {}

/**
 * Runs an attempt that has to finish within some time. If the machine was too slow, runs it again with three times as
 * long.
 * The attempt calls `tooSlow()` or `mustBeBefore(deadline)` before it asserts anything: that abandons the attempt only.
 */
export async function unhurried(shortestMs: number, attempt: (ms: number) => Promise<void>): Promise<void> {
  for (let ms = shortestMs, tries = 1; ; ms *= 3, tries++) {
    try {
      return await attempt(ms)
    } catch (error) {
      if (!(error instanceof TooSlow) || tries === TRIES) throw error
    }
  }
}

export function tooSlow(): never {
  throw new TooSlow('the machine is too slow to tell')
}

/** Abandons the attempt if this moment of `performance.now()` has passed. */
export function mustBeBefore(deadline: number): void {
  // Five milliseconds of margin, because stores count in whole milliseconds.
  if (performance.now() > deadline - 5) tooSlow()
}
