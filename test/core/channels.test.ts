import { AsyncLocalStorage } from 'node:async_hooks'
import { channel, subscribe, tracingChannel, unsubscribe } from 'node:diagnostics_channel'
import { describe, expect, onTestFinished, test } from 'vitest'
import { type ChannelMessages, createLocks, LockLostError, LockTimeoutError, memory } from '../../src/index.js'
import { RemoteMemory } from './remote-memory.js'

type TracedName = 'leasehold:acquire' | 'leasehold:hold'
const STEPS = ['start', 'end', 'asyncStart', 'asyncEnd', 'error'] as const

/** Collects what a tracing channel publishes, until the test ends. */
function traced<N extends TracedName>(name: N): { step: string; message: ChannelMessages[N] }[] {
  const seen: { step: string; message: ChannelMessages[N] }[] = []
  const handlers = Object.fromEntries(
    STEPS.map((step) => [step, (message: object) => seen.push({ step, message: message as ChannelMessages[N] })]),
  )
  tracingChannel(name).subscribe(handlers as never)
  onTestFinished(() => void tracingChannel(name).unsubscribe(handlers as never))
  return seen
}

function heard<N extends keyof ChannelMessages>(name: N): ChannelMessages[N][] {
  const seen: ChannelMessages[N][] = []
  const listener = (message: unknown): number => seen.push(message as ChannelMessages[N])
  subscribe(name, listener)
  onTestFinished(() => void unsubscribe(name, listener))
  return seen
}

describe('leasehold:acquire', () => {
  test('publishes an acquisition from its beginning to its grant, as one object', async () => {
    const seen = traced('leasehold:acquire')
    const locks = createLocks(memory(), { namespace: 'shop' })
    const lock = await locks.acquire('order:7', { metadata: { job: 'charge' } })
    expect(seen.map(({ step }) => step)).toEqual(['start', 'end', 'asyncStart', 'asyncEnd'])
    expect(new Set(seen.map(({ message }) => message)).size).toBe(1)
    expect(seen[0]?.message).toMatchObject({
      store: 'memory',
      namespace: 'shop',
      name: 'order:7',
      kind: 'lock',
      mode: 'exclusive',
      waitMs: 10_000,
      metadata: { job: 'charge' },
      result: { holder: lock.holder, fencingToken: lock.fencingToken },
    })
    await locks.close({ grace: 0 })
  })

  test('publishes the error of a caller that gave up, and null for a tryAcquire that found it busy', async () => {
    const locks = createLocks(memory())
    const held = await locks.acquire('a')
    const seen = traced('leasehold:acquire')
    await expect(locks.acquire('a', { wait: 0 })).rejects.toBeInstanceOf(LockTimeoutError)
    expect(seen.map(({ step }) => step)).toEqual(['start', 'end', 'error', 'asyncStart', 'asyncEnd'])
    expect(seen[0]?.message.error).toBeInstanceOf(LockTimeoutError)
    expect(await locks.tryAcquire('a')).toBeNull()
    expect(seen.at(-1)?.message.result).toBeNull()
    await held.release()
  })

  test('covers semaphores, elections and runs, each with its kind', async () => {
    const seen = traced('leasehold:acquire')
    const locks = createLocks(memory())
    await locks.semaphore('api', 2).use(async () => {})
    await locks.runOnce('charge', () => 1)
    await locks.withLocks(['b'], () => {})
    const kinds = new Set(seen.map(({ message }) => message.kind))
    expect([...kinds]).toEqual(['semaphore', 'run-once', 'lock'])
  })

  test('runs the request inside of the store that a subscriber binds', async () => {
    const storage = new AsyncLocalStorage<string>()
    const { start } = tracingChannel('leasehold:acquire')
    start.bindStore(storage, (message) => `acquires ${(message as { name: string }).name}`)
    onTestFinished(() => void start.unbindStore(storage))
    const store = memory()
    const acquire = store.acquire.bind(store)
    const inside: (string | undefined)[] = []
    store.acquire = (...args) => (inside.push(storage.getStore()), acquire(...args))
    await createLocks(store).withLock('a', () => {})
    expect(inside).toEqual(['acquires a'])
  })
})

describe('leasehold:acquire of several names', () => {
  test.each([
    ['together', new RemoteMemory()],
    ['one by one', new RemoteMemory({ features: { ...memory().features, atomic: false } })],
  ])('publishes one acquisition for all names that are granted %s', async (_, remote) => {
    const seen = traced('leasehold:acquire')
    const acquiring = remote.locks().acquireAll(['b', 'a'])
    await remote.pass(10)
    const { locks } = await acquiring
    expect(seen.map(({ step }) => step)).toEqual(['start', 'end', 'asyncStart', 'asyncEnd'])
    const facts = locks.map(({ name, holder, fencingToken }) => ({ name, holder, fencingToken }))
    expect(seen[0]?.message).toMatchObject({ store: 'remote', name: 'a', names: ['a', 'b'], result: facts })
  })

  test('publishes the error of a caller that gave up', async () => {
    const locks = createLocks(memory())
    await locks.acquire('b')
    const seen = traced('leasehold:acquire')
    await expect(locks.acquireAll(['a', 'b'], { wait: 0 })).rejects.toBeInstanceOf(LockTimeoutError)
    expect(seen.map(({ step }) => step)).toEqual(['start', 'end', 'error', 'asyncStart', 'asyncEnd'])
    expect(seen[0]?.message).toMatchObject({ names: ['a', 'b'], error: expect.any(LockTimeoutError) })
    await locks.close({ grace: 0 })
  })
})

