import { join } from 'node:path'
import { expect, test } from 'vitest'
import { ALL, type Answer, type Claim } from '../../../src/store.js'
import { sqlite } from '../../../src/stores/sqlite/index.js'
import { claim, count, directory, open, toyMachine } from './fixture.js'

const limits = [{ algorithm: 'token-bucket', limit: 10, perMs: 1_000, burst: 10 }] as const

test('rows of names that are used once are deleted after they expire', async () => {
  const path = join(directory(), 'locks.db')
  const machine = toyMachine()
  const store = open(path, { machine })
  for (let i = 0; i < 2_000; i += 100) {
    const names = Array.from({ length: 100 }, (_, n) => i + n)
    await store.acquire(names.map((n) => claim(`lock:${n}`, 'me', { ttlMs: 500 })))
    await store.acquire(names.map((n) => claim(`lock:${n}`, 'waits', { queueMs: 400 })))
    await store.take?.(names.map((n) => ({ key: `limiter:${n}`, cost: 1, limits })))
  }
  expect([count(path, 'holders'), count(path, 'waiters'), count(path, 'meters')]).toEqual([2_000, 2_000, 2_000])
  machine.at += 60_000
  // Processes that live for one call and use another name do the sweeping.
  for (let i = 0; i < 40; i++) {
    const passing = sqlite(path, { machine })
    await passing.acquire([claim('lock:other', 'me')])
    await passing.close()
  }
  expect([count(path, 'holders'), count(path, 'waiters'), count(path, 'meters')]).toEqual([1, 0, 0])
})

test('leases, queue entries and limits of names that are used once do not pile up when they are sent in batches', async () => {
  const path = join(directory(), 'locks.db')
  const machine = toyMachine()
  const store = open(path, { machine })
  let most = 0
  for (let batch = 0; batch < 30; batch++) {
    const names = Array.from({ length: 500 }, (_, n) => `${batch}:${n}`)
    await store.acquire(names.map((name) => claim(`lock:${name}`, 'me', { ttlMs: 500 })))
    await store.acquire(names.map((name) => claim(`lock:${name}`, 'waits', { queueMs: 400 })))
    await store.take?.(names.map((name) => ({ key: `limiter:${name}`, cost: 1, limits })))
    machine.at += 10_000
    most = Math.max(most, count(path, 'holders'), count(path, 'waiters'), count(path, 'meters'))
  }
  // 15,000 of each were made. All but those of the last batches have ended.
  expect(most).toBeLessThan(2_000)
})

test.each([1, 100, 500])(
  'rate limits of keys that are used once do not pile up when %i takes are sent together',
  async (batch) => {
    const path = join(directory(), 'locks.db')
    const machine = toyMachine()
    const store = open(path, { machine })
    const KEYS = 6_000
    for (let first = 0; first < KEYS; first += batch) {
      const keys = Array.from({ length: batch }, (_, n) => `limiter:api:${first + n}`)
      await store.take?.(keys.map((key) => ({ key, cost: 1, limits })))
      // As at 1000 new keys a second: 100 are in use at any time, since a take is forgotten after 100 ms.
      machine.at += batch
    }
    // The sweep has passed the whole table after a quarter of its rows was written anew.
    expect(count(path, 'meters')).toBeLessThan(1_500)
  },
)

test('a process that goes on working sweeps as well, and leaves live leases alone', async () => {
  const path = join(directory(), 'locks.db')
  const machine = toyMachine()
  const store = open(path, { machine })
  await store.acquire(Array.from({ length: 600 }, (_, n) => claim(`lock:${n}`, 'me', { ttlMs: n % 2 ? 500 : 1e9 })))
  machine.at += 60_000
  for (let i = 0; i < 400; i++) await store.renew([{ key: 'lock:0', owner: 'me', ttlMs: 1 }])
  expect(count(path, 'holders')).toBe(300)
})

test('an announced lease that is swept away notifies its subscribers', async () => {
  const path = join(directory(), 'locks.db')
  const machine = toyMachine()
  const store = open(path, { machine })
  await store.acquire([claim('election:a', 'me', { announce: true, ttlMs: 500 })])
  const told = new Promise<void>((resolve) => {
    store.watch?.('election:a', ({ type }) => type === 'changed' && resolve())
  })
  machine.at += 1_000
  for (let i = 0; i < 64; i++) await store.renew([{ key: 'lock:0', owner: 'nobody', ttlMs: 1 }])
  await told
})

test('a thousand waiters of one name know how many are ahead, and are granted the lock one after the other', async () => {
  const store = open(join(directory(), 'locks.db'))
  const key = 'lock:a'
  await store.acquire([claim(key, 'holder')])
  const queue = Array.from({ length: 1_000 }, (_, n) => claim(key, `waiter-${n}`, { queueMs: 60_000 }))
  const ahead = (await store.acquire(queue)).map((answer) => (answer as Answer & { ahead: number }).ahead)
  expect(ahead).toEqual(queue.map((_, n) => n))
  // Some leave; those behind them move up, also when they all ask again together.
  await store.release(queue.filter((_, n) => n % 10 === 0))
  const left = queue.filter((_, n) => n % 10 !== 0)
  expect((await store.acquire(left)).map((answer) => (answer as { ahead?: number }).ahead)).toEqual(
    left.map((_, n) => n),
  )
  const served: string[] = []
  store.watch?.(key, (event) => event.type === 'granted' && served.push(event.owner))
  await store.release([{ key, owner: 'holder' }])
  for (let i = 0; i < left.length; i++) await store.release([{ key, owner: served[i] as string }])
  expect(served).toEqual(left.map(({ owner }) => owner))
})

test('waiters ahead are counted right while the queue moves in the middle of a batch', async () => {
  const machine = toyMachine()
  const store = open(join(directory(), 'locks.db'), { machine })
  const waiter = (name: string): Claim => claim('lock:a', name, { queueMs: 60_000 })
  await store.acquire([claim('lock:a', 'holder', { ttlMs: 100 }), waiter('w0'), waiter('w1'), waiter('w2')])
  machine.at += 100
  const answers = await store.acquire([waiter('w2'), waiter('w0'), waiter('w3'), waiter('w1')])
  // The first claim of the batch grants to the first waiter, w0, although the claim is of w2.
  expect(answers).toMatchObject([{ ahead: 1 }, { granted: true }, { ahead: 2 }, { ahead: 0 }])
})

test('readers in the queue are granted together', async () => {
  const store = open(join(directory(), 'locks.db'))
  const key = 'lock:a'
  await store.acquire([claim(key, 'writer')])
  const readers = Array.from({ length: 20 }, (_, n) => claim(key, `reader-${n}`, { weight: 1, queueMs: 60_000 }))
  await store.acquire([...readers, claim(key, 'next writer', { queueMs: 60_000 })])
  await store.release([{ key, owner: 'writer' }])
  const seen = await store.inspect?.(key)
  expect(seen?.holders).toHaveLength(20)
  expect(seen?.waiters).toMatchObject([{ owner: 'next writer', weight: ALL }])
})
