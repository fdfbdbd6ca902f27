import { describe, expect, test } from 'vitest'
import type { Lock } from '../../src/core/lock.js'
import { LockTimeoutError, StoreUnavailableError } from '../../src/errors.js'
import { ALL, type HolderView, type StoreEvent } from '../../src/store.js'
import { RemoteMemory } from './remote-memory.js'

/** The outcome of a promise so far, without waiting for it. */
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
    // The first reply takes longer than the ttl. The release of its grant is lost once and retried.
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
    // On a pooled connection the new acquire may overtake the release of the clean-up.
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

  test('close() resolves when nothing is left of what was granted meanwhile', async () => {
    const remote = new RemoteMemory({ features: { queue: false, counting: false, atomic: false, values: true } })
    remote.fate = () => ({ replyMs: 100 })
    const locks = remote.locks()
    const asked = Promise.allSettled([locks.semaphore('x', 2).acquire()])
    await remote.pass(50)
    const closed = locks.close().then(() => remote.real.holders(''))
    const seen = outcome(closed)
    await remote.pass(1_000)
    expect(seen.value).toEqual([])
    await asked
  })

  test('a request that is carried out after its time limit and then fails leaves nothing in the store', async () => {
    const remote = new RemoteMemory()
    const { real } = remote
    let first = true
    // The connection breaks when the server has granted at last what was asked for, given and released long ago.
    const acquire = remote.store.acquire.bind(remote.store)
    remote.store.acquire = (claims, options) => {
      if (!first) return acquire(claims, options)
      first = false
      return new Promise((_, reject) => {
        remote.world.after(5_000, () => {
          real.acquire(claims)
          reject(new Error('ECONNRESET'))
        })
      })
    }
    const mine = outcome(remote.locks().acquire('x', { ttl: '1m', wait: '4s' }))
    await remote.pass(3_000)
    expect(await mine.value?.release()).toBe(true)
    await remote.pass(3_000)
    expect(real.holders('')).toEqual([])
  })

  test('a grant that was made beside a revoked one, and never answered, is released with it', async () => {
    const remote = new RemoteMemory()
    const { real } = remote
    const pushed: StoreEvent[] = []
    remote.passes = (event) => (pushed.push(event), false)
    real.acquire([{ key: 'lock:x', owner: 'other', weight: ALL, capacity: ALL, ttlMs: 60_000 }])
    const mine = outcome(remote.locks().acquire('x', { ttl: '1m', wait: '10s' }))
    await remote.pass(10)
    real.release([{ key: 'lock:x', owner: 'other' }])
    real.revoke('lock:x')
    remote.fate = (method) => (method === 'acquire' ? 'breakReply' : undefined)
    // The process was frozen: it asks again, and hears only then of the grant that was revoked meanwhile.
    remote.push('lock:x', { type: 'freed' })
    remote.push('lock:x', pushed.find(({ type }) => type === 'granted') as StoreEvent)
    await remote.pass(0)
    expect(real.holders('')).toHaveLength(1)
    await remote.pass(1_000)
    expect(mine.value?.isHeld).toBe(false)
    expect(real.holders('')).toEqual([])
  })

  test('a grant that is made after a forced release of an earlier one of its owner is not lost with that', async () => {
    const remote = new RemoteMemory()
    const { real } = remote
    // Granted, and not answered. The next request of the same owner arrives after the forced release, and is answered before it.
    remote.fate = (method, n) => (method === 'acquire' && n === 1 ? 'breakReply' : undefined)
    const revoke = (key: string): Promise<HolderView[]> => {
      const cut = real.revoke(key)
      return new Promise((resolve) => remote.world.after(500, () => resolve(cut)))
    }
    remote.store.revoke = revoke
    const mine = remote.locks()
    const acquiring = outcome(mine.acquire('x', { ttl: '1m', wait: '10s' }))
    await remote.pass(0)
    expect(real.holders('')).toHaveLength(1)
    const forced = outcome(mine.forceRelease('x'))
    await remote.pass(400)
    const lock = acquiring.value as Lock
    expect(lock.isHeld).toBe(true)
    await remote.pass(200)
    expect(forced.value).toHaveLength(1)
    expect(lock.isHeld).toBe(true)
    expect(await lock.release()).toBe(true)
    expect(real.holders('')).toEqual([])
  })

  test('the release of a lease is retried for as long as an unanswered renewal may have made it last', async () => {
    const remote = new RemoteMemory()
    const acquiring = remote.locks().acquire('x', { ttl: 5_000, autoRenew: false })
    await remote.pass(1)
    const lock = await acquiring
    remote.fate = (method) => (method === 'renew' ? 'loseReply' : undefined)
    const longer = outcome(lock.extend('1m'))
    await remote.pass(2_100)
    expect(longer.error).toBeInstanceOf(StoreUnavailableError)
    // From here on nothing arrives for 15 s, and the holder wants less than the store has.
    remote.fate = () => 'break'
    outcome(lock.extend(150))
    await remote.pass(500)
    void lock.release()
    await remote.pass(15_000)
    expect(remote.real.holders('')).toHaveLength(1)
    remote.fate = () => undefined
    await remote.pass(5_000)
    expect(remote.real.holders('')).toEqual([])
  })

  test('the release of a grant that its caller no longer wants is retried until it is answered', async () => {
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

describe('a request that the server keeps open', () => {
  test('and that was called back is not believed to be granted: its release may have ended the grant', async () => {
    const remote = new RemoteMemory({
      blocks: true,
      features: { queue: false, counting: true, atomic: true, values: true },
    })
    // Granted a moment before its time is up, answered when the release that ends the wait has been carried out.
    remote.fate = (method) => (method === 'acquire' ? { requestMs: 999, replyMs: 100 } : undefined)
    const waiting = outcome(remote.locks().acquire('x', { wait: 1_000 }))
    await remote.pass(1_050)
    const other = outcome(remote.locks().acquire('x', { wait: 0 }))
    await remote.pass(5_000)
    expect(waiting.value).toBeUndefined()
    expect(waiting.error).toBeInstanceOf(LockTimeoutError)
    expect(other.value?.isHeld).toBe(true)
  })

  test('but only looks for a record, and is answered late, is an outage and not a busy name', async () => {
    const remote = new RemoteMemory({
      blocks: true,
      features: { queue: false, counting: true, atomic: true, values: true },
    })
    remote.fate = (method) => (method === 'acquire' ? { replyMs: 1_200 } : undefined)
    const looking = outcome(remote.locks().runOnce('x', () => 'ran', { wait: 1_000 }))
    await remote.pass(5_000)
    expect(looking.error).toBeInstanceOf(StoreUnavailableError)
    expect(remote.real.holders('')).toEqual([])
  })

  test('and that fails instead is an outage also for a waiter behind it in the same process', async () => {
    const remote = new RemoteMemory({
      blocks: true,
      features: { queue: false, counting: true, atomic: true, values: true },
    })
    remote.fate = () => 'break'
    const locks = remote.locks()
    const first = outcome(locks.acquire('x', { wait: 1_000 }))
    const second = outcome(locks.acquire('x', { wait: 1_000 }))
    const impatient = outcome(locks.acquire('x', { wait: 700 }))
    await remote.pass(3_000)
    for (const { error } of [first, second, impatient]) {
      expect(error).toBeInstanceOf(StoreUnavailableError)
      expect((error as Error).message).toContain('is unavailable')
    }
  })

  test('and that was lost before a freeze is an outage for a waiter behind it, whichever timer runs first', async () => {
    const remote = new RemoteMemory({
      blocks: true,
      features: { queue: false, counting: true, atomic: true, values: true },
    })
    remote.fate = (method) => (method === 'acquire' ? 'lose' : undefined)
    const locks = remote.locks()
    // The time limit of the request ends at 2,030 ms, the wait of the second at 2,029 ms.
    outcome(locks.acquire('x', { ttl: 60, wait: '1m' }))
    const behind = outcome(locks.acquire('x', { wait: 2_029 }))
    await remote.pass(2_000)
    remote.world.freeze(3_000)
    await remote.pass(0)
    expect(behind.error).toBeInstanceOf(StoreUnavailableError)
  })

  test('and that fails when it is called back ends the wait at once, without a further request', async () => {
    const remote = new RemoteMemory({
      blocks: true,
      features: { queue: false, counting: true, atomic: true, values: true },
    })
    const acquire = remote.store.acquire.bind(remote.store)
    remote.store.acquire = (claims, options) => {
      void acquire(claims, options)
      return new Promise((_, reject) => remote.world.after(1_020, () => reject(new Error('ECONNREFUSED'))))
    }
    remote.fate = (method) => (method === 'acquire' ? 'lose' : undefined)
    const waiting = outcome(remote.locks().acquire('x', { wait: 1_000 }))
    await remote.pass(1_030)
    expect(waiting.error).toBeInstanceOf(StoreUnavailableError)
    expect(remote.calls.filter(({ method }) => method === 'acquire')).toHaveLength(1)
    await remote.pass(5_000)
  })

  test('and that is granted when it is called back leaves nothing in the store', async () => {
    const remote = new RemoteMemory({
      blocks: true,
      features: { queue: false, counting: true, atomic: true, values: true },
    })
    // The release that ends the wait comes first: what is granted afterwards belongs to nobody.
    remote.fate = (method) => (method === 'acquire' ? { requestMs: 1_050 } : undefined)
    const waiting = outcome(remote.locks().acquire('x', { wait: 1_000, ttl: '1m' }))
    await remote.pass(1_200)
    expect(waiting.error).toBeInstanceOf(LockTimeoutError)
    expect(remote.real.holders('')).toEqual([])
  })
})

describe('pushed grants', () => {
  test('a permit that was handed off before the last refusal is ignored', async () => {
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

  test('a hand-off is believed for no longer than a queue entry lasts, whatever the store says', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const first = outcome(remote.locks().acquire('x'))
    await world.settle()
    remote.passes = (event) => event.type !== 'granted'
    const waiting = outcome(remote.locks({ ttl: '1h' }).acquire('x', { wait: '1m' }))
    await remote.pass(10)
    const { owner } = remote.real.inspect('lock:x').waiters[0] as { owner: string }
    remote.fate = (method) => (method === 'renew' ? 'lose' : undefined)
    await first.value?.release()
    await world.settle()
    const { token } = remote.real.holders('lock:x')[0] as { token: bigint }
    // The store took the time during which this machine was suspended for time that is left.
    remote.push('lock:x', { type: 'granted', owner, token, ttlMs: 3_600_000 })
    await world.settle()
    expect(waiting.value?.isHeld).toBe(true)
    await remote.pass(3_000)
    expect(waiting.value?.isHeld).toBe(false)
    expect(remote.real.holders('lock:x').filter((holder) => holder.owner === owner)).toEqual([])
  })

  test('a lock that was handed off while a request was out is released for as long as that request may have made it last', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const first = outcome(remote.locks().acquire('x'))
    await world.settle()
    const waiting = outcome(remote.locks().acquire('x', { ttl: '30s', wait: '1m' }))
    await remote.pass(10)
    // The waiter asks again; the grant is pushed before that request arrives, which then gives it the full ttl.
    remote.fate = (method) => (method === 'acquire' ? { requestMs: 50 } : undefined)
    remote.push('lock:x', { type: 'freed' })
    await first.value?.release()
    await remote.pass(10)
    const extended = waiting.value?.extend(1_000)
    await remote.pass(100)
    await extended
    const since = world.now()
    remote.fate = (method) => (method === 'release' && world.now() < since + 6_000 ? 'break' : undefined)
    const released = waiting.value?.release()
    await remote.pass(12_000)
    expect(await released).toBe(false)
    expect(remote.real.holders('')).toEqual([])
  })

  test('a lock with a short ttl that is handed off is kept', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const first = outcome(remote.locks().acquire('x'))
    await world.settle()
    const waiting = outcome(remote.locks().acquire('x', { ttl: 300, wait: '1m' }))
    // Most of the ttl has passed since the last answer to the waiter.
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

  test('a grant whose push was lost is detected with the next heartbeat of the queue', async () => {
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
    // The push arrives at the same instant at which the wait ends.
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
    // The second waiter is next when the first has given up: its own request is 2 ms old when its wait ends.
    const second = outcome(locks.acquire('x', { wait: 902 }))
    await remote.pass(1_000)
    expect(first.error).toBeInstanceOf(LockTimeoutError)
    expect(second.error).toBeInstanceOf(LockTimeoutError)
  })

  test('a waiter behind a lock of its process that was granted meanwhile is told that the lock stayed busy', async () => {
    const remote = new RemoteMemory()
    remote.fate = (method, n) => (method === 'acquire' ? { replyMs: n === 1 ? 20 : 100 } : undefined)
    const locks = remote.locks()
    const first = outcome(locks.acquire('x', { wait: 1_000 }))
    // The second one wants another lease, so that it asks the store itself, and is not answered before the wait of the third ends.
    outcome(locks.acquire('x', { wait: 1_000, maxHold: 100 }))
    const third = outcome(locks.acquire('x', { wait: 40 }))
    await remote.pass(50)
    expect(first.value?.isHeld).toBe(true)
    expect(third.error).toBeInstanceOf(LockTimeoutError)
    await remote.pass(2_000)
  })

  test('a waiter behind a lock of its process that was granted before it came is told of the outage that followed', async () => {
    const remote = new RemoteMemory()
    const locks = remote.locks()
    const first = outcome(locks.acquire('x', { wait: 1_000 }))
    outcome(locks.acquire('x', { wait: 10_000, maxHold: 100 }))
    remote.fate = (method, n) => (method === 'acquire' && n > 1 ? 'lose' : undefined)
    await remote.pass(50)
    expect(first.value?.isHeld).toBe(true)
    const third = outcome(locks.acquire('x', { wait: 40 }))
    await remote.pass(50)
    expect(third.error).toBeInstanceOf(StoreUnavailableError)
    await remote.pass(20_000)
  })

  test('a waiter behind one whose requests failed is not told of an outage that is over', async () => {
    const remote = new RemoteMemory()
    remote.fate = (method, n) => (method === 'acquire' && n <= 10 ? 'break' : undefined)
    const asked = (): number => remote.calls.filter(({ method }) => method === 'acquire').length
    const locks = remote.locks({ ttl: 30_000 })
    const first = outcome(locks.acquire('x', { wait: 60_000 }))
    while (asked() < 10) await remote.pass(5)
    await remote.pass(150)
    // The store would answer, and the first waiter still pauses.
    expect([asked(), first]).toEqual([10, {}])
    const second = outcome(locks.acquire('x', { wait: 40 }))
    await remote.pass(50)
    expect(asked()).toBeGreaterThan(10)
    expect(first.value).toMatchObject({ isHeld: true })
    expect(second.error).toBeInstanceOf(LockTimeoutError)
  })

  test('newcomers behind one whose request has just failed send no request of their own', async () => {
    const remote = new RemoteMemory()
    remote.fate = (method) => (method === 'acquire' ? 'break' : undefined)
    const asked = (): number => remote.calls.filter(({ method }) => method === 'acquire').length
    const locks = remote.locks({ ttl: 30_000 })
    const waiting = [outcome(locks.acquire('x', { wait: 60_000 }))]
    while (asked() < 10) await remote.pass(5)
    const before = asked()
    for (let i = 0; i < 1_000; i++) {
      waiting.push(outcome(locks.acquire('x', { wait: 60_000 })))
      await remote.pass(1)
    }
    expect(asked() - before).toBeLessThanOrEqual(15)
    await locks.close({ grace: 0 })
    await remote.pass(5_000)
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

  test('a waiter becomes first and asks when the waiters before it have died', async () => {
    const remote = new RemoteMemory()
    const { world } = remote
    const holder = outcome(remote.locks().acquire('x', { ttl: 5_000, autoRenew: false }))
    await world.settle()
    // A queue entry that is never renewed.
    const dead = { key: 'lock:x', owner: 'dead', weight: ALL, capacity: ALL, ttlMs: 1_000, queueMs: 3_000 }
    remote.real.acquire([dead])
    const waiting = outcome(remote.locks().acquire('x', { wait: '1m' }))
    await remote.pass(5_200)
    expect(holder.value?.isHeld).toBe(false)
    expect(waiting.value?.isHeld).toBe(true)
  })
})

describe('on a store without a queue, a lock that its process has just released', () => {
  /** A store that announces releases to all who subscribe, and a process that has subscribed. */
  async function subscribed(): Promise<{ remote: RemoteMemory; locks: ReturnType<RemoteMemory['locks']>; lock: Lock }> {
    const remote = new RemoteMemory({ features: { queue: false, counting: true, atomic: true, values: true } })
    const acquire = remote.store.acquire.bind(remote.store)
    remote.store.acquire = (claims) => acquire(claims.map((claim) => ({ ...claim, queueMs: undefined })))
    const locks = remote.locks()
    const before = outcome(locks.acquire('x'))
    await remote.pass(1)
    const waiting = outcome(locks.acquire('x', { wait: 1_000, maxHold: '1m' }))
    await remote.pass(1)
    void before.value?.release()
    await remote.pass(1)
    remote.push('lock:x', { type: 'freed' })
    await remote.pass(1)
    expect(waiting.value?.isHeld).toBe(true)
    // From here on no release is announced.
    remote.passes = () => false
    return { remote, locks, lock: waiting.value as Lock }
  }

  test('is left to others until the release is announced, and no longer than 25 ms', async () => {
    const { remote, locks, lock } = await subscribed()
    void lock.release()
    await remote.pass(1)
    const next = outcome(locks.acquire('x', { wait: 1_000 }))
    await remote.pass(20)
    expect(next.value).toBeUndefined()
    await remote.pass(6)
    expect(next.value?.isHeld).toBe(true)
  })

  test('is left to others once, although the announcement of its release was lost', async () => {
    const { remote, locks, lock } = await subscribed()
    void lock.release()
    await remote.pass(1)
    const next = outcome(locks.acquire('x', { wait: 1_000 }))
    const last = outcome(locks.acquire('x', { wait: 1_000, maxHold: '1m' }))
    await remote.pass(30)
    expect(next.value?.isHeld).toBe(true)
    // The last one has asked, and was refused.
    expect(remote.calls.at(-1)?.method).toBe('acquire')
    expect(remote.calls.at(-1)?.items.map(({ owner }) => owner)).not.toEqual([next.value?.holder])
    await remote.pass(1_000)
    expect(last.error).toBeInstanceOf(LockTimeoutError)
  })

  test('is asked for at once if the lease was gone: nothing is announced then', async () => {
    const { remote, locks, lock } = await subscribed()
    // It ended in the store without a message to its holder.
    remote.real.release([{ key: 'lock:x', owner: lock.holder }])
    void lock.release()
    await remote.pass(1)
    const next = outcome(locks.acquire('x', { wait: 1_000 }))
    await remote.pass(1)
    expect(next.value?.isHeld).toBe(true)
  })
})

describe('several names', () => {
  test('acquireAll asks in one atomic call for as many names as features.atomic allows, and one by one for more', async () => {
    const remote = new RemoteMemory({ features: { queue: true, counting: true, atomic: 2, values: true } })
    const asked = (): number[] => remote.calls.splice(0).map(({ items }) => items.length)
    const two = outcome(remote.locks().acquireAll(['a', 'b']))
    await remote.pass(10)
    expect(two.value?.isHeld).toBe(true)
    expect(asked()).toEqual([2])
    const three = outcome(remote.locks().acquireAll(['c', 'd', 'e']))
    await remote.pass(10)
    expect(three.value?.isHeld).toBe(true)
    expect(asked()).toEqual([1, 1, 1])
  })

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
