// Elections, several names at once, read/write locks and semaphores in real processes that are killed and frozen
import { changes, frozen, handOffs } from './primitives/elections.js'
import { openSharedStores, type SharedStore } from './primitives/stores.js'
import { severalNames } from './primitives/several-names.js'
import { shares } from './primitives/shares.js'
import type { Proving } from './proving.js'

export default async function prove(p: Proving): Promise<void> {
  const { stores, close } = await openSharedStores()
  try {
    const elections = stores.filter((store) => store.elections)
    await handOffs(p, elections)
    await frozen(p, elections)
    await inPairs(elections, (store) => changes(p, store))
    for (const store of stores) await severalNames(p, store)
    await inPairs(stores, (store) => shares(p, store))
  } finally {
    await close()
  }
}

/** Two stores at a time, because most of the time the campaigns wait for leases to expire. */
async function inPairs(stores: readonly SharedStore[], run: (store: SharedStore) => Promise<void>): Promise<void> {
  for (let i = 0; i < stores.length; i += 2) await Promise.all(stores.slice(i, i + 2).map(run))
}
