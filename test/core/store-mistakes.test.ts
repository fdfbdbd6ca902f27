import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createLocks, memory, type Store } from '../../src/index.js'

const inner = memory()
const base: Store = {
  name: 'custom',
  expiry: 'timed',
  features: inner.features,
  timeoutMs: 300,
  acquire: async (claims) => inner.acquire(claims),
  renew: async (renewals) => inner.renew(renewals),
  release: async (leases) => inner.release(leases),
  close: async () => {},
}

const unhandled: unknown[] = []
const note = (error: unknown): void => void unhandled.push(error)

beforeEach(() => {
  unhandled.length = 0
  process.on('unhandledRejection', note)
  vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
})

afterEach(() => {
  process.off('unhandledRejection', note)
  vi.restoreAllMocks()
  expect(unhandled).toEqual([])
})

test('a waiter polls if the store cannot subscribe', async () => {
  const store: Store = {
    ...base,
    watch() {
      throw new Error('no more sockets')
    },
    watchRevoked() {
      throw new Error('no more sockets')
    },
  }
  const locks = createLocks(store)
  const errors: unknown[] = []
  locks.on('error', ({ error }) => errors.push(error.message))
  const first = await locks.acquire('polled')
  const waiting = locks.acquire('polled', { wait: '5s' })
  await first.release()
  const second = await waiting
  expect(second.isHeld).toBe(true)
  expect(errors.join()).toContain('no more sockets')
  await locks.close({ grace: 0 })
})

test.each([
  ['nothing', async () => undefined],
  ['an empty list', async () => []],
  ['a list with a hole', async () => [undefined]],
  ['a number', async () => 7],
])('a store that answers with %s is unavailable, and nothing hangs', async (_, acquire) => {
  const locks = createLocks({ ...base, acquire } as unknown as Store)
  await expect(locks.tryAcquire('odd')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  await expect(locks.acquire('odd', { wait: 50 })).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  await locks.close({ grace: 0 })
})

test('a thenable that is no native promise is an answer like any other', async () => {
  const later = <T>(value: T): PromiseLike<T> => ({
    // oxlint-disable-next-line unicorn/no-thenable
    then: (resolve: ((value: T) => never) | null | undefined) => void setImmediate(() => resolve?.(value)) as never,
  })
  const store = {
    ...base,
    acquire: (claims: never) => later(inner.acquire(claims)),
    renew: (renewals: never) => later(inner.renew(renewals)),
    release: (leases: never) => later(inner.release(leases)),
  } as unknown as Store
  const locks = createLocks(store)
  const lock = await locks.tryAcquire('thenable')
  expect(lock?.isHeld).toBe(true)
  expect(await lock?.release()).toBe(true)
  await locks.close({ grace: 0 })
})

test('a listener that throws costs no other lock its heartbeat', async () => {
  const locks = createLocks(base, { ttl: 150 })
  locks.on('renewed', () => {
    throw new Error('a mistake of the user')
  })
  const held = await Promise.all([locks.acquire('h1'), locks.acquire('h2')])
  await new Promise((resolve) => setTimeout(resolve, 400))
  expect(held.map((lock) => lock.isHeld)).toEqual([true, true])
  await locks.close({ grace: 0 })
})

test('a store whose renew throws loses no lock before its time', async () => {
  let broken = true
  const store: Store = {
    ...base,
    renew: (renewals) => {
      if (broken) throw new Error('not now')
      return inner.renew(renewals)
    },
  }
  const locks = createLocks(store, { ttl: 400 })
  const lock = await locks.acquire('renewed')
  setTimeout(() => (broken = false), 250)
  await new Promise((resolve) => setTimeout(resolve, 700))
  expect(lock.isHeld).toBe(true)
  await locks.close({ grace: 0 })
})
