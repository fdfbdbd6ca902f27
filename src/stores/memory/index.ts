/**
 * Leases in the memory of this process: for one process, for tests, and as the reference that other stores are compared with.
 *
 * @module
 */
import { knownOptions } from '../../util/options.js'
import { type World, realWorld } from '../../util/world.js'
import { InMemoryStore, type MemoryStore } from './store.js'

export type { MemoryStore }

/** A store in the memory of this process. Callers exclude each other only if they share the same store. */
export function memory(options: { world?: World } = {}): MemoryStore {
  return new InMemoryStore(knownOptions(options, ['world']).world ?? realWorld)
}
