import { describe, expect, test } from 'vitest'
import type { Lock } from '../../src/core/lock.js'
import { LockTimeoutError, StoreUnavailableError } from '../../src/errors.js'
import { ALL } from '../../src/store.js'
import { RemoteMemory } from './remote-memory.js'

/** What came of it, without waiting for it. */
function outcome<T>(promise: Promise<T>): { value?: T; error?: unknown } {
  const seen: { value?: T; error?: unknown } = {}
  promise.then(
    (value) => (seen.value = value),
    (error: unknown) => (seen.error = error),
  )
  return seen
}

describe('clean-up', () => {
  test('a retried release of a stale grant does not end the grant that followed it', async () => {
    const remote = new RemoteMemory()
    // The first answer is slower than the ttl; the release of what it granted is lost once and tried again.
    remote.fate = (method, n) => {
      if (method === 'acquire' && n === 1) return { replyMs: 1_600 }
      return method === 'release' && n === 1 ? 'break' : undefined
    }
    const mine = outcome(remote.locks({ ttl: 1_500 }).acquire('x', { wait: 5_000 }))
    await remote.pass(2_500)
    const lock = mine.value as Lock
    expect(lock.isHeld).toBe(true)
    expect(remote.real.holders('lock:x').map(({ owner }) => owner)).toEqual([lock.holder])
  })

  test('a release that arrives after the next request of the same acquisition does not end its grant', async () => {
    const remote = new RemoteMemory()
    // On a pooled connection the new acquire may overtake the clean-up's release.
    remote.fate = (method, n) => {
      if (method === 'acquire' && n === 1) return { replyMs: 1_600 }
      return method === 'release' && n === 1 ? { requestMs: 300 } : undefined
    }
    const mine = outcome(remote.locks({ ttl: 1_500 }).acquire('x', { wait: 5_000 }))
    await remote.pass(2_500)
    const lock = mine.value as Lock
    expect(lock.isHeld).toBe(true)
    expect(remote.real.holders('lock:x').map(({ owner }) => owner)).toEqual([lock.holder])
  })

  test('the release of a grant that nobody wants any more is tried until it is answered', async () => {
    const remote = new RemoteMemory()
    remote.fate = (method, n) => {
      if (method === 'acquire') return { replyMs: 500 }
      return method === 'release' && n <= 8 ? 'break' : undefined
    }
    const gaveUp = outcome(remote.locks().acquire('x', { ttl: '1m', wait: 100 }))
    await remote.pass(20_000)
    expect(gaveUp.error).toBeInstanceOf(StoreUnavailableError)
    expect(remote.real.holders('')).toEqual([])
  })
})

describe('pushed grants', () => {
  test('a permit that was passed on before the last refusal is not believed', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const semaphore = remote.locks().semaphore('s', 2)
    const held = outcome(Promise.all([semaphore.acquire(), semaphore.acquire()]))
    await world.settle()
    const waiter = remote.locks()
    remote.passes = (event) => event.type !== 'granted'
    const waiting = outcome(waiter.semaphore('s', 2).acquire({ wait: '1m' }))
    await world.settle()
    const { owner } = remote.real.inspect('semaphore:s').waiters[0] as { owner: string }
    // The newest token of any holder: a grant with a smaller one began before the last refusal.
    const tokens = remote.real.holders('semaphore:s').map(({ token }) => token as bigint)
    const newest = tokens.reduce((a, b) => (a > b ? a : b))
    remote.push('semaphore:s', { type: 'granted', owner, token: newest - 1n, ttlMs: 3_000 })
    await world.settle()
    expect(waiting.value).toBeUndefined()
    expect(held.value?.every((lock) => lock.isHeld)).toBe(true)
  })

  test('a lock with a short ttl that is handed off is kept', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const first = outcome(remote.locks().acquire('x'))
    await world.settle()
    const waiting = outcome(remote.locks().acquire('x', { ttl: 300, wait: '1m' }))
    // Most of the ttl has passed since the waiter last heard from the store.
    await remote.pass(900)
    await first.value?.release()
    await remote.pass(500)
    expect(waiting.value?.isHeld).toBe(true)
  })

  test('maxHold, acquiredAt and waitedMs count from the hand-off', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const first = outcome(remote.locks().acquire('x'))
    await world.settle()
    const waiting = outcome(remote.locks().acquire('x', { maxHold: '1s', wait: '10s' }))
    await remote.pass(950)
    await first.value?.release()
    await world.settle()
    const lock = waiting.value as Lock
    expect(lock.acquiredAt.getTime()).toBe(world.date())
    expect(lock.waitedMs).toBeCloseTo(950, 0)
    await remote.pass(900)
    expect(lock.isHeld).toBe(true)
    await remote.pass(101)
    expect(lock.isHeld).toBe(false)
    expect(lock.signal.reason).toMatchObject({ why: 'max-hold' })
  })

  test('a grant whose push was lost is noticed with the next heartbeat of the queue', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const first = outcome(remote.locks().acquire('x'))
    await world.settle()
    const waiting = outcome(remote.locks().acquire('x', { wait: '1m' }))
    await remote.pass(100)
    remote.passes = () => false
    await first.value?.release()
    await remote.pass(1_001)
    expect(waiting.value?.isHeld).toBe(true)
  })
})

