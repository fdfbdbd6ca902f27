import { expect } from 'vitest'
import { ALL, type Claim, type Store, type StoreEvent } from '../../src/store.js'

/** The first one lets go, and each of the others hears of what it gets itself and of nothing else. Every store is a process's. */
export async function onlyTheNextWakes([holder, ...others]: Store[], key: string): Promise<void> {
  const claim = (owner: string): Claim => ({ key, owner, weight: ALL, capacity: ALL, ttlMs: 30_000, placeMs: 10_000 })
  const held = claim('holder')
  await holder?.acquire([held])
  const waiters: { store: Store; waiting: Claim; heard: StoreEvent[] }[] = []
  for (const store of others) {
    const heard: StoreEvent[] = []
    expect(await store.watch?.(key, (event) => heard.push(event)).ready).toBe(true)
    const waiting = claim(`waiter ${waiters.length}`)
    await store.acquire([waiting])
    waiters.push({ store, waiting, heard })
  }
  await holder?.release([held])
  for (const { store, waiting, heard } of waiters) {
    await expect.poll(() => heard.length, { interval: 1, timeout: 10_000 }).toBeGreaterThan(0)
    // What the ones before it got was told earlier, and would have been heard by now.
    expect(heard).toMatchObject([{ type: 'granted', owner: waiting.owner }])
    await store.release([waiting])
  }
}
