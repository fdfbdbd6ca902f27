/** Proves that the kit can fail: each store with one defect is detected by the case that is there for it. */
import { expect, test } from 'vitest'
import type { Store } from '../../src/store.js'
import { type Case, runCase, storeCases } from '../../src/testing/index.js'
import { mutants } from './mutants.js'
import { unharmed } from './mutate.js'

/**
 * PATIENCE_MS: how long a case waits on a mutant for what must happen. Many mutants make it never happen, so a longer wait
 * only makes the suite slower.
 */
const PATIENCE_MS = 2_000

/** The error of the case on this store, or undefined if it passes. */
async function failure(item: Case, store: Store, patienceMs?: number): Promise<unknown> {
  const setup = { store: async () => store, close: async () => {} }
  try {
    await runCase(item, setup, patienceMs)
    return undefined
  } catch (error) {
    return error
  }
}

const cases = new Map(storeCases().map((item) => [item.name, item]))

test.concurrent.each(mutants)('the kit notices when $what', async ({ store, caughtBy }) => {
  const item = cases.get(caughtBy) as Case
  // The same wrapper without the defect passes, so the failure is due to the defect.
  expect(await failure(item, unharmed())).toBeUndefined()
  expect(await failure(item, store(), PATIENCE_MS)).toBeInstanceOf(Error)
})
