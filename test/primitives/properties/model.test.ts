import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { agreement } from './model.js'
import {
  lastComeFirstServed,
  nobodyIsRobbed,
  nobodyIsWoken,
  nothingIsRenewed,
  oneTooMany,
  placesStay,
  releasesNothing,
  type StoreIn,
  whole,
  writersAreReaders,
} from './broken.js'
import type { DoorKind } from './doors.js'
import { memory } from '../../../src/stores/memory/index.js'

describe('in memory and virtual time, random commands agree with the model after each step', () => {
  const kinds: DoorKind[] = ['semaphore', 'readWrite', 'request']
  // A failure prints the seed and the path that repeat it.
  test.each(kinds)('%s', (kind) =>
    fc.assert(
      agreement(kind, (world) => memory({ world })),
      { numRuns: 500 },
    ),
  ) // prettier-ignore
})

describe('the model can fail', () => {
  const mistakes: [string, DoorKind, StoreIn][] = [
    ['one permit too many', 'semaphore', oneTooMany],
    ['a writer beside readers', 'readWrite', writersAreReaders],
    ['last come, first served (semaphore)', 'semaphore', lastComeFirstServed],
    ['last come, first served (readWrite)', 'readWrite', lastComeFirstServed],
    ['last come, first served (request)', 'request', lastComeFirstServed],
    ['wake-ups are lost (semaphore)', 'semaphore', nobodyIsWoken],
    ['wake-ups are lost (readWrite)', 'readWrite', nobodyIsWoken],
    ['wake-ups are lost (request)', 'request', nobodyIsWoken],
    ['who gives up keeps its place', 'semaphore', placesStay],
    ['nothing is renewed', 'readWrite', nothingIsRenewed],
    ['something is held after close', 'request', releasesNothing],
    ['thieves come away empty-handed', 'request', nobodyIsRobbed],
  ]

  test.each(mistakes)('%s', async (_what, kind, store) => {
    const seed = 1
    // The same wrapper without the mistake passes with the same commands, so that it is the mistake that is noticed.
    expect((await fc.check(agreement(kind, whole), { numRuns: 20, seed })).failed).toBe(false)
    const run = await fc.check(agreement(kind, store), { numRuns: 300, seed, endOnFailure: true })
    expect(run.failed).toBe(true)
  })
})
