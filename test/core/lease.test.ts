import { describe, expect, test } from 'vitest'
import { createLocks, DistributedLock, LockLostError, memory } from '../../src/index.js'
import type { Lock } from '../../src/core/lock.js'
import { RemoteMemory } from './remote-memory.js'

async function held(remote: RemoteMemory, name: string, options: object = {}): Promise<Lock> {
  const lock = remote.locks().acquire(name, options)
  await remote.pass(1)
  return lock
}

describe('the signal', () => {
  test('is aborted when it is first read after release()', async () => {
    const lock = await createLocks(memory()).acquire('a')
    await lock.release()
    expect(lock.signal.aborted).toBe(true)
    expect(lock.signal.reason).toMatchObject({ code: 'LOCK_LOST', why: 'released' })
  })

  test('is aborted when it is first read after releaseAll()', async () => {
    const locks = createLocks(memory())
    const lock = await locks.acquire('a')
    await locks.releaseAll()
    expect(lock.signal.aborted).toBe(true)
  })

  test("that was read earlier does not abort by the lock's own release, and one that is read afterwards is aborted", async () => {
    const lock = await createLocks(memory()).acquire('a')
    const { signal } = lock
    await lock.release()
    expect(signal.aborted).toBe(false)
    expect(lock.signal.aborted).toBe(true)
  })

  test('aborts in time when extend() shortens the lock while a renewal is in flight', async () => {
    const remote = new RemoteMemory()
    const lock = await held(remote, 'a', { ttl: 3_000 })
    const { signal } = lock
    remote.fate = (method, n) => (method === 'renew' && n === 1 ? { replyMs: 400 } : 'lose')
    await remote.pass(1_050)
    const extending = lock.extend(500)
    extending.catch(() => {})
    await remote.pass(600)
    expect(lock.isHeld).toBe(false)
    expect(signal.aborted).toBe(true)
  })
})

describe('a callback', () => {
  test('whose lock was released by releaseAll() meanwhile makes withLock reject, even if the release is not answered', async () => {
    const remote = new RemoteMemory()
    const locks = remote.locks()
    const run = locks.withLock('c', async () => {
      await new Promise<void>((resolve) => remote.world.after(100, resolve))
      return 'result'
    })
    const outcome = run.then(String, (error: unknown) => error)
    await remote.pass(50)
    remote.fate = (method) => (method === 'release' ? 'lose' : undefined)
    void locks.releaseAll()
    await remote.pass(5_000)
    expect(await outcome).toBeInstanceOf(LockLostError)
  })

  test('of DistributedLock.withLock rejects if the lease had expired, even inside a lock that is kept', async () => {
    const lock = new DistributedLock(memory())
    await lock.acquire('x', { timeoutSeconds: 0.2 })
    const blocked = lock.withLock(
      'x',
      async () => {
        const end = performance.now() + 300
        while (performance.now() < end);
        return 'result'
      },
      { timeoutSeconds: 0.2 },
    )
    await expect(blocked).rejects.toBeInstanceOf(LockLostError)
    await lock.close()
  })
})

test('a lock on which release() was called twice at once is reported as released, and never as lost', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  const events: string[] = []
  locks.on('released', () => events.push('released'))
  locks.on('lost', () => events.push('lost'))
  const acquiring = locks.acquire('a')
  await remote.pass(1)
  const lock = await acquiring
  void locks.releaseAll()
  const released = lock.release()
  await remote.pass(100)
  expect(await released).toBe(true)
  expect(events).toEqual(['released'])
})

test('forceRelease by the same instance makes its holder report the loss at once', async () => {
  const remote = new RemoteMemory({ watchRevoked: undefined } as never)
  const locks = remote.locks()
  const acquiring = locks.acquire('e')
  await remote.pass(1)
  const lock = await acquiring
  const cut = await locks.forceRelease('e')
  expect(cut.map(({ holder }) => holder)).toEqual([lock.holder])
  expect(lock.isHeld).toBe(false)
  expect(lock.signal.reason).toMatchObject({ why: 'revoked' })
})

test('forceRelease by another instance of the same store makes the holder report the loss at once', async () => {
  const store = memory()
  const lock = await createLocks(store).acquire('e')
  await createLocks(store).forceRelease('e')
  expect(lock.isHeld).toBe(false)
})

test('a grant is held although an earlier one of the same waiter was revoked before its answer arrived', async () => {
  const remote = new RemoteMemory()
  // Only the answer to the first request for "e" is lost.
  remote.fate = (method, n) => (method === 'acquire' && n === 2 ? 'loseReply' : undefined)
  const locks = remote.locks()
  const other = locks.acquire('other')
  await remote.pass(1)
  const waiting = locks.acquire('e', { wait: '10s' })
  await remote.pass(10)
  expect(remote.real.revoke('lock:e')).toHaveLength(1)
  await remote.pass(5_000)
  const lock = await waiting
  expect(lock.isHeld).toBe(true)
  expect(remote.real.holders('lock:e').map(({ owner }) => owner)).toEqual([lock.holder])
  expect((await other).isHeld).toBe(true)
})

test('a lock that extend() made shorter is released until the store answers, for as long as the store would keep it', async () => {
  const remote = new RemoteMemory()
  const lock = await held(remote, 'x', { ttl: '30s', autoRenew: false })
  remote.fate = (method, n) => (method === 'renew' || n <= 4 ? 'break' : undefined)
  const extending = lock.extend(150).catch(() => {})
  await remote.pass(10_000)
  await extending
  expect(lock.isHeld).toBe(false)
  expect(remote.real.holders('')).toEqual([])
})

test('a DistributedLock that acquires again does not shorten its lease', async () => {
  const lock = new DistributedLock(memory())
  await lock.acquire('x', { timeoutSeconds: 30 })
  await lock.acquire('x', { timeoutSeconds: 0.02 })
  await new Promise((resolve) => setTimeout(resolve, 60))
  expect(await lock.extend('x', 30)).toBe(true)
  await lock.close()
})

test('DistributedLock.close() leaves no listener on its store', async () => {
  let listeners = 0
  const store = Object.assign(Object.create(memory()) as ReturnType<typeof memory>, {
    onPossibleLoss: () => {
      listeners++
      return () => listeners--
    },
  })
  const real = memory()
  for (const method of ['acquire', 'renew', 'release'] as const)
    Object.assign(store, { [method]: real[method].bind(real) })
  Object.assign(store, { features: real.features, watchRevoked: undefined, watch: undefined })
  for (let i = 0; i < 10; i++) {
    const lock = new DistributedLock(store)
    await lock.withLock('x', async () => i)
    await lock.close()
  }
  expect(listeners).toBe(0)
})
