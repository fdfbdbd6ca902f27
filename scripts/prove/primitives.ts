// Elections, several names at once, read/write locks and semaphores in real processes that are killed and frozen
import { changes, frozen, handOvers } from './primitives/elections.js'
import { openPlaces, type Place } from './primitives/places.js'
import { severalNames } from './primitives/several.js'
import { shares } from './primitives/shares.js'
import type { Proving } from './proving.js'

export default async function prove(p: Proving): Promise<void> {
  const { places, close } = await openPlaces()
  try {
    const elections = places.filter((place) => place.elections)
    await handOvers(p, elections)
    await frozen(p, elections)
    await inPairs(elections, (place) => changes(p, place))
    for (const place of places) await severalNames(p, place)
    await inPairs(places, (place) => shares(p, place))
  } finally {
    await close()
  }
}

/** Most of the time nothing happens there until some lease has run out. */
async function inPairs(places: readonly Place[], run: (place: Place) => Promise<void>): Promise<void> {
  for (let i = 0; i < places.length; i += 2) await Promise.all(places.slice(i, i + 2).map(run))
}
