/**
 * Keys that a file of SQLite can tell apart, and batches in which some are not.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'
import type { Awaitable } from '../../store.js'

/** The driver ends a text at NUL and replaces half a surrogate pair: two such keys would become one. */
export function isCarried(key: string): boolean {
  return !key.includes('\0') && key.isWellFormed()
}

export function cannotCarry(key: string): InvalidOptionError {
  return new InvalidOptionError('key', key, 'well-formed Unicode without NUL')
}

/** Asks for the items that can be carried. Each of the others is answered by itself, at its place. */
export function carriedOnly<I extends { key: string }, O>(
  items: readonly I[],
  failed: (error: InvalidOptionError) => O,
  call: (carried: readonly I[]) => Awaitable<O[]>,
): Awaitable<O[]> {
  if (items.every(({ key }) => isCarried(key))) return call(items)
  const merged = (answers: readonly O[]): O[] => {
    let next = 0
    return items.map(({ key }) => (isCarried(key) ? (answers[next++] as O) : failed(cannotCarry(key))))
  }
  const answers = call(items.filter(({ key }) => isCarried(key)))
  return answers instanceof Promise ? answers.then(merged) : merged(answers)
}
