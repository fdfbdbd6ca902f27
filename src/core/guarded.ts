import { reasonOf } from '../util/reason.js'
import { describe } from '../util/redact.js'
import { isThenable } from './thenable.js'

/**
 * A mistake in what an answer or a timer sets off, such as a listener or store that throws, becomes a warning: as an
 * exception it would end the process, or the heartbeats of all other locks. Never throws.
 */
export function warn(thrown: unknown, name = 'LeaseholdWarning'): void {
  try {
    process.emitWarning(thrown instanceof Error ? readable(thrown) : textOf(thrown), name)
  } catch {
    process.emitWarning('an error that cannot be read', name)
  }
}

/** Node reads these when it prints a warning, on a later turn: a getter that throws there would end the process. */
function readable(error: Error): Error {
  const { name, message, stack, code } = error as NodeJS.ErrnoException
  void [name, message, stack, code, String(error)]
  return error
}

/** An object without a prototype has no text, and one with a message is an error of another realm. */
function textOf(thrown: unknown): string {
  if (typeof thrown !== 'object' || thrown === null) return String(thrown)
  return (thrown as { message?: unknown }).message ? String(reasonOf(thrown)) : describe(thrown)
}

/**
 * Runs it, and warns if it throws, or if it returns a promise that rejects: of an async function that was given as a
 * listener nobody else has the promise, and its rejection would end the process.
 */
export function guarded(run: () => unknown, name?: string): void {
  try {
    const result = run()
    if (isThenable(result)) result.then(undefined, (error: unknown) => warn(error, name))
  } catch (error) {
    warn(error, name)
  }
}