describe('leasehold:hold', () => {
  test('publishes a lock from its grant to its release, as one object', async () => {
    const seen = traced('leasehold:hold')
    const locks = createLocks(memory())
    const lock = await locks.acquire('order:7')
    expect(seen.map(({ step }) => step)).toEqual(['start', 'end'])
    expect(seen[0]?.message.heldMs).toBeUndefined()
    await lock.release()
    expect(seen.map(({ step }) => step)).toEqual(['start', 'end', 'asyncStart', 'asyncEnd'])
    expect(new Set(seen.map(({ message }) => message)).size).toBe(1)
    expect(seen[0]?.message).toMatchObject({ store: 'memory', holder: lock.holder, waitedMs: 0 })
    expect(seen[0]?.message.heldMs).toBeGreaterThanOrEqual(0)
  })

  test('publishes the loss as an error, with why', async () => {
    const seen = traced('leasehold:hold')
    const locks = createLocks(memory())
    await locks.acquire('order:7')
    await locks.forceRelease('order:7')
    expect(seen.map(({ step }) => step)).toEqual(['start', 'end', 'error', 'asyncStart', 'asyncEnd'])
    expect(seen[0]?.message.error).toBeInstanceOf(LockLostError)
    expect(seen[0]?.message.error?.why).toBe('revoked')
  })

  test('publishes a loss that the release finds as an error, and the time until that release as held', async () => {
    const seen = traced('leasehold:hold')
    const remote = new RemoteMemory()
    const acquiring = remote.locks().acquire('order:7', { autoRenew: false })
    await remote.pass(1)
    const lock = await acquiring
    await remote.pass(500)
    // As if somebody had removed the record by hand: nobody is told.
    remote.real.release([{ key: 'lock:order:7', owner: lock.holder, token: lock.fencingToken }])
    remote.fate = (method) => (method === 'release' ? { replyMs: 100 } : undefined)
    const released = lock.release()
    await remote.pass(200)
    expect(await released).toBe(false)
    expect(seen.map(({ step }) => step)).toEqual(['start', 'end', 'error', 'asyncStart', 'asyncEnd'])
    expect(seen[0]?.message.error).toBeInstanceOf(LockLostError)
    expect(seen[0]?.message).toMatchObject({ error: { why: 'gone' }, heldMs: 501 })
  })

  test('covers each name of a group, and is silent about a lock whose grant nobody saw', async () => {
    const locks = createLocks(memory())
    const before = await locks.acquire('before')
    const seen = traced('leasehold:hold')
    await before.release()
    await locks.withLocks(['a', 'b'], () => {})
    const names = seen.filter(({ step }) => step === 'asyncEnd').map(({ message }) => message.name)
    expect(names.sort()).toEqual(['a', 'b'])
  })
})

describe('a channel for each event', () => {
  test('publishes what listeners of the instance get, and the store', async () => {
    const [acquired, released, timeout] = [
      heard('leasehold:acquired'),
      heard('leasehold:released'),
      heard('leasehold:timeout'),
    ]
    const locks = createLocks(memory(), { namespace: 'shop' })
    const facts: object[] = []
    locks.on('released', (said) => facts.push(said))
    await locks.withLock('a', () => expect(locks.acquire('a', { wait: 0 })).rejects.toThrow(LockTimeoutError))
    expect(acquired).toMatchObject([{ store: 'memory', namespace: 'shop', name: 'a', waitedMs: 0 }])
    expect(timeout).toMatchObject([{ store: 'memory', namespace: 'shop', name: 'a' }])
    expect(released).toEqual([{ store: 'memory', ...facts[0] }])
  })

  test('publishes a lock at risk and its loss', async () => {
    const [atRisk, lost] = [heard('leasehold:atRisk'), heard('leasehold:lost')]
    const remote = new RemoteMemory()
    const acquiring = remote.locks().acquire('a', { ttl: 3_000 })
    await remote.pass(1)
    const lock = await acquiring
    remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
    await remote.pass(3_000)
    expect(lock.isHeld).toBe(false)
    expect(atRisk).toMatchObject([{ store: 'remote', name: 'a' }])
    expect(lost).toMatchObject([{ store: 'remote', name: 'a', why: 'unreachable' }])
  })
})

test('leasehold:call publishes each call to a store, beside onCall', async () => {
  const calls = heard('leasehold:call')
  const reported: string[] = []
  const locks = createLocks(memory(), { onCall: ({ call }) => reported.push(call) })
  await locks.withLock('a', () => {})
  expect(calls).toMatchObject([
    { store: 'memory', call: 'acquire', items: 1, outcome: 'answered' },
    { store: 'memory', call: 'release', items: 1, outcome: 'answered' },
  ])
  expect(reported).toEqual(['acquire', 'release'])
})

test('nothing is published once the last subscriber has gone', async () => {
  const seen: unknown[] = []
  const listener = (message: unknown): number => seen.push(message)
  subscribe('leasehold:acquired', listener)
  unsubscribe('leasehold:acquired', listener)
  await createLocks(memory()).withLock('a', () => {})
  expect(channel('leasehold:acquired').hasSubscribers).toBe(false)
  expect(seen).toEqual([])
})
