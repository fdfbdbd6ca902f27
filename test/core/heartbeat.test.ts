/** Leases that are due together are renewed together, and each is answered by itself. In virtual time. */
import { expect, test } from 'vitest'
import { LockLostError, type Lock } from '../../src/index.js'
import type { Renewal, Renewed, Store } from '../../src/store.js'
import { RemoteMemory } from './remote-memory.js'

const TTL_MS = 900
/** HEARTBEAT_MS: the first heartbeat comes after a third of the ttl, and is answered by then. */
const HEARTBEAT_MS = TTL_MS / 3 + 10

const renewals = (remote: RemoteMemory): Renewal[][] =>
  remote.calls.filter(({ method }) => method === 'renew').map(({ items }) => items as Renewal[])

/** A store that answers later, and whose renewals a test can change. */
function distant(over: Partial<Store>, answer?: (asked: readonly Renewal[]) => Promise<Renewed[]>): RemoteMemory {
  const remote = new RemoteMemory({ ...over, ...(answer && { renew: answer }) })
  remote.fate = () => ({ replyMs: 1 })
  return remote
}

/** Acquires all names in one turn. */
async function held(remote: RemoteMemory, names: readonly string[]): Promise<Lock[]> {
  const locks = remote.locks({ ttl: TTL_MS })
  const acquiring = names.map((name) => locks.acquire(name))
  await remote.pass(5)
  return Promise.all(acquiring)
}

test('leases that are due together are renewed in as few calls as the store takes, never two partitions in one', async () => {
  const partition = (key: string): number => Number(key.slice(-1)) % 2
  const remote = distant({ maxBatch: 4, partition })
  const locks = await held(
    remote,
    Array.from({ length: 10 }, (_, i) => `name ${i}`),
  )
  await remote.pass(HEARTBEAT_MS)
  const calls = renewals(remote)
  // Five of each partition.
  expect(calls.map(({ length }) => length).sort()).toEqual([1, 1, 4, 4])
  for (const items of calls) expect(new Set(items.map(({ key }) => partition(key))).size).toBe(1)
  expect(locks.every(({ isHeld }) => isHeld)).toBe(true)
})

test('of the leases of one heartbeat only the one that is gone is lost, and only the undecided one is asked for again', async () => {
  const asked: string[][] = []
  const remote = distant({}, async (items) => {
    asked.push(items.map(({ key }) => key))
    return items.map(({ key, ttlMs }): Renewed => {
      if (key.endsWith('gone')) return { outcome: 'gone' }
      if (key.endsWith('unsure') && asked.length === 1) return { outcome: 'unknown', error: new Error('no idea') }
      return { outcome: 'ours', ttlMs }
    })
  })
  const [kept, gone, unsure] = await held(remote, ['kept', 'gone', 'unsure'])
  // Before the next heartbeat: the undecided lease is asked for again sooner than that.
  await remote.pass(HEARTBEAT_MS + TTL_MS / 4)
  expect(gone?.isHeld).toBe(false)
  expect(() => gone?.assertHeld()).toThrow(LockLostError)
  expect(asked[0]?.length).toBe(3)
  expect(asked[1]).toEqual(['lock:unsure'])
  expect([kept?.isHeld, unsure?.isHeld]).toEqual([true, true])
})

test('extend() waits for the heartbeat that is out, and then asks for its own time', async () => {
  let answer: (() => void) | undefined
  const asked: number[] = []
  const remote = distant({}, (items) => {
    asked.push(...items.map(({ ttlMs }) => ttlMs))
    const ours = items.map(({ ttlMs }): Renewed => ({ outcome: 'ours', ttlMs }))
    if (asked.length > 1) return Promise.resolve(ours)
    return new Promise((resolve) => (answer = () => resolve(ours)))
  })
  const [lock] = (await held(remote, ['a'])) as [Lock]
  await remote.pass(HEARTBEAT_MS)
  expect(asked).toEqual([TTL_MS])
  const extended = lock.extend('20s')
  await remote.pass(1)
  expect(asked).toEqual([TTL_MS])
  answer?.()
  await remote.pass(1)
  await extended
  expect(asked).toEqual([TTL_MS, 20_000])
  expect(lock.remainingMs).toBeGreaterThan(10_000)
})

test('a lease that was released while its heartbeat was out is not renewed again, and its release counts', async () => {
  let answer: (() => void) | undefined
  const asked: number[] = []
  const remote = distant({}, (items) => {
    asked.push(items.length)
    return new Promise((resolve) => {
      answer = () => resolve(items.map(({ ttlMs }): Renewed => ({ outcome: 'ours', ttlMs })))
    })
  })
  const [one, other] = (await held(remote, ['one', 'other'])) as [Lock, Lock]
  await remote.pass(HEARTBEAT_MS)
  expect(asked).toEqual([2])
  const released = one.release()
  await remote.pass(5)
  expect(await released).toBe(true)
  answer?.()
  await remote.pass(HEARTBEAT_MS)
  expect(asked).toEqual([2, 1])
  expect(other.isHeld).toBe(true)
})
