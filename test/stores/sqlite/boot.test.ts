import { join } from 'node:path'
import { expect, test } from 'vitest'
import { StoreUnavailableError } from '../../../src/errors.js'
import type { Store } from '../../../src/store.js'
import { realWorld } from '../../../src/util/world.js'
import { sqlite } from '../../../src/stores/sqlite/index.js'
import { thisMachine } from '../../../src/stores/sqlite/boot-clock.js'
import { ask, claim, directory, granted, open, raw, toyMachine } from './fixture.js'

const busy = { granted: false }

test('a lease lasts for its ttl and no longer', async () => {
  const machine = toyMachine()
  const store = open(join(directory(), 'locks.db'), { machine })
  await granted(store, claim('lock:a', 'me', { ttlMs: 100 }))
  machine.at += 99
  expect(await ask(store, claim('lock:a', 'you'))).toMatchObject({ granted: false, blocker: { owner: 'me', ttlMs: 1 } })
  machine.at += 1
  expect(await store.renew([{ key: 'lock:a', owner: 'me', ttlMs: 100 }])).toEqual([{ outcome: 'gone' }])
  expect(await store.release([{ key: 'lock:a', owner: 'me' }])).toEqual([{ outcome: 'gone' }])
  await granted(store, claim('lock:a', 'you'))
})

test('leases last and tokens grow whatever happens to the wall clock', async () => {
  const machine = toyMachine()
  let date = 1_800_000_000_000
  const world = { ...realWorld, date: () => date }
  const store = open(join(directory(), 'locks.db'), { machine, world })
  const first = await granted(store, claim('lock:a', 'me'))
  date -= 3_600_000
  const second = await granted(store, claim('lock:b', 'me'))
  expect(second.token).toBe(first.token + 1n)
  date += 86_400_000
  expect(await ask(store, claim('lock:a', 'you'))).toMatchObject(busy)
  expect((await granted(store, claim('lock:c', 'me'))).token).toBe(BigInt(date) * 1_000n)
})

test('tokens grow from store to store, also when one sees an earlier wall clock than the other', async () => {
  const path = join(directory(), 'locks.db')
  const at = (date: number) => ({ world: { ...realWorld, date: () => date } })
  const [ahead, behind] = [open(path, at(1_900_000_000_000)), open(path, at(1_800_000_000_000))]
  let last = 0n
  for (let i = 0; i < 20; i++) {
    const { token } = await granted(i % 2 ? behind : ahead, claim(`lock:${i}`, 'me'))
    expect(token).toBeGreaterThan(last)
    last = token
  }
})

test('a lease outlives the store that acquired it, for a store that opens the file again', async () => {
  const path = join(directory(), 'locks.db')
  const store = sqlite(path)
  const { token } = await granted(store, claim('lock:a', 'me'))
  await store.close()
  const again = open(path)
  expect(await ask(again, claim('lock:a', 'you'))).toMatchObject({ granted: false, blocker: { owner: 'me', token } })
  expect(await again.renew([{ key: 'lock:a', owner: 'me', ttlMs: 60_000 }])).toMatchObject([{ outcome: 'ours' }])
})

test('a lease from before a reboot has expired, and tokens go on growing', async () => {
  const path = join(directory(), 'locks.db')
  let date = 1_800_000_000_000
  const world = { ...realWorld, date: () => date }
  const limits = [{ algorithm: 'token-bucket', limit: 1, perMs: 1e9, burst: 1 }] as const
  const before = sqlite(path, { machine: toyMachine('boot-1', 5e9), world })
  const { token } = await granted(before, claim('lock:a', 'me'))
  await ask(before, claim('lock:a', 'waits', { queueMs: 60_000 }))
  await before.take?.([{ key: 'limiter:a', cost: 1, limits }])
  await before.close()

  // The wall clock has lost an hour, too.
  date -= 3_600_000
  const after = open(path, { machine: toyMachine('boot-2', 1_000), world })
  expect(await after.inspect?.('lock:a')).toEqual({ holders: [], waiters: [] })
  expect((await granted(after, claim('lock:a', 'you'))).token).toBeGreaterThan(token)
  expect(await after.take?.([{ key: 'limiter:a', cost: 1, limits }])).toMatchObject([{ allowed: true }])
})

test('a store without options uses the boot of this machine', async () => {
  const path = join(directory(), 'locks.db')
  const store = sqlite(path)
  await granted(store, claim('lock:a', 'me'))
  await store.close()
  expect(await ask(open(path), claim('lock:a', 'you'))).toMatchObject(busy)
  const db = raw(path)
  expect(db.prepare('SELECT boot FROM state').get()).toEqual({ boot: thisMachine().boot })
  db.exec("UPDATE state SET boot = 'before'")
  db.close()
  await granted(open(path), claim('lock:a', 'you'))
})

test.each([
  ['renews', (store: Store) => store.renew([{ key: 'lock:a', owner: 'me', ttlMs: 1_000 }])],
  ['acquires a free key', (store: Store) => store.acquire([claim('lock:c', 'me')])],
  ['acquires a held key', (store: Store) => store.acquire([claim('lock:b', 'me')])],
  ['releases', (store: Store) => store.release([{ key: 'lock:b', owner: 'you' }])],
  ['inspects', (store: Store) => store.inspect?.('lock:b')],
  ['takes from a limit', (store: Store) => store.take?.([])],
])(
  'a second machine on the file is noticed when the first one %s, and the first one stops using the file',
  async (_, call) => {
    const path = join(directory(), 'locks.db')
    const one = open(path, { machine: toyMachine('machine-1') })
    for (const key of ['lock:a', 'lock:x', 'lock:y']) await granted(one, claim(key, 'me'))
    const other = open(path, { machine: toyMachine('machine-2') })
    await granted(other, claim('lock:b', 'you'))
    await expect(call(one)).rejects.toThrow(StoreUnavailableError)
    await expect(call(one)).rejects.toThrow(/in use by another machine/)
    // The leases of the second machine stay.
    expect(await other.inspect?.('lock:b')).toMatchObject({ holders: [{ owner: 'you' }] })
  },
)

test('a lease with a time in the future is from an earlier boot where boots have no name', async () => {
  const path = join(directory(), 'locks.db')
  const before = sqlite(path, { machine: toyMachine('', 5e9) })
  await granted(before, claim('lock:a', 'me'))
  await before.renew([{ key: 'lock:a', owner: 'me', ttlMs: 60_000 }])
  await before.close()
  const after = open(path, { machine: toyMachine('', 1_000) })
  await granted(after, claim('lock:a', 'you'))
  const beside = open(path, { machine: toyMachine('', 2_000) })
  expect(await ask(beside, claim('lock:a', 'me'))).toMatchObject({ granted: false, blocker: { owner: 'you' } })
})

test('a process that cannot tell its boot does not delete the leases of other processes', async () => {
  const path = join(directory(), 'locks.db')
  const named = open(path, { machine: toyMachine('boot-1', 1_000) })
  await granted(named, claim('lock:a', 'me'))
  const nameless = open(path, { machine: toyMachine('', 2_000) })
  expect(await ask(nameless, claim('lock:a', 'you'))).toMatchObject({ granted: false, blocker: { owner: 'me' } })
  expect(await named.renew([{ key: 'lock:a', owner: 'me', ttlMs: 60_000 }])).toMatchObject([{ outcome: 'ours' }])
})
