import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { agreement } from './model.js'
import {
  lastComeFirstServed,
  nothingIsStolen,
  nobodyIsWoken,
  nothingIsRenewed,
  oneTooMany,
  entriesStay,
  releasesNothing,
  type StoreIn,
  whole,
  writersAreReaders,
} from './defective-stores.js'
import type { SubjectKind } from './subjects.js'
import { memory } from '../../../src/stores/memory/index.js'

describe('in memory and virtual time, random commands agree with the model after each step', () => {
  const kinds: SubjectKind[] = ['semaphore', 'readWrite', 'request']
  // A failure prints the seed and the path that repeat it.
  test.each(kinds)('%s', (kind) =>
    fc.assert(
      agreement(kind, (world) => memory({ world })),
      { numRuns: 500 },
    ),
  ) // prettier-ignore
})

describe('the model fails if', () => {
  const defects: [string, SubjectKind, StoreIn][] = [
    ['one permit too many is granted', 'semaphore', oneTooMany],
    ['a writer holds beside readers', 'readWrite', writersAreReaders],
    ['the last waiter is served first (semaphore)', 'semaphore', lastComeFirstServed],
    ['the last waiter is served first (readWrite)', 'readWrite', lastComeFirstServed],
    ['the last waiter is served first (request)', 'request', lastComeFirstServed],
    ['wake-ups are lost (semaphore)', 'semaphore', nobodyIsWoken],
    ['wake-ups are lost (readWrite)', 'readWrite', nobodyIsWoken],
    ['wake-ups are lost (request)', 'request', nobodyIsWoken],
    ['a waiter that gives up keeps its queue entry', 'semaphore', entriesStay],
    ['nothing is renewed', 'readWrite', nothingIsRenewed],
    ['something is held after close', 'request', releasesNothing],
    ['a steal takes nothing', 'request', nothingIsStolen],
  ]

  test.each(defects)('%s', async (_what, kind, store) => {
    const seed = 1
    // The same wrapper without the defect passes with the same commands, so the failure is due to the defect.
    expect((await fc.check(agreement(kind, whole), { numRuns: 20, seed })).failed).toBe(false)
    const run = await fc.check(agreement(kind, store), { numRuns: 300, seed, endOnFailure: true })
    expect(run.failed).toBe(true)
  })
})
