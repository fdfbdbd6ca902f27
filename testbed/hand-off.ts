/** The assertion that a release wakes one process only, for stores with a queue. */
import { expect } from 'vitest'
import { ALL, type Claim, type Store, type StoreEvent } from '../src/store.js'

/**
 * Asserts that a release wakes only the next waiter: the first store releases, and each of the others gets the event of
 * its own grant and no other event. Each store stands for one process.
 */
export async function onlyTheNextWakes([holder, ...others]: Store[], key: string): Promise<void> {
  const claim = (owner: string): Claim => ({ key, owner, weight: ALL, capacity: ALL, ttlMs: 30_000, queueMs: 10_000 })
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
    // Events of earlier grants were sent earlier, and would have arrived by now.
    expect(heard).toMatchObject([{ type: 'granted', owner: waiting.owner }])
    await store.release([waiting])
  }
}
