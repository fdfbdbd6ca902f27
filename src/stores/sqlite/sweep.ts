import type { Books } from './books.js'
import type { Statements } from './statements.js'

/** Sorts after every key. */
const LAST_KEY = '\u{10ffff}'.repeat(4)

/**
 * Drops what expired under keys that nobody asks for any more, a stretch of keys at a time, so that no call pays for a
 * large table. Where it stopped is kept in the file: processes that live for three calls get on with it too.
 * Returns the bells of processes that have not been heard of for a long time.
 */
export function sweep(sql: Statements, books: Books, stretches: number): string[] {
  const { sweptTo } = sql.state.get() as { sweptTo: string }
  let from = sweptTo
  for (let swept = 0; swept < stretches; swept++) {
    from = sweepStretch(sql, books, from)
    // The end of all tables: from the beginning on with the next sweep, or a small table would be swept again and again.
    if (from === '') break
  }
  if (from !== sweptTo) sql.setSweptTo.run(from)
  const dead = (sql.expireBells.all(books.now) as { id: string }[]).map(({ id }) => id)
  for (const id of dead) sql.endWatchersOf.run(id)
  return dead
}

/** Returns where the next stretch begins; empty: with the first key. */
function sweepStretch(sql: Statements, books: Books, from: string): string {
  const end = (sql.sweepEnd.get(from) as { key: string | null }).key
  const upTo = end ?? LAST_KEY
  for (const { key, announce } of sql.sweepHolders.all(from, upTo, books.now) as { key: string; announce: number }[]) {
    if (announce) books.letters.push({ key, event: { type: 'changed' }, bell: undefined })
  }
  sql.sweepPlaces.run(from, upTo, books.now)
  sql.sweepMeters.run(from, upTo, books.now)
  return end ?? ''
}
