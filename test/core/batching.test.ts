import { expect, test } from 'vitest'
import { createLocks, type Lock, type Locks, memory } from '../../src/index.js'
import { faulty, type FaultyStore } from '../../src/testing/index.js'
import { RemoteMemory } from './remote-memory.js'

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

test('many requests travel in parts of maxBatch, so that one part is decided while the answers to another are read', async () => {
  const store = faulty(Object.assign(memory(), { maxBatch: { acquire: 32, renew: 100, release: 32, take: 32 } }), [
    { effect: 'delay-reply', ms: 1 },
  ])
  const locks = createLocks(store)
  const limiter = locks.limiter('api', { limit: 10, per: '1m' })
  const taken = await Promise.all(Array.from({ length: 80 }, (_, i) => limiter.take(`user ${i}`)))
  expect(taken.every(({ allowed }) => allowed)).toBe(true)
  expect(sizes(store, 'take')).toEqual([32, 32, 16])
  await together(locks, 80)
  expect(sizes(store, 'acquire')).toEqual([32, 32, 16])
  expect(sizes(store, 'release')).toEqual([32, 32, 16])
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

/** The memory store with replies of a millisecond, in virtual time: heartbeats come when the test says so. */
function remote(): RemoteMemory {
  const made = new RemoteMemory()
  made.fate = () => ({ replyMs: 1 })
  return made
}
const callsOf = (store: RemoteMemory, method: string): number[] =>
  store.calls.filter((made) => made.method === method).map(({ items }) => items.length)

test('a lock that was handed off is renewed if it is kept, and not if it is released at once', async () => {
  const store = remote()
  const locks = [store.locks(), store.locks()] as const
  const passed = async <T>(promise: Promise<T>): Promise<T> => {
    await store.pass(10)
    return promise
  }
  const handOver = async (): Promise<Lock> => {
    const held = await passed(locks[0].acquire('a'))
    const next = locks[1].acquire('a')
    await store.pass(10)
    expect(store.real.inspect('lock:a').waiters).toHaveLength(1)
    void held.release()
    await store.pass(2)
    return next
  }
  await passed((await handOver()).release())
  await store.pass(500)
  expect(callsOf(store, 'renew')).toEqual([])
  const kept = await handOver()
  await store.pass(500)
  expect(callsOf(store, 'renew')).toEqual([1])
  expect(kept.remainingMs, 'all that was asked for').toBeGreaterThan(20_000)
})

test('a waiter continues before its lock is renewed', async () => {
  const store = remote()
  const [holder, waiter] = [store.locks(), store.locks()]
  // A streak of single requests: from then on a request is sent in the turn in which it is made.
  for (let i = 0; i < 20; i++) {
    const alone = waiter.acquire('alone')
    await store.pass(5)
    void (await alone).release()
    await store.pass(5)
  }
  const acquiring = holder.acquire('a')
  await store.pass(10)
  const held = await acquiring
  const waiting = waiter.acquire('a')
  let renewedBefore: number[] | undefined
  const deeper = async (): Promise<unknown> => await (async () => await waiting)()
  void deeper().then(() => (renewedBefore = callsOf(store, 'renew')))
  await store.pass(10)
  void held.release()
  await store.pass(500)
  expect(renewedBefore).toEqual([])
  expect(callsOf(store, 'renew')).toEqual([1])
})
