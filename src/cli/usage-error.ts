import { suggestion } from '../util/options.js'
import { describe } from '../util/redact.js'

/** Bad usage: exit status 64, and nothing was touched. */
export class UsageError extends Error {}

/** For anything that is chosen from a list: `unknown option "--tll" (did you mean "--ttl"? known: --ttl, --wait)`. `synonym`: what is meant although it looks different. */
export function unknownWord(what: string, given: string, known: readonly string[], synonym?: string): UsageError {
  const meant = suggestion(withoutHyphens(given), known.map(withoutHyphens))
  const word = synonym ?? known.find((each) => withoutHyphens(each) === meant)
  const hint = word === undefined ? '' : `did you mean ${JSON.stringify(word)}? `
  return new UsageError(`unknown ${what} ${describe(given)} (${hint}known: ${known.join(', ')})`)
}

/** Hyphens are no part of what was mistyped: with them, every option would resemble every other. */
function withoutHyphens(word: string): string {
  return word.replace(/^-+/, '')
}
