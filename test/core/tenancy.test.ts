/** Locks that are passed on inside a process: which are, which are not, and what the store and others see of it. */
import { expect, test } from 'vitest'
import type { Lock } from '../../src/core/lock.js'
import type { AcquireOptions } from '../../src/core/options.js'
import type { Locks } from '../../src/locks.js'
import type { Answer } from '../../src/store.js'
import { RemoteMemory } from './remote-memory.js'

const calls = (remote: RemoteMemory, method: string): number =>
  remote.calls.filter((call) => call.method === method).length

/** So many that ask in one turn, each of which holds for `holdMs`. Resolves with their locks in the order of their grants. */
function herd(remote: RemoteMemory, locks: Locks, count: number, holdMs: number, options: AcquireOptions = {}): Lock[] {
  const held: Lock[] = []
  for (let i = 0; i < count; i++) {
    void locks.acquire('a', options).then(async (lock) => {
      held.push(lock)
      if (holdMs > 0) await new Promise<void>((resolve) => remote.world.after(holdMs, resolve))
      await lock.release()
    })
  }
  return held
}

const tokensOf = (held: readonly Lock[]): bigint[] => held.map(({ fencingToken }) => fencingToken)
const steps = (tokens: readonly bigint[]): bigint[] => tokens.slice(1).map((token, i) => token - (tokens[i] as bigint))

test('waiters of one process share one grant, each with a token and a holder of its own', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const held = herd(remote, locks, 10, 1)
  await remote.pass(100)
  expect(held).toHaveLength(10)
  expect(steps(tokensOf(held))).toEqual(Array.from({ length: 9 }, () => 1n))
  expect(new Set(held.map(({ holder }) => holder)).size).toBe(10)
  expect(held[3]?.holder).toBe(`${held[0]?.holder}/3`)
  expect(calls(remote, 'acquire')).toBe(1)
  expect(calls(remote, 'release')).toBe(1)
  expect(remote.real.inspect('lock:a')).toEqual({ holders: [], waiters: [] })
})

test('one grant serves 32 locks at most, and the next one has a larger token than all of them', async () => {
  const remote = new RemoteMemory()
  const held = herd(remote, remote.locks(), 80, 0)
  await remote.pass(100)
  expect(held).toHaveLength(80)
  // The first to wait for another grant subscribes, and asks again when that is done.
  expect(calls(remote, 'acquire')).toBeLessThanOrEqual(5)
  expect(steps(tokensOf(held)).every((step) => step > 0n)).toBe(true)
})

test('processes take turns: a waiter elsewhere waits for one turn only', async () => {
  const remote = new RemoteMemory()
  const [here, there] = [remote.locks(), remote.locks()]
  const held = herd(remote, here, 100, 1)
  await remote.pass(5)
  let before = -1
  void there.acquire('a').then((lock) => {
    before = held.length
    return lock.release()
  })
  await remote.pass(500)
  expect(held).toHaveLength(100)
  expect(before).toBeGreaterThan(5)
  expect(before).toBeLessThan(32)
})

test('a lock that is held for longer than a turn is handed off by the store, and its waiter has a queue entry by then', async () => {
  const remote = new RemoteMemory()
  const held = herd(remote, remote.locks(), 3, 50)
  await remote.pass(10)
  expect(remote.real.inspect('lock:a').waiters).toHaveLength(0)
  await remote.pass(15)
  expect(remote.real.inspect('lock:a').waiters).toHaveLength(1)
  await remote.pass(300)
  expect(held).toHaveLength(3)
  expect(calls(remote, 'release')).toBe(3)
})

test('a lock whose lease was taken away is lost, and the next waiter asks the store', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const held = herd(remote, locks, 4, 5)
  await remote.pass(7)
  expect(held).toHaveLength(2)
  await locks.forceRelease('a')
  expect(held[1]?.isHeld).toBe(false)
  await remote.pass(50)
  expect(held).toHaveLength(4)
  expect(calls(remote, 'acquire')).toBe(2)
  expect((held[2] as Lock).fencingToken - (held[0] as Lock).fencingToken).toBeGreaterThanOrEqual(32n)
})

