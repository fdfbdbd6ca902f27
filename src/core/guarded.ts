import { reasonOf } from '../util/reason.js'

/**
 * A mistake in what an answer or a timer sets off, such as a listener or store that throws, becomes a warning: as an
 * exception it would end the process, or the heartbeats of all other locks.
 */
export function warn(error: unknown): void {
  process.emitWarning(error instanceof Error ? error : reasonOf(error), 'LeaseholdWarning')
}

/** Runs it, and warns if it throws. */
export function guarded(run: () => void): void {
  try {
    run()
  } catch (error) {
    warn(error)
  }
}
