/** As the page "Test your code" describes: a test with fake timers passes days in milliseconds. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createLocks, memory } from '../../../src/index.js'

beforeEach(() => {
  vi.useFakeTimers({ now: new Date('2026-03-01T02:59:50Z') })
})
afterEach(() => {
  vi.useRealTimers()
})

test('a schedule follows fake timers', async () => {
  const locks = createLocks(memory())
  const ticks: string[] = []
  const job = locks.schedule('report', '0 3 * * *', ({ tick }) => void ticks.push(tick.toISOString()))
  await vi.advanceTimersByTimeAsync(5_000)
  expect(ticks).toEqual([])
  await vi.advanceTimersByTimeAsync(10_000)
  expect(ticks).toEqual(['2026-03-01T03:00:00.000Z'])
  await vi.advanceTimersByTimeAsync(2 * 86_400_000)
  expect(ticks).toEqual(['2026-03-01T03:00:00.000Z', '2026-03-02T03:00:00.000Z', '2026-03-03T03:00:00.000Z'])
  await job.stop()
  await locks.close()
})

test('a lock follows fake timers: renewed while they advance, timed out, expired', async () => {
  const locks = createLocks(memory(), { ttl: '30s' })
  const lock = await locks.acquire('a')
  expect(lock.acquiredAt.toISOString()).toBe('2026-03-01T02:59:50.000Z')
  await vi.advanceTimersByTimeAsync(3_600_000)
  expect(lock.isHeld).toBe(true)
  const refused = locks.acquire('a', { wait: '5s' }).catch((error: { code: string }) => error.code)
  await vi.advanceTimersByTimeAsync(5_001)
  expect(await refused).toBe('LOCK_TIMEOUT')
  await lock.release()
  const short = await locks.acquire('a', { ttl: '10s', autoRenew: false })
  await vi.advanceTimersByTimeAsync(10_000)
  expect(short.isHeld).toBe(false)
  expect(short.signal.aborted).toBe(true)
  await locks.close()
})

test('time continues after real timers are restored', async () => {
  const locks = createLocks(memory())
  vi.useRealTimers()
  const lock = await locks.acquire('a', { ttl: '10s', autoRenew: false })
  expect(lock.isHeld).toBe(true)
  expect(lock.remainingMs).toBeGreaterThan(9_000)
  await new Promise((resolve) => setTimeout(resolve, 50))
  expect(lock.remainingMs).toBeLessThan(9_900)
  await lock.release()
  await locks.close()
})
