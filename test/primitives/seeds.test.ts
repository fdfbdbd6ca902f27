import { Redis } from 'ioredis'
import { afterEach, describe, expect, onTestFinished, test, vi } from 'vitest'
import { DistributedLock, getDistributedLock, LockLostError, memory, StoreUnavailableError } from '../../src/index.js'
import { redis } from '../../src/stores/redis/index.js'
import { faulty } from '../../src/testing/index.js'
import { startRedis } from '../../testbed/servers/index.js'
import type { LockInfo, LockOptions, LockResult } from '../../src/index.js'

const done: string[] = []
const note = (what: string) => async (id?: string) => void done.push(id ? `${what} ${id}` : what)
const processPayment = note('paid')
const generateDailyReport = note('reported')
const doExpensiveWork = note('worked')
const performDailyCleanup = note('cleaned')

afterEach(() => {
  done.length = 0
})

describe('the four usage examples of the seed run unchanged', () => {
  test('basic lock', async () => {
    const lock = getDistributedLock()
    const result = await lock.acquire('process-payment:order-123')
    if (result.acquired) {
      try {
        await processPayment('order-123')
      } finally {
        await lock.release('process-payment:order-123')
      }
    } else {
      console.log('Another instance is processing this order')
    }
    expect(done).toEqual(['paid order-123'])
  })

  test('with context manager', async () => {
    const lock = getDistributedLock()
    await lock.withLock(
      'daily-report',
      async () => {
        await generateDailyReport()
      },
      { timeoutSeconds: 300 },
    )
    expect(done).toEqual(['reported'])
    expect(await new DistributedLock().acquire('daily-report')).toMatchObject({ acquired: true })
  })

  test('long-running job with extension', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] })
    async function processJob(jobId: string) {
      const lock = getDistributedLock()
      const result = await lock.acquire(`job:${jobId}`, { timeoutSeconds: 60 })
      if (!result.acquired) return
      try {
        // Extend lock periodically for long jobs
        // oxlint-disable-next-line typescript/no-misused-promises -- the seed's own words
        const extendInterval = setInterval(async () => {
          extended.push(await lock.extend(`job:${jobId}`, 60))
        }, 30000)
        await doExpensiveWork(jobId)
        await vi.advanceTimersByTimeAsync(90_000)
        clearInterval(extendInterval)
      } finally {
        await lock.release(`job:${jobId}`)
      }
    }
    const extended: boolean[] = []
    await processJob('7')
    vi.useRealTimers()
    expect(done).toEqual(['worked 7'])
    expect(extended).toEqual([true, true, true])
  })

  test('singleton cron job', async () => {
    async function runScheduledTask(lock: DistributedLock) {
      const result = await lock.acquire('cron:daily-cleanup', { timeoutSeconds: 3600 })
      if (!result.acquired) {
        done.push('Another instance is running daily cleanup')
        return
      }
      try {
        await performDailyCleanup()
        await runScheduledTask(new DistributedLock())
      } finally {
        await lock.release('cron:daily-cleanup')
      }
    }
    await runScheduledTask(getDistributedLock())
    expect(done).toEqual(['cleaned', 'Another instance is running daily cleanup'])
  })
})

/** A client of a server of its own, both ended with the test. */
async function redisClient(): Promise<Redis> {
  const server = await startRedis()
  const client = new Redis(server.url)
  onTestFinished(async () => {
    client.disconnect()
    await server.stop()
  })
  return client
}

