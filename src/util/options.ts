/**
 * One check for options that do not exist, in every call that takes some.
 *
 * @module
 */
import { InvalidOptionError } from '../errors.js'
import { describe, redact } from './redact.js'

/** The options, if they are an object and hold nothing that would be overlooked. */
export function knownOptions<T extends object>(options: T, known: readonly string[]): T {
  if (typeof options !== 'object' || options === null) throw new InvalidOptionError('options', options, 'an object')
  for (const option in options) if (!known.includes(option)) throw unknownWord('option', option, known)
  return options
}

/** For anything that is chosen from a list: `unknown option "waitt" (did you mean "wait"? known: ttl, wait)`. */
export function unknownWord(what: string, given: unknown, known: readonly string[]): InvalidOptionError {
  const word = String(given)
  const meant = suggestion(word, known)
  const hint = meant === undefined ? '' : `did you mean ${JSON.stringify(meant)}? `
  const message = `unknown ${what} ${describe(word)} (${hint}known: ${known.join(', ')})`
  return new InvalidOptionError(what === 'option' ? redact(word) : what, word, `one of ${known.join(', ')}`, message)
}

/** An event that does not exist is never emitted: its listener would wait for ever. */
export function checkListener(event: unknown, listener: unknown, known: readonly string[]): void {
  if (typeof event !== 'string' || !known.includes(event)) throw unknownWord('event', event, known)
  if (typeof listener !== 'function') throw new InvalidOptionError('listener', listener, 'a function')
}

/** The known word that was probably meant. */
export function suggestion(word: string, known: readonly string[]): string | undefined {
  // No typing mistake, and the comparison takes time that grows with its length.
  if (word.length > 60) return undefined
  let best: string | undefined
  let least = Math.max(1, Math.floor(word.length / 3)) + 1
  for (const candidate of known) {
    const distance = candidate.toLowerCase() === word.toLowerCase() ? 0 : editDistance(word, candidate)
    if (distance < least) [best, least] = [candidate, distance]
  }
  return best
}

/** Insertions, deletions, replacements and swaps of neighbours that turn one word into the other. */
function editDistance(a: string, b: string): number {
  const rows: number[][] = [Array.from({ length: b.length + 1 }, (_, j) => j)]
  const at = (i: number, j: number): number => rows[i]?.[j] ?? Number.POSITIVE_INFINITY
  for (let i = 1; i <= a.length; i++) {
    const row = [i]
    rows.push(row)
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]
      row.push(
        Math.min(
          at(i - 1, j) + 1,
          at(i, j - 1) + 1,
          at(i - 1, j - 1) + same,
          swapped ? at(i - 2, j - 2) + 1 : Number.POSITIVE_INFINITY,
        ),
      )
    }
  }
  return at(a.length, b.length)
}
