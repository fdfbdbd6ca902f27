import { expect, test } from 'vitest'
import { createLocks, LockTimeoutError, StoreUnavailableError } from '../../../src/index.js'
import { memory } from '../../../src/stores/memory/index.js'
import { RemoteMemory } from '../../core/remote-memory.js'

test('acquireAll asks once, and not for each name, when its wait is over with the first answer', async () => {
  const store = memory()
  const other = createLocks(store)
  const calls: string[] = []
  const timeouts: unknown[] = []
  const locks = createLocks(store, { onCall: ({ call }) => calls.push(call) })
  locks.on('timeout', ({ name, heldBy }) => timeouts.push({ name, heldBy }))
  const busy = await other.acquire('b')
  const error = await locks.acquireAll(['a', 'b', 'c'], { wait: 0 }).catch((reason: unknown) => reason)
  expect(error).toBeInstanceOf(LockTimeoutError)
  expect(error).toMatchObject({ lock: 'b', heldBy: busy.holder })
  expect(calls).toEqual(['acquire'])
  expect(timeouts).toEqual([{ name: 'b', heldBy: busy.holder }])
  await busy.release()
  await (await locks.acquireAll(['a', 'b', 'c'], { wait: 0 })).release()
  await Promise.all([locks.close(), other.close()])
})

test('acquireAll rejects when its wait is over, also while the store says nothing', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  remote.fate = () => 'lose'
  const began = remote.world.now()
  let after = Number.POSITIVE_INFINITY
  const rejected = expect(
    locks.acquireAll(['a', 'b'], { wait: 100 }).finally(() => {
      after = remote.world.now() - began
    }),
  ).rejects.toBeInstanceOf(StoreUnavailableError)
  await remote.pass(10_000)
  await rejected
  expect(after).toBeLessThan(105)
})

test('acquireAll with a wait rejects as soon as its signal aborts', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  remote.fate = () => 'lose'
  const stop = new AbortController()
  const reason = new Error('enough')
  const rejected = expect(locks.acquireAll(['a', 'b'], { wait: 100, signal: stop.signal })).rejects.toBe(reason)
  await remote.pass(1)
  stop.abort(reason)
  await rejected
  await remote.pass(10_000)
})

test('what acquireAll is granted after its wait is over is released', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks()
  remote.fate = (method, n) => (method === 'acquire' && n === 1 ? { replyMs: 500 } : undefined)
  const rejected = expect(locks.acquireAll(['a', 'b'], { wait: 100 })).rejects.toThrow('"a", "b" could not be acquired')
  await remote.pass(1_000)
  await rejected
  expect(remote.real.inspect('lock:a')).toEqual({ holders: [], waiters: [] })
  expect(remote.real.inspect('lock:b')).toEqual({ holders: [], waiters: [] })
})

test('acquireAll is told that a name is busy if the store said so, and its wait ends before the next answer', async () => {
  const remote = new RemoteMemory()
  const [theirs, ours] = [remote.locks(), remote.locks()]
  const held = theirs.acquire('b', { ttl: 60_000 })
  await remote.pass(10)
  const { holder } = await held
  // Together they are refused after 10 ms; each by itself is answered when the wait is over.
  remote.fate = (method, n) => (method === 'acquire' ? { replyMs: n === 2 ? 10 : 500 } : undefined)
  const refused = ours.acquireAll(['a', 'b'], { wait: 30 }).catch((error: unknown) => error)
  await remote.pass(3_000)
  expect(await refused).toBeInstanceOf(LockTimeoutError)
  expect(await refused).toMatchObject({ lock: 'b', heldBy: holder })
})

test('acquireAll is told of an outage if the store fails after it said that a name is busy', async () => {
  const remote = new RemoteMemory()
  const [theirs, ours] = [remote.locks(), remote.locks()]
  const held = theirs.acquire('b', { ttl: 60_000 })
  await remote.pass(10)
  await held
  remote.fate = (method, n) => (method === 'acquire' && n > 2 ? 'break' : undefined)
  const refused = ours.acquireAll(['a', 'b'], { wait: 300 }).catch((error: unknown) => error)
  await remote.pass(3_000)
  expect(await refused).toBeInstanceOf(StoreUnavailableError)
})
