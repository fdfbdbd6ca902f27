/**
 * Which keys a SQLite file can tell apart, and how a batch that holds others is answered.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'
import type { Awaitable } from '../../store.js'

/** The driver ends a text at NUL and replaces half a surrogate pair: two such keys would become one. */
export function isStorable(key: string): boolean {
  return !key.includes('\0') && key.isWellFormed()
}

export function unstorableKey(key: string): InvalidOptionError {
  return new InvalidOptionError('key', key, 'well-formed Unicode without NUL')
}

/** Calls with the items whose keys can be stored. Each of the others fails by itself, at its index in the answers. */
export function callWithStorable<I extends { key: string }, O>(
  items: readonly I[],
  failed: (error: InvalidOptionError) => O,
  call: (storable: readonly I[]) => Awaitable<O[]>,
): Awaitable<O[]> {
  if (items.every(({ key }) => isStorable(key))) return call(items)
  const merged = (answers: readonly O[]): O[] => {
    let next = 0
    return items.map(({ key }) => (isStorable(key) ? (answers[next++] as O) : failed(unstorableKey(key))))
  }
  const answers = call(items.filter(({ key }) => isStorable(key)))
  return answers instanceof Promise ? answers.then(merged) : merged(answers)
}