test('a lease is not passed on while a renewal is in flight', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  remote.fate = (method) => (method === 'renew' ? { replyMs: 5 } : undefined)
  const first = locks.acquire('a')
  const second = locks.acquire('a')
  await remote.pass(0)
  const lock = await first
  const extending = lock.extend('30s').catch(() => {})
  await remote.pass(1)
  expect(await lock.release()).toBe(true)
  await remote.pass(10)
  await extending
  await (await second).release()
  expect(calls(remote, 'acquire')).toBe(2)
})

test('a lease is not passed on with less than half of its time left', async () => {
  const remote = new RemoteMemory()
  // Without renewals: with so little left the first one is sent at once.
  remote.fate = (method, n) =>
    method === 'acquire' && n === 1 ? { replyMs: 25 } : method === 'renew' ? 'lose' : undefined
  const held = herd(remote, remote.locks({ ttl: 50 }), 2, 1)
  await remote.pass(200)
  expect(held).toHaveLength(2)
  expect(calls(remote, 'acquire')).toBe(2)
})

test.each<[string, AcquireOptions]>([
  ['another ttl', { ttl: 7_000 }],
  ['metadata', { metadata: { job: 7 } }],
  ['autoRenew: false', { autoRenew: false }],
  ['maxHold', { maxHold: 5_000 }],
  ['mode: shared', { mode: 'shared' }],
])('a waiter with %s is served by the store', async (_, options) => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const held = [...herd(remote, locks, 2, 1)]
  const other = locks.acquire('a', options)
  await remote.pass(50)
  const lock = await other
  expect(remote.real.holders('')[0]).toMatchObject({ owner: lock.holder, token: lock.fencingToken })
  await lock.release()
  expect(held).toEqual([])
})

test('request() is never passed a lease, and its waiters never pass one on', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  let ran = 0
  for (let i = 0; i < 5; i++) void locks.request('a', () => void ran++)
  await remote.pass(50)
  expect(ran).toBe(5)
  expect(
    remote.calls.flatMap(({ method, items }) => (method === 'acquire' ? items : [])).length,
  ).toBeGreaterThanOrEqual(5)
})

test('waiters with the same metadata share a grant, which shows it', async () => {
  const remote = new RemoteMemory()
  const held = herd(remote, remote.locks(), 3, 5, { metadata: { job: 7 } })
  await remote.pass(7)
  expect(held).toHaveLength(2)
  expect(remote.real.holders('')[0]?.value).toBe('{"job":7}')
  await remote.pass(20)
  expect(calls(remote, 'acquire')).toBe(1)
})

test('a waiter that gives up behind a lock of its own process gets a timeout with the holder', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const lock = locks.acquire('a')
  const impatient = locks.acquire('a', { wait: 10 }).catch((error: unknown) => error)
  await remote.pass(15)
  expect(await impatient).toMatchObject({ code: 'LOCK_TIMEOUT', heldBy: (await lock).holder })
  await (await lock).release()
})

test('a waiter that is aborted is not passed the lease', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const controller = new AbortController()
  const first = locks.acquire('a')
  const aborted = locks.acquire('a', { signal: controller.signal }).catch((error: unknown) => error)
  const third = locks.acquire('a')
  await remote.pass(1)
  controller.abort(new Error('enough'))
  await (await first).release()
  expect(await aborted).toMatchObject({ message: 'enough' })
  expect((await third).fencingToken).toBe((await first).fencingToken + 1n)
  await (await third).release()
})

test('close() in the middle of a turn releases the lease and rejects those who wait', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const held = herd(remote, locks, 2, 5)
  const waiting = locks.acquire('a').catch((error: unknown) => error)
  await remote.pass(7)
  const closing = locks.close({ grace: 0 })
  await remote.pass(10)
  await closing
  expect(await waiting).toMatchObject({ code: 'CLOSED' })
  expect(held[1]?.isHeld).toBe(false)
  expect(remote.real.holders('')).toEqual([])
})

test('releaseAll() releases to the store, and the next waiter asks it', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const first = locks.acquire('a')
  const second = locks.acquire('a')
  await remote.pass(1)
  await first
  const releasing = locks.releaseAll()
  await remote.pass(1)
  await releasing
  expect((await second).isHeld).toBe(true)
  expect(calls(remote, 'acquire')).toBe(2)
  await (await second).release()
})

