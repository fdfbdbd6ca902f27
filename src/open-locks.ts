import type { LocksOptions } from './core/options.js'
import { realWorld } from './util/world.js'
import { Locks } from './locks.js'
import { openStore } from './open-store.js'

/**
 * Locks on the store behind a URL, which belongs to them: `close()` closes both, and the process can exit. The URLs are
 * those of `openStore`.
 *
 * @example
 * ```ts
 * const locks = await openLocks('redis://localhost', { namespace: 'shop' })
 * await locks.withLock('order:7', () => ship())
 * await locks.close()
 * ```
 */
export async function openLocks(url: string, options: LocksOptions = {}): Promise<Locks> {
  const store = await openStore(url)
  try {
    return new Locks(store, options, realWorld, true)
  } catch (error) {
    await store.close()
    throw error
  }
}
