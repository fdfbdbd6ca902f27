/** Calls of one `DistributedLock` that meet. */
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, onTestFinished, test, vi } from 'vitest'
import { DistributedLock } from '../../src/primitives/distributed-lock.js'
import { InstanceHolds } from '../../src/primitives/instance-holds.js'
import { createLocks, memory } from '../../src/index.js'
import { faulty } from '../../src/testing/index.js'

const microtasks = async (count: number): Promise<void> => {
  for (let i = 0; i < count; i++) await Promise.resolve()
}

test('a call that waits goes on through an outage, and one that does not wait reports it', async () => {
  const store = faulty(memory(), [{ on: 'acquire', effect: 'break-call', times: 3 }])
  const lock = new DistributedLock(store)
  await expect(lock.acquire('a')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  expect(await lock.acquire('a', { blocking: true })).toMatchObject({ acquired: true })
})

test('releaseAll() ends acquires on their way, whenever a waiting call of the instance is granted the lock', async () => {
  for (let released = 0; released < 12; released++) {
    for (let ended = 0; ended < 12; ended++) {
      const store = memory()
      const [lock, other] = [new DistributedLock(store), new DistributedLock(store)]
      await other.acquire('a')
      const inside = lock.withLock('a', () => microtasks(20), { blocking: true }).catch(() => {})
      await microtasks(30)
      const calls = [1, 2, 3].map(() => lock.acquire('a', { timeoutSeconds: 60 }))
      const freed = microtasks(released).then(() => other.release('a'))
      await microtasks(ended)
      await lock.releaseAll()
      await Promise.all([...calls, freed, inside])
      await vi.waitFor(() => expect(store.holders('lock:'), `after ${released} and ${ended} microtasks`).toEqual([]))
    }
  }
})

test('no call waits for a lock that another call of its instance was just granted', async () => {
  for (let k = 0; k < 16; k++) {
    const store = memory()
    const [lock, other] = [new DistributedLock(store), new DistributedLock(store)]
    await other.acquire('a')
    const first = lock.acquire('a', { blocking: true })
    await sleep(1)
    const second = lock.acquire('a', { blocking: true, blockingTimeoutSeconds: 0.5 })
    await microtasks(k)
    await other.release('a')
    expect((await first).acquired).toBe(true)
    expect(await second, `after ${k} microtasks`).toMatchObject({ acquired: true })
  }
})

test('a lock that was lost while a call was inside leaves nothing behind when that call has ended', async () => {
  vi.useFakeTimers()
  onTestFinished(() => void vi.useRealTimers())
  const store = memory()
  const holds = new InstanceHolds(createLocks(store))
  const terms = { ttl: 1_000, waitMs: 0, autoRenew: false, metadata: undefined }
  const kept = await holds.take('a', terms)
  kept.kept = true
  await vi.advanceTimersByTimeAsync(10_000)
  expect([...holds.names()]).toEqual(['a'])
  await holds.leave('a', kept)
  await vi.advanceTimersByTimeAsync(2_000)
  expect([...holds.names()]).toEqual([])
})