test('a lease that is passed on is renewed when its first holder would have renewed it', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks({ ttl: 3_000 })
  const first = locks.acquire('a')
  const second = locks.acquire('a')
  await remote.pass(10)
  await (await first).release()
  const lock = await second
  await remote.pass(1_000)
  expect(calls(remote, 'renew')).toBe(1)
  await remote.pass(20_000)
  expect(lock.isHeld).toBe(true)
  expect(await lock.release()).toBe(true)
})

test('the events of each lock name its holder and its token', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const events: string[] = []
  for (const event of ['acquired', 'released'] as const)
    locks.on(event, ({ holder, fencingToken }) => events.push(`${event} ${holder} ${fencingToken}`))
  const held = herd(remote, locks, 3, 1)
  await remote.pass(20)
  expect(events).toEqual(
    held.flatMap(({ holder, fencingToken }) => [
      `acquired ${holder} ${fencingToken}`,
      `released ${holder} ${fencingToken}`,
    ]),
  )
})

test('a store that reserves no tokens is asked for each lock', async () => {
  const remote = new RemoteMemory()
  const { acquire } = remote.store
  remote.store.acquire = (claims, options) =>
    acquire(
      claims.map((claim) => ({ ...claim, tokens: undefined })),
      options,
    )
  const held = herd(remote, remote.locks(), 5, 1)
  await remote.pass(50)
  expect(held).toHaveLength(5)
  expect(calls(remote, 'release')).toBe(5)
})

test('a lock that is released again by a listener of its own release does not end the lease that was passed on', async () => {
  const remote = new RemoteMemory()
  const [here, there] = [remote.locks(), remote.locks()]
  const first = here.acquire('a')
  const second = here.acquire('a')
  await remote.pass(1)
  const lock = await first
  const again: boolean[] = []
  here.on('released', () => void lock.release().then((answer) => again.push(answer)))
  expect(await lock.release()).toBe(true)
  const successor = await second
  await remote.pass(1)
  const asked = there.tryAcquire('a')
  await remote.pass(1)
  expect(successor.isHeld).toBe(true)
  expect(await asked).toBeNull()
  expect(again).toEqual([true])
})

test('a lock that is released again by a listener of its own release is no loss', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const lost: unknown[] = []
  locks.on('lost', (facts) => lost.push(facts))
  const acquiring = locks.acquire('a')
  await remote.pass(1)
  const lock = await acquiring
  locks.on('released', () => void lock.release())
  const releasing = lock.release()
  await remote.pass(1)
  expect(await releasing).toBe(true)
  expect(lost).toEqual([])
})

test('a waiter whose signal has aborted is not passed the lease, although its listener was not called yet', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const stop = new AbortController()
  let held: Lock | undefined
  let ran = false
  stop.signal.addEventListener('abort', () => void held?.release())
  const first = locks.acquire('a')
  const work = (): void => {
    ran = true
  }
  const rejected = expect(locks.withLock('a', work, { signal: stop.signal })).rejects.toThrow()
  await remote.pass(1)
  held = await first
  stop.abort()
  await remote.pass(1)
  await rejected
  expect(ran).toBe(false)
})

test('nothing is passed on while the store cannot tell of revocations', async () => {
  const remote = new RemoteMemory({ watchRevoked: undefined as never })
  const held = herd(remote, remote.locks(), 4, 1)
  await remote.pass(100)
  expect(held).toHaveLength(4)
  expect(calls(remote, 'release')).toBe(4)
})

test.each([2.5, 1, Number.NaN])(
  'a store that reserves %s tokens has that lease passed on to nobody',
  async (tokens) => {
    const remote = new RemoteMemory()
    const { acquire } = remote.real
    remote.real.acquire = (claims, options) =>
      (acquire.call(remote.real, claims, options) as Answer[]).map((answer) =>
        answer.granted === true ? { ...answer, tokens } : answer,
      )
    const held = herd(remote, remote.locks(), 4, 1)
    await remote.pass(100)
    expect(held).toHaveLength(4)
    expect(new Set(tokensOf(held)).size).toBe(4)
    expect(held[1]?.holder).not.toBe(`${held[0]?.holder}/1`)
  },
)
