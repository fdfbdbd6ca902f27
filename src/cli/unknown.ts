import { suggestion } from '../util/options.js'
import { UsageError } from './usage-error.js'

/** For anything that is chosen from a list: `unknown option "--tll" (did you mean "--ttl"? known: --ttl, --wait)`. */
export function unknownWord(what: string, given: string, known: readonly string[]): UsageError {
  const meant = suggestion(bare(given), known.map(bare))
  const word = known.find((each) => bare(each) === meant)
  const hint = word === undefined ? '' : `did you mean ${JSON.stringify(word)}? `
  return new UsageError(`unknown ${what} ${JSON.stringify(given.slice(0, 60))} (${hint}known: ${known.join(', ')})`)
}

/** Hyphens are no typing mistake. */
function bare(word: string): string {
  return word.replace(/^-+/, '')
}
