import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Store } from '../../../src/store.js'
import { suiteKinds, type Fixture } from '../../../testbed/fixtures.js'
import { mutants } from '../../conformance/mutants.js'
import { unharmed } from '../../conformance/mutate.js'
import { contention, severalNames, type PropertyClients } from './store-properties.js'

/** Few runs: the long campaigns use virtual time. A failure prints the seed and the path that repeat it. */
const RUNS = { numRuns: 6, endOnFailure: true }

for (const kind of suiteKinds()) {
  describe.concurrent(`${kind.name}: any callers in any order`, () => {
    let fixture: Fixture
    const shared: PropertyClients & { clients: Store[] } = { clients: [], patienceMs: 20_000 }
    // Clients without callers that die: a server ends sessions that were silent for the short ttl of one, and whatever they are asked then.
    const lasting: typeof shared = { clients: [], patienceMs: 20_000 }

    beforeAll(async () => {
      fixture = await kind.open()
      for (const { clients } of [shared, lasting, shared, lasting, shared, lasting]) clients.push(await fixture.store())
    })

    afterAll(async () => {
      for (const client of [...shared.clients, ...lasting.clients]) await client.close()
      await fixture.close()
    })

    test('never hold more permits than there are, are served in order, and are all served', () =>
      fc.assert(contention(shared, 'semaphore'), RUNS))
    test('exclude all others as a writer, are served in order, and are all served', () =>
      fc.assert(contention(shared, 'readWrite'), RUNS))
    test('hold several names all or none, without deadlock', () => fc.assert(severalNames(lasting), RUNS))
  })
}

describe.concurrent('the properties can fail', () => {
  const properties = {
    semaphore: (shared: PropertyClients) => contention(shared, 'semaphore'),
    readWrite: (shared: PropertyClients) => contention(shared, 'readWrite'),
    severalNames,
  }
  const defects: [keyof typeof properties, string][] = [
    ['semaphore', 'capacity is off by one'],
    ['semaphore', 'the last waiter is served first'],
    ['readWrite', 'a lock is 1 of 1 beside readers that are 1 of everything'],
    ['readWrite', 'the last waiter is served first'],
    ['severalNames', 'an atomic batch reports no grant and keeps some'],
  ]

  test.each(defects)('%s, if %s', async (property, what) => {
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
