import { describe, expect, test } from 'vitest'
import { createLocks, LockTimeoutError, memory } from '../../src/index.js'

describe('10,000 waiters on one name in one process', () => {
  test('are served in order', async () => {
    const locks = createLocks(memory(), { wait: 'forever' })
    const first = await locks.acquire('a')
    const served: number[] = []
    const all = Array.from({ length: 10_000 }, (_, i) => locks.withLock('a', () => void served.push(i)))
    await first.release()
    await Promise.all(all)
    expect(served).toEqual(Array.from({ length: 10_000 }, (_, i) => i))
    await locks.close()
  })

  test('leave the queue when they are cancelled or time out, and have at most one queue entry in the store', async () => {
    const store = memory()
    const locks = createLocks(store)
    const first = await locks.acquire('a')
    const cancel = new AbortController()
    const all = Array.from({ length: 10_000 }, (_, i) =>
      locks.acquire('a', i % 2 === 0 ? { signal: cancel.signal, wait: 'forever' } : { wait: 50 }),
    )
    const outcomes = Promise.allSettled(all)
    // None if the machine was so slow that the queue entry expired, one otherwise.
    expect(store.inspect('lock:a').waiters.length).toBeLessThanOrEqual(1)
    cancel.abort(new Error('enough'))
    const reasons = (await outcomes).map((outcome) => (outcome as PromiseRejectedResult).reason as Error)
    expect(reasons.filter((reason) => reason.message === 'enough')).toHaveLength(5_000)
    expect(reasons.filter((reason) => reason instanceof LockTimeoutError)).toHaveLength(5_000)
    expect(store.inspect('lock:a').waiters).toEqual([])
    await first.release()
    expect(await locks.tryAcquire('a')).not.toBeNull()
    await locks.close({ grace: 0 })
  })
})