describe('waiting', () => {
  test('a waiter that was granted emits no timeout, however busy its process is', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const holder = outcome(remote.locks().acquire('x'))
    await world.settle()
    const locks = remote.locks()
    const events: string[] = []
    locks.on('timeout', () => events.push('timeout'))
    locks.on('acquired', () => events.push('acquired'))
    const waiting = outcome(locks.acquire('x', { wait: 200 }))
    await world.settle()
    // The push arrives in the very instant in which the wait ends.
    world.after(200, () => void holder.value?.release())
    await remote.pass(300)
    expect(events).toEqual([waiting.value ? 'acquired' : 'timeout'])
  })

  test('a waiter behind others of its process is told that the lock stayed busy', async () => {
    const remote = new RemoteMemory()
    remote.fate = (method) => (method === 'acquire' ? { replyMs: 20 } : undefined)
    void remote.locks().acquire('x')
    await remote.pass(50)
    const locks = remote.locks()
    const first = outcome(locks.acquire('x', { wait: 1_000 }))
    await remote.pass(100)
    // Its turn comes when the first has given up: its own request is 2 ms old when its wait ends.
    const second = outcome(locks.acquire('x', { wait: 902 }))
    await remote.pass(1_000)
    expect(first.error).toBeInstanceOf(LockTimeoutError)
    expect(second.error).toBeInstanceOf(LockTimeoutError)
  })

  test('waiters of one store object send one renewal per heartbeat, whatever their number', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    void remote.locks().acquire('x', { ttl: '10m' })
    await world.settle()
    for (let i = 0; i < 200; i++) outcome(remote.locks().acquire('x', { wait: 'forever' }))
    await remote.pass(1_500)
    const before = remote.calls.length
    await remote.pass(10_000)
    const calls = remote.calls.slice(before)
    expect(calls.map(({ method }) => method)).toEqual(Array.from({ length: 10 }, () => 'renew'))
    expect(new Set(calls.map(({ items }) => items.length))).toEqual(new Set([200]))
  })

  test('a waiter becomes first and asks when those before it have died', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const holder = outcome(remote.locks().acquire('x', { ttl: 5_000, autoRenew: false }))
    await world.settle()
    // A queue entry that nobody renews.
    const dead = { key: 'lock:x', owner: 'dead', weight: ALL, capacity: ALL, ttlMs: 1_000, placeMs: 3_000 }
    remote.real.acquire([dead])
    const waiting = outcome(remote.locks().acquire('x', { wait: '1m' }))
    await remote.pass(5_200)
    expect(holder.value?.isHeld).toBe(false)
    expect(waiting.value?.isHeld).toBe(true)
  })
})

describe('several names', () => {
  test('acquireAll rejects as soon as its signal aborts, although the store does not answer', async () => {
    const remote = new RemoteMemory()
    remote.fate = () => 'lose'
    const abort = new AbortController()
    const group = outcome(remote.locks().acquireAll(['a', 'b'], { signal: abort.signal }))
    await remote.pass(50)
    abort.abort(new Error('stop'))
    await remote.world.settle()
    expect(group.error).toMatchObject({ message: 'stop' })
  })

  test('acquireAll that times out rejects soon, although its releases are not answered', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    void remote.locks().acquire('b')
    await world.settle()
    remote.fate = (method) => (method === 'release' ? 'lose' : undefined)
    const group = outcome(remote.locks().acquireAll(['a', 'b'], { wait: 300 }))
    await remote.pass(551)
    expect(group.error).toBeInstanceOf(LockTimeoutError)
  })
})

test('2,000 contended names leave no subscription open', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const others = remote.locks()
  for (let i = 0; i < 2_000; i++) {
    const first = locks.acquire(`name:${i}`)
    void others.acquire(`name:${i}`).then((lock) => lock.release())
    void first.then((lock) => lock.release())
    if (i % 100 === 0) await remote.pass(10)
  }
  await remote.pass(10_000)
  expect(remote.real.holders('')).toEqual([])
  expect(remote.openSubscriptions).toBe(0)
})
