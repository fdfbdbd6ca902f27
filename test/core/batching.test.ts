import { expect, test, vi } from 'vitest'
import { createLocks, type Lock, type Locks, memory } from '../../src/index.js'
import { faulty, type FaultyStore } from '../../src/testing/index.js'

const distant = (): FaultyStore => faulty(memory(), [{ effect: 'delay-reply', ms: 1 }])
const sizes = (store: FaultyStore, call: string): number[] =>
  store.calls.filter((made) => made.call === call).map(({ items }) => items.length)

async function together(locks: Locks, count: number): Promise<void> {
  const held = await Promise.all(Array.from({ length: count }, (_, i) => locks.acquire(`name ${i}`)))
  await Promise.all(held.map((lock) => lock.release()))
}

test('requests of one turn travel together', async () => {
  const store = distant()
  const locks = createLocks(store)
  await together(locks, 20)
  expect(sizes(store, 'acquire')).toEqual([20])
  expect(sizes(store, 'release')).toEqual([20])
  await locks.close()
})

test('many takes travel in parts, so that one part is decided while the answers to another are read', async () => {
  const store = distant()
  const locks = createLocks(store)
  const limiter = locks.limiter('api', { limit: 10, per: '1m' })
  const taken = await Promise.all(Array.from({ length: 80 }, (_, i) => limiter.take(`user ${i}`)))
  expect(taken.every(({ allowed }) => allowed)).toBe(true)
  expect(sizes(store, 'take')).toEqual([32, 32, 16])
  await locks.close()
})

test('a request after a streak of single ones is sent at once; a burst after it is split once, and then never', async () => {
  const store = distant()
  const locks = createLocks(store)
  for (let i = 0; i < 20; i++) await (await locks.acquire('alone')).release()
  const before = store.calls.length
  const asked = locks.acquire('at once')
  expect(store.calls.length, 'sent before this turn ends').toBe(before + 1)
  await asked
  await together(locks, 20)
  await together(locks, 20)
  expect(sizes(store, 'acquire').slice(-3)).toEqual([1, 19, 20])
  await locks.close({ grace: 0 })
})

test('a request does not overtake the release before it', async () => {
  const locks = createLocks(distant())
  for (let i = 0; i < 20; i++) {
    const lock = await locks.acquire('a')
    void lock.release()
    const next = await locks.tryAcquire('a')
    expect(next, `after ${i} turns`).not.toBeNull()
    await next?.release()
  }
  await locks.close()
})

test('a lock that was handed off is renewed if it is kept, and not if it is released at once', async () => {
  const store = distant()
  const locks = [createLocks(store), createLocks(store)] as const
  const handOver = async (): Promise<Lock> => {
    const held = await locks[0].acquire('a')
    const next = locks[1].acquire('a')
    await vi.waitFor(async () => expect(await locks[0].waiters('a')).toHaveLength(1))
    await held.release()
    return next
  }
  await (await handOver()).release()
  expect(sizes(store, 'renew')).toEqual([])
  const kept = await handOver()
  await vi.waitFor(() => expect(sizes(store, 'renew')).toEqual([1]))
  expect(kept.remainingMs, 'all that was asked for').toBeGreaterThan(20_000)
  await Promise.all(locks.map((each) => each.close({ grace: 0 })))
})

test('a waiter continues before its lock is renewed', async () => {
  const store = distant()
  const [holder, waiter] = [createLocks(store), createLocks(store)]
  for (let i = 0; i < 20; i++) await (await waiter.acquire('alone')).release()
  const held = await holder.acquire('a')
  const asked = sizes(store, 'acquire').length
  const waiting = waiter.acquire('a')
  const deeper = async (): Promise<unknown> => await (async () => await waiting)()
  // The waiter asks, subscribes and asks again. Requests that are sent later are answered later.
  await vi.waitFor(() => expect(sizes(store, 'acquire').length).toBe(asked + 2))
  await holder.tryAcquire('a')
  const released = held.release()
  await deeper()
  expect(sizes(store, 'renew')).toEqual([])
  await vi.waitFor(() => expect(sizes(store, 'renew')).toEqual([1]))
  await released
  await Promise.all([holder.close({ grace: 0 }), waiter.close({ grace: 0 })])
})
