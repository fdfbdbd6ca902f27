import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Store } from '../../../src/store.js'
import { kinds, type Place } from '../../support/places.js'
import { mutants } from '../../conformance/mutants.js'
import { unharmed } from '../../conformance/mutate.js'
import { crowd, errands, type Venue } from './crowd.js'

/** Bounded: the long campaigns are those in virtual time. A failure prints the seed and the path that repeat it. */
const RUNS = { numRuns: 6, endOnFailure: true }

for (const kind of Object.values(kinds)) {
  describe.concurrent(`${kind.name}: whoever comes in whatever order`, () => {
    let place: Place
    const clients: Store[] = []
    const venue: Venue = { clients, patienceMs: 20_000 }

    beforeAll(async () => {
      place = await kind.open()
      for (let i = 0; i < 3; i++) clients.push(await place.store())
    })

    afterAll(async () => {
      for (const client of clients) await client.close()
      await place.close()
    })

    test('never more permits than there are, first come first served, and everybody gets in', () =>
      fc.assert(crowd(venue, 'semaphore'), RUNS))
    test('a writer is alone, first come first served, and everybody gets in', () =>
      fc.assert(crowd(venue, 'readWrite'), RUNS))
    test('several names at once: all or nothing, and no deadlock', () => fc.assert(errands(venue), RUNS))
  })
}

describe.concurrent('these can fail', () => {
  const properties = {
    semaphore: (venue: Venue) => crowd(venue, 'semaphore'),
    readWrite: (venue: Venue) => crowd(venue, 'readWrite'),
    errands,
  }
  const mistakes: [keyof typeof properties, string][] = [
    ['semaphore', 'capacity is off by one'],
    ['semaphore', 'last come, first served'],
    ['readWrite', 'a lock is 1 of 1 beside readers that are 1 of everything'],
    ['readWrite', 'last come, first served'],
    ['errands', 'all or none says none and leaves some'],
  ]

  test.each(mistakes)('%s, when %s', async (property, what) => {
    const open = mutants.find((mutant) => mutant.what === what)?.store as () => Store
    const judge = (store: Store, numRuns: number): Promise<fc.RunDetails<unknown>> =>
      fc.check(properties[property]({ clients: [store], patienceMs: 5_000 }), {
        numRuns,
        seed: 1,
        endOnFailure: true,
      }) as Promise<fc.RunDetails<unknown>>
    expect((await judge(unharmed(), 3)).failed).toBe(false)
    expect((await judge(open(), 50)).failed).toBe(true)
  })
})
