import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createLocks, memory, type Store } from '../../src/index.js'
import type { Answer } from '../../src/store.js'
import { RemoteMemory } from './remote-memory.js'

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
  ['a word', async () => ['x']],
  ['an object that says nothing', async () => [{}]],
  ['a grant without a token', async () => [{ granted: true, owner: 'x', ttlMs: 1_000 }]],
  ['a grant without an end', async () => [{ granted: true, owner: 'x', token: 1n, ttlMs: Number.NaN }]],
])('a store that answers with %s is reported as unavailable, and no call hangs', async (_, acquire) => {
  const locks = createLocks({ ...base, acquire } as unknown as Store)
  await expect(locks.tryAcquire('odd')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  await expect(locks.acquire('odd', { wait: 50 })).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  await locks.close({ grace: 0 })
})

test.each([
  ['nothing', undefined],
  ['null', null],
  ['a symbol', Symbol('no')],
  ['an object without a prototype', Object.create(null)],
])('a store that throws or rejects with %s is unavailable, and nothing escapes', async (_, thrown) => {
  const throwing = createLocks({
    ...base,
    acquire: () => {
      throw thrown
    },
  })
  const rejecting = createLocks({ ...base, acquire: () => Promise.reject(thrown) })
  for (const locks of [throwing, rejecting]) {
    await expect(locks.tryAcquire('odd')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    await expect(locks.acquire('odd', { wait: 50 })).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    await locks.close({ grace: 0 })
  }
})

test.each([
  ['a blocker whose ttl is no number', { blocker: { owner: 'x', ttlMs: Number.NaN } }],
  ['a blocker whose ttl is text', { blocker: { owner: 'x', ttlMs: 'soon' } }],
  ['a place that is no number', { ahead: Number.NaN, blocker: { owner: 'x', ttlMs: 5_000 } }],
  ['a place that is a bigint', { ahead: 2n, blocker: { owner: 'x', ttlMs: 5_000 } }],
])('a refusal with %s is a refusal, and every wait ends in time', async (_, hints) => {
  const remote: RemoteMemory = new RemoteMemory({
    acquire: async (claims) =>
      claims.map((claim) => {
        if (claim.key === 'lock:odd') return { granted: false, ...hints } as never
        return remote.real.acquire([claim])[0] as Answer
      }),
  })
  const locks = remote.locks({ ttl: 10_000 })
  const ended: string[] = []
  const wait = (name: string, ms: number): Promise<void> =>
    locks.acquire(name, { wait: ms, mode: name === 'odd' ? 'shared' : 'exclusive' }).then(
      () => void ended.push(`${name} granted`),
      ({ code }: { code: string }) => void ended.push(`${name} ${ms} ${code}`),
    )
  void wait('busy', 60_000)
  await remote.pass(10)
  for (const [name, ms] of [
    ['busy', 2_000],
    ['odd', 3_000],
    ['odd', 1_000],
    ['busy', 4_000],
  ] as const)
    void wait(name, ms)
  await remote.pass(4_100)
  expect(ended).toEqual([
    'busy granted',
    'odd 1000 LOCK_TIMEOUT',
    'busy 2000 LOCK_TIMEOUT',
    'odd 3000 LOCK_TIMEOUT',
    'busy 4000 LOCK_TIMEOUT',
  ])
  expect(vi.mocked(process.emitWarning)).not.toHaveBeenCalled()
})

test('a renewal that is answered with nonsense loses no lock before its time', async () => {
  let nonsense = true
  const remote: RemoteMemory = new RemoteMemory({
    renew: async (renewals) => (nonsense ? [{ outcome: 'ours' } as never] : remote.real.renew(renewals)),
  })
  const acquiring = remote.locks({ ttl: 400 }).acquire('renewed')
  await remote.pass(250)
  nonsense = false
  await remote.pass(450)
  expect((await acquiring).isHeld).toBe(true)
})

test('events that mean nothing, and subscriptions that fail late or do not close, cost nobody its turn', async () => {
  const watch: Store['watch'] = (key, listener) => {
    const watched = (inner.watch as NonNullable<Store['watch']>)(key, listener)
    for (const event of [undefined, null, 7, {}, { type: 'granted' }]) queueMicrotask(() => listener(event as never))
    return {
      ...watched,
      ready: Promise.reject(new Error('too late')),
      close: () => {
        watched.close()
        throw new Error('it would not close')
      },
    }
  }
  const watchRevoked: Store['watchRevoked'] = (listener) => {
    queueMicrotask(() => listener(undefined as never))
    return { ready: Promise.reject(new Error('too late')), live: () => false, close: () => {} }
  }
  const locks = createLocks({ ...base, watch, watchRevoked })
  const first = await locks.acquire('nonsense')
  const waiting = locks.acquire('nonsense', { wait: '5s' })
  await new Promise((resolve) => setTimeout(resolve, 20))
  await first.release()
  expect((await waiting).isHeld).toBe(true)
  await locks.close({ grace: 0 })
})

test('a look at a store that answers with nothing is an outage, and not a feature that is missing', async () => {
  const locks = createLocks({ ...base, inspect: async () => undefined } as unknown as Store)
  await expect(locks.inspect('x')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  await expect(createLocks(base).inspect('x')).rejects.toMatchObject({ code: 'UNSUPPORTED' })
  await locks.close({ grace: 0 })
})

test('a store with a timeoutMs of 0 that answers with a promise is told so, and its promises reject nowhere', async () => {
  const locks = createLocks({ ...base, timeoutMs: 0, acquire: () => Promise.reject(new Error('later')) })
  const message = /custom is unavailable: it answered with a promise, although its timeoutMs is 0/
  await expect(locks.tryAcquire('x')).rejects.toThrow(message)
  await expect(locks.acquire('x', { wait: 50 })).rejects.toThrow(message)
  await locks.close({ grace: 0 })
})

test('a thenable that is not a native promise is a valid answer', async () => {
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

test('a listener that throws does not stop the heartbeat of any lock', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks({ ttl: 150 })
  let thrown = 0
  locks.on('renewed', () => {
    thrown++
    throw new Error('a mistake of the user')
  })
  const acquiring = [locks.acquire('h1'), locks.acquire('h2')]
  await remote.pass(400)
  expect((await Promise.all(acquiring)).map((lock) => lock.isHeld)).toEqual([true, true])
  expect(thrown).toBeGreaterThanOrEqual(4)
})

test('a store whose renew throws loses no lock before its time', async () => {
  let broken = true
  const remote: RemoteMemory = new RemoteMemory({
    renew: (renewals) => {
      if (broken) throw new Error('not now')
      return remote.real.renew(renewals)
    },
  })
  const acquiring = remote.locks({ ttl: 400 }).acquire('renewed')
  await remote.pass(250)
  broken = false
  await remote.pass(450)
  expect((await acquiring).isHeld).toBe(true)
})