describe('DistributedLock', () => {
  test('the types have the names and fields of the seed', async () => {
    const options: LockOptions = { timeoutSeconds: 5, blocking: true, blockingTimeoutSeconds: 1, metadata: { job: 7 } }
    const lock = new DistributedLock(memory())
    const result: LockResult = await lock.acquire('a', options)
    const info: LockInfo | undefined = result.lock
    expect(info).toMatchObject({ lockName: 'a', holderId: lock.holderId, metadata: { job: 7 } })
    expect(Number(info?.expiresAt) - Number(info?.acquiredAt)).toBeGreaterThan(3_000)
    expect(Number(info?.expiresAt) - Number(info?.acquiredAt)).toBeLessThanOrEqual(5_000)
  })

  test('acquire() of another instance is refused and reports the holder', async () => {
    const store = memory()
    const [one, two] = [new DistributedLock(store), new DistributedLock(store)]
    await one.acquire('a')
    expect(await two.acquire('a')).toEqual({ acquired: false, error: `Lock held by ${one.holderId}` })
    expect(await two.release('a')).toBe(false)
    expect(await two.extend('a', 10)).toBe(false)
    expect(await one.release('a')).toBe(true)
    expect(await one.release('a')).toBe(false)
    expect(await two.acquire('a')).toMatchObject({ acquired: true })
  })

  test('acquire() again extends the lock', async () => {
    const lock = new DistributedLock(memory())
    const first = await lock.acquire('a', { timeoutSeconds: 10 })
    const again = await lock.acquire('a', { timeoutSeconds: 60 })
    expect(again.acquired).toBe(true)
    expect(Number(again.lock?.expiresAt) - Number(first.lock?.expiresAt)).toBeGreaterThan(45_000)
    expect(again.lock?.holderId).toBe(first.lock?.holderId)
  })

  test('a blocking acquire waits, and reports a timeout', async () => {
    const store = memory()
    const [one, two] = [new DistributedLock(store), new DistributedLock(store)]
    await one.acquire('a')
    const waiting = two.acquire('a', { blocking: true, blockingTimeoutSeconds: 5 })
    await one.release('a')
    expect(await waiting).toMatchObject({ acquired: true })
    const vain = await one.acquire('a', { blocking: true, blockingTimeoutSeconds: 0.05 })
    expect(vain).toEqual({ acquired: false, error: 'Timeout waiting for lock' })
  })

  test('acquire() does not renew by itself, and withLock() does', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const store = memory()
    const [one, two] = [new DistributedLock(store), new DistributedLock(store)]
    await one.acquire('a', { timeoutSeconds: 5 })
    const blocking = two.acquire('a', { blocking: true, timeoutSeconds: 5 })
    await vi.advanceTimersByTimeAsync(6_000)
    expect(await blocking).toMatchObject({ acquired: true })
    const held = two.withLock(
      'b',
      async () => {
        await new Promise((resolve) => setTimeout(resolve, 15_000))
        return (await one.acquire('b')).acquired
      },
      { timeoutSeconds: 6 },
    )
    await vi.advanceTimersByTimeAsync(15_000)
    expect(await held).toBe(false)
  })

  test('withLock() rejects while the lock is busy, runs again after a failure, and passes errors on', async () => {
    const store = memory()
    const [one, two] = [new DistributedLock(store), new DistributedLock(store)]
    await one.acquire('a')
    await expect(two.withLock('a', async () => 1)).rejects.toThrow('Failed to acquire lock: a')
    await one.releaseAll()
    await expect(two.withLock('a', () => Promise.reject(new Error('own')))).rejects.toThrow('own')
    expect(await two.withLock('a', async () => 2)).toBe(2)
  })

  test('withLock() rejects when the lock was lost meanwhile', async () => {
    const store = memory()
    const lock = new DistributedLock(store)
    const run = lock.withLock('a', async () => void store.revoke('lock:a'))
    await expect(run).rejects.toThrow(LockLostError)
  })

  test('a lock that is gone without notice is acquired anew, by acquire() and by withLock()', async () => {
    const client = await redisClient()
    const lock = new DistributedLock(redis(client))
    await lock.acquire('a')
    await client.del('lock:a')
    expect(await lock.acquire('a')).toMatchObject({ acquired: true })
    await client.set('lock:a', 'another program', 'PX', 60_000)
    expect(await lock.acquire('a')).toMatchObject({ acquired: false })
    await client.del('lock:a')
    await lock.acquire('a')
    await client.del('lock:a')
    expect(await lock.withLock('a', async () => 'done')).toBe('done')
    await lock.close()
  })

  test.each([
    ['timeoutSeconds', 0, () => new DistributedLock(memory()).acquire('a', { timeoutSeconds: 0 })],
    ['timeoutSeconds', 0.001, () => new DistributedLock(memory()).acquire('a', { timeoutSeconds: 0.001 })],
    ['blockingTimeoutSeconds', -1, () => new DistributedLock(memory()).acquire('a', { blockingTimeoutSeconds: -1 })],
    ['metadata', '"text"', () => new DistributedLock(memory()).acquire('a', { metadata: 'text' as never })],
    ['blocking', '"no"', () => new DistributedLock(memory()).acquire('a', { blocking: 'no' as never })],
    ['fn', 'undefined', () => new DistributedLock(memory()).withLock('a', undefined as never)],
  ])('%s of %s is refused by name', async (option, value, call) => {
    await expect(call()).rejects.toMatchObject({ code: 'INVALID_OPTION', option })
    await expect(call()).rejects.toThrow(`it was ${value}`)
  })

  test('an outage is reported as an outage, not as busy', async () => {
    const store = faulty(memory(), [{ on: 'acquire', effect: 'break-call' }])
    await expect(new DistributedLock(store).acquire('a')).rejects.toThrow(StoreUnavailableError)
  })

  test('instances without a store share one', async () => {
    await new DistributedLock().acquire('shared')
    expect(await new DistributedLock().acquire('shared')).toMatchObject({ acquired: false })
  })

  test('acquire() by the holder succeeds at the moment at which its time passes', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const store = memory()
    const [one, two] = [new DistributedLock(store), new DistributedLock(store)]
    for (const name of ['by timer', 'by call']) {
      await one.acquire(name, { timeoutSeconds: 30 })
      // The holder counts on a hundredth less than the store.
      if (name === 'by timer') await vi.advanceTimersByTimeAsync(29_800)
      else vi.setSystemTime(Date.now() + 29_800)
      expect(await one.acquire(name), name).toMatchObject({ acquired: true, lock: { holderId: one.holderId } })
      expect(await two.acquire(name), name).toMatchObject({ acquired: false })
    }
  })

  test('calls of one instance do not hold each other up, and each has its own time limit', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const store = memory()
    const [one, two] = [new DistributedLock(store), new DistributedLock(store)]
    await one.acquire('a')
    const settledAt: number[] = []
    const began = Date.now()
    const calls = [1, 1, 2].map((blockingTimeoutSeconds) =>
      two.acquire('a', { blocking: true, blockingTimeoutSeconds }).then(({ acquired }) => {
        settledAt.push(Date.now() - began)
        return acquired
      }),
    )
    const atOnce = two.acquire('a')
    await vi.advanceTimersByTimeAsync(1)
    expect(await atOnce).toEqual({ acquired: false, error: `Lock held by ${one.holderId}` })
    expect(await two.release('a')).toBe(false)
    await vi.advanceTimersByTimeAsync(5_000)
    expect(await Promise.all(calls)).toEqual([false, false, false])
    expect(settledAt.map((ms) => Math.round(ms / 100))).toEqual([10, 10, 20])
  })

  test('all calls of one instance that wait get the lock when it is free', async () => {
    const store = memory()
    const [one, two] = [new DistributedLock(store), new DistributedLock(store)]
    await one.acquire('a')
    const waiting = [20, 20, 30].map((timeoutSeconds) => two.acquire('a', { blocking: true, timeoutSeconds }))
    const inside = two.withLock('a', async () => 'ran', { blocking: true })
    await one.release('a')
    for (const call of waiting) expect(await call).toMatchObject({ acquired: true })
    expect(await inside).toBe('ran')
    expect(await two.extend('a', 60)).toBe(true)
    expect(await two.release('a')).toBe(true)
    expect(await one.acquire('a')).toMatchObject({ acquired: true })
  })

  test('release() and releaseAll() behind an acquire() release what it gets', async () => {
    const client = await redisClient()
    const lock = new DistributedLock(redis(client))
    const acquired = lock.acquire('a')
    // The request is under way then.
    await new Promise((resolve) => setImmediate(resolve))
    expect(await lock.release('a')).toBe(true)
    expect(await acquired).toEqual({ acquired: false, error: 'Released before it was acquired' })
    const calls = ['a', 'b', 'b'].map(async (name) => (await lock.acquire(name)).acquired)
    await lock.releaseAll()
    expect(await Promise.all(calls)).toEqual([false, false, false])
    const later = lock.acquire('a')
    expect(await lock.extend('a', 60)).toBe(true)
    expect(await later).toMatchObject({ acquired: true })
    await lock.release('a')
    expect(await client.keys('lock:*')).toEqual([])
    await lock.close()
  })
})
