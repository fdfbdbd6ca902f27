import type { Books } from './books.js'
import type { Statements } from './statements.js'

/** Sorts after every key. */
const LAST_KEY = '\u{10ffff}'.repeat(4)

/**
 * Drops what expired under keys that nobody asks for any more, a stretch of keys at a time, so that no call pays for a
 * large table. Where it stopped is kept in the file: processes that live for three calls get on with it too.
 * Returns the bells of processes that have not been heard of for a long time.
 */
export function sweep(sql: Statements, books: Books, rows: number): string[] {
  const { sweptTo } = sql.state.get() as { sweptTo: string }
  const end = (sql.sweepEnd.get(sweptTo, rows) as { key: string | null }).key
  const upTo = end ?? LAST_KEY
  for (const { key, announce } of sql.sweepHolders.all(sweptTo, upTo, books.now) as {
    key: string
    announce: number
  }[]) {
    if (announce) books.letters.push({ key, event: { type: 'changed' }, bell: undefined })
  }
  sql.sweepPlaces.run(sweptTo, upTo, books.now)
  sql.sweepMeters.run(sweptTo, upTo, books.now)
  if ((end ?? '') !== sweptTo) sql.setSweptTo.run(end ?? '')
  const dead = (sql.expireBells.all(books.now) as { id: string }[]).map(({ id }) => id)
  for (const id of dead) sql.endWatchersOf.run(id)
  return dead
}
