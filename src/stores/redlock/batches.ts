/**
 * A batch may hold anything, and each of its items is answered by itself.
 *
 * @module
 */
import type { Claim, Released, Renewed } from '../../store.js'
import { Disagreement } from './cluster.js'

/** Enough nodes answered, and they disagree. */
export function isTorn(answer: Renewed): boolean {
  return answer.outcome === 'unknown' && answer.error instanceof Disagreement
}

/** Answers `gone` to some items, and asks for the others. */
export function exceptGone<Item, Answered extends Renewed | Released>(
  items: readonly Item[],
  isGone: (item: Item) => boolean,
  ask: (rest: readonly Item[], done: (answers: Answered[]) => void) => void,
  done: (answers: Answered[]) => void,
): void {
  const gone = items.map(isGone)
  ask(
    items.filter((_, i) => !gone[i]),
    (answers) => {
      const rest = answers.values()
      done(gone.map((isOne) => (isOne ? ({ outcome: 'gone' } as Answered) : (rest.next().value as Answered))))
    },
  )
}

/** The place of the first claim for a key that its owner has asked for already, in the same batch; 0: there is none. */
export function firstRepeat(claims: readonly Claim[]): number {
  const seen = new Set<string>()
  for (const [i, { key, owner }] of claims.entries()) {
    const id = JSON.stringify([key, owner])
    if (seen.has(id)) return i
    seen.add(id)
  }
  return 0
}
