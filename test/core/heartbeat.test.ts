/** Leases that are due together are renewed together, and each is answered by itself. */
import { expect, test, vi } from 'vitest'
import { createLocks, LockLostError, memory } from '../../src/index.js'
import type { Renewal, Renewed, Store } from '../../src/store.js'
import { faulty, type FaultyStore } from '../../src/testing/index.js'

/** Long enough for a busy machine: the first heartbeat comes after a third of it. */
const TTL_MS = 900

const renewed = (store: FaultyStore): number[] =>
  store.calls.filter(({ call }) => call === 'renew').map(({ items }) => items.length)

/** A store that answers later, and whose renewals a test can change. */
function distant(over: Partial<Store>, answer?: (renewals: readonly Renewal[]) => Promise<Renewed[]>): FaultyStore {
  const store = memory()
  const inner = { ...store, ...over, renew: answer ?? ((renewals: readonly Renewal[]) => store.renew(renewals)) }
  for (const name of ['acquire', 'release', 'watch', 'watchGrants', 'watchRevoked', 'close'] as const)
    Object.assign(inner, { [name]: store[name]?.bind(store) })
  return faulty(inner as Store, [{ effect: 'delay-reply', ms: 1 }])
}

test('leases that are due together are renewed in as few calls as the store takes, never two partitions in one', async () => {
  const store = distant({ maxBatch: 4, partition: (key: string) => Number(key.slice(-1)) % 2 })
  const locks = createLocks(store, { ttl: TTL_MS })
  await Promise.all(Array.from({ length: 10 }, (_, i) => locks.acquire(`name ${i}`)))
  await vi.waitFor(() => expect(renewed(store).length).toBeGreaterThanOrEqual(4), 5_000)
  // Five of each partition.
  expect(renewed(store).slice(0, 4).sort()).toEqual([1, 1, 4, 4])
  const calls = store.calls.filter(({ call }) => call === 'renew')
  for (const { items } of calls)
    expect(new Set((items as Renewal[]).map(({ key }) => Number(key.slice(-1)) % 2)).size).toBe(1)
  await locks.close({ grace: 0 })
})

test('of the leases of one heartbeat only the one that is gone is lost, and only the undecided one is asked for again', async () => {
  const asked: string[][] = []
  const inner = memory()
  const store = distant({}, async (renewals) => {
    asked.push(renewals.map(({ key }) => key))
    const answers = await inner.renew(renewals)
    return renewals.map(({ key, ttlMs }, i): Renewed => {
      if (key.endsWith('gone')) return { outcome: 'gone' }
      if (key.endsWith('unsure') && asked.length === 1) return { outcome: 'unknown', error: new Error('no idea') }
      return answers[i]?.outcome === 'ours' ? (answers[i] as Renewed) : { outcome: 'ours', ttlMs }
    })
  })
  const locks = createLocks(store, { ttl: TTL_MS })
  const [kept, gone, unsure] = await Promise.all(['kept', 'gone', 'unsure'].map((name) => locks.acquire(name)))
  await vi.waitFor(() => expect(gone?.isHeld).toBe(false), 5_000)
  expect(() => gone?.assertHeld()).toThrow(LockLostError)
  await vi.waitFor(() => expect(asked.length).toBeGreaterThanOrEqual(2), 5_000)
  expect(asked[0]?.length).toBe(3)
  expect(asked[1]).toEqual(['lock:unsure'])
  expect([kept?.isHeld, unsure?.isHeld]).toEqual([true, true])
  await locks.close({ grace: 0 })
})

test('extend() waits for the heartbeat that is out, and then asks for its own time', async () => {
  let answer: ((answers: Renewed[]) => void) | undefined
  const asked: number[] = []
  const store = distant({}, (renewals) => {
    asked.push(...renewals.map(({ ttlMs }) => ttlMs))
    const ours = renewals.map(({ ttlMs }): Renewed => ({ outcome: 'ours', ttlMs }))
    if (asked.length > 1) return Promise.resolve(ours)
    return new Promise((resolve) => (answer = () => resolve(ours)))
  })
  const locks = createLocks(store, { ttl: TTL_MS })
  const lock = await locks.acquire('a')
  await vi.waitFor(() => expect(asked).toEqual([TTL_MS]), 5_000)
  const extended = lock.extend('20s')
  expect(asked).toEqual([TTL_MS])
  answer?.([])
  await extended
  expect(asked).toEqual([TTL_MS, 20_000])
  expect(lock.remainingMs).toBeGreaterThan(10_000)
  await locks.close({ grace: 0 })
})

test('a lease that was released while its heartbeat was out is not renewed again, and its release counts', async () => {
  let answer: (() => void) | undefined
  const asked: number[] = []
  const store = distant({}, (renewals) => {
    asked.push(renewals.length)
    return new Promise((resolve) => {
      answer = () => resolve(renewals.map(({ ttlMs }): Renewed => ({ outcome: 'ours', ttlMs })))
    })
  })
  const locks = createLocks(store, { ttl: TTL_MS })
  const [one, other] = await Promise.all([locks.acquire('one'), locks.acquire('other')])
  await vi.waitFor(() => expect(asked).toEqual([2]), 5_000)
  expect(await one?.release()).toBe(true)
  answer?.()
  await vi.waitFor(() => expect(asked).toEqual([2, 1]), 5_000)
  expect(other?.isHeld).toBe(true)
  answer?.()
  await locks.close({ grace: 0 })
})
