import type { Answer, Blocker, Claim, Refusal } from '../../store.js'
import { type Entry, type Holding, isShared } from './book.js'
import { explain } from './trouble.js'

export const GONE: { outcome: 'gone' } = { outcome: 'gone' }
export const RELEASED: { outcome: 'released' } = { outcome: 'released' }

export function unknown(error: unknown): Answer {
  return { granted: 'unknown', error: explain(error) }
}

export function refusalBy({ owner, token, value }: Holding): Refusal {
  const blocker: Blocker = { owner, token, value }
  return { granted: false, blocker }
}

export function refusalIn(entry: Entry, claim: Claim): Refusal {
  const obstacle = entry.obstacle(isShared(claim))
  return obstacle ? refusalBy(obstacle) : { granted: false }
}

/** All answers in one promise, in the order of the questions. */
export function each<I, O>(items: readonly I[], ask: (item: I, answer: (answer: O) => void) => void): Promise<O[]> {
  return new Promise((resolve) => {
    const answers: O[] = []
    let missing = items.length
    if (missing === 0) resolve(answers)
    for (const [i, item] of items.entries()) {
      ask(item, (answer) => {
        answers[i] = answer
        if (--missing === 0) resolve(answers)
      })
    }
  })
}
