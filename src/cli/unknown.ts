import { UsageError } from './usage-error.js'

/** For anything that is chosen from a list: `unknown option "--tll" (did you mean "--ttl"? known: --ttl, --wait)`. */
export function unknownWord(what: string, given: string, known: readonly string[]): UsageError {
  const meant = nearest(given, known)
  const suggestion = meant === undefined ? '' : `did you mean ${JSON.stringify(meant)}? `
  return new UsageError(
    `unknown ${what} ${JSON.stringify(given.slice(0, 60))} (${suggestion}known: ${known.join(', ')})`,
  )
}

/** The known word that a typing mistake or two would turn into this one. */
function nearest(given: string, known: readonly string[]): string | undefined {
  const bare = (word: string): string => word.replace(/^-+/, '').toLowerCase()
  const most = Math.max(1, Math.floor(bare(given).length / 3))
  const [best] = known
    .map((word) => ({ word, distance: distanceOf(bare(given), bare(word)) }))
    .filter(({ distance }) => distance <= most)
    .sort((a, b) => a.distance - b.distance)
  return best?.word
}

/** Letters to insert, drop or replace. */
function distanceOf(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const replaced = (row[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1)
      next.push(Math.min(replaced, (row[j] as number) + 1, (next[j - 1] as number) + 1))
    }
    row = next
  }
  return row[b.length] as number
}
