/** The kit can fail: stores with one mistake each are all noticed, by a case that is there for that mistake. */
import { expect, test } from 'vitest'
import type { Store } from '../../src/store.js'
import { type Case, runCase, storeCases } from '../../src/testing/index.js'
import { mutants } from './mutants.js'
import { unharmed } from './mutate.js'

/** How long to wait for what must happen: a mutant often makes it never happen. */
const PATIENCE_MS = 2_000

/** Why the case fails on this store, or undefined. */
async function failure(item: Case, store: Store): Promise<unknown> {
  const setup = { store: async () => store, close: async () => {} }
  try {
    await runCase(item, setup, PATIENCE_MS)
    return undefined
  } catch (error) {
    return error
  }
}

const cases = new Map(storeCases().map((item) => [item.name, item]))

test.concurrent.each(mutants)('the kit notices when $what', async ({ store, caughtBy }) => {
  const item = cases.get(caughtBy) as Case
  // The same wrapper without the mistake passes, so that it is the mistake that is noticed.
  expect(await failure(item, unharmed())).toBeUndefined()
  expect(await failure(item, store())).toBeInstanceOf(Error)
})
