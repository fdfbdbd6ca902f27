import { expect, test } from 'vitest'
import { ClosedError, createLocks, memory } from '../../../src/index.js'
import { faulty } from '../../../src/testing/index.js'

test('a wait can be cancelled at once and with its own reason, and the waits behind it continue', async () => {
  const locks = createLocks(memory())
  const limiter = locks.limiter('api', { limit: 1, per: '1s', burst: 5 })
  await limiter.take('user', 5)
  const controller = new AbortController()
  const large = limiter.wait('user', { cost: 5, signal: controller.signal })
  const small = limiter.wait('user')
  const reason = new Error('changed my mind')
  const began = performance.now()
  controller.abort(reason)
  await expect(large).rejects.toBe(reason)
  await small
  // Less than the five seconds that the large take would have needed first.
  expect(performance.now() - began).toBeLessThan(4_500)
  await expect(limiter.wait('user', { signal: controller.signal })).rejects.toBe(reason)
})

test('permits taken for a caller that left meanwhile go to the next waiting take', async () => {
  const store = faulty(memory())
  const locks = createLocks(store)
  const limiter = locks.limiter('api', { limit: 1, per: '1h' })
  const delay = store.inject({ effect: 'delay-reply', on: 'take' })
  const controller = new AbortController()
  const first = limiter.wait('user', { signal: controller.signal })
  const second = limiter.wait('user')
  await delay.strikes()
  controller.abort()
  await expect(first).rejects.toThrow()
  delay.lift()
  expect((await second).allowed).toBe(true)
})

test('close() ends every wait, and nothing is taken afterwards', async () => {
  const locks = createLocks(memory())
  const limiter = locks.limiter('api', { limit: 1, per: '1h' })
  await limiter.take('user')
  const waits = [limiter.wait('user'), limiter.wait('user')]
  const ended = Promise.allSettled(waits)
  await locks.close()
  for (const { status, reason } of (await ended) as PromiseRejectedResult[]) {
    expect(status).toBe('rejected')
    expect(reason).toBeInstanceOf(ClosedError)
  }
  await expect(limiter.take('another')).rejects.toThrow(ClosedError)
  await expect(limiter.wait('another')).rejects.toThrow(ClosedError)
})

test('an outage ends all waits', async () => {
  const store = faulty(memory())
  const locks = createLocks(store)
  const limiter = locks.limiter('api', { limit: 1, per: '1h' })
  store.inject({ effect: 'break-call', on: 'take', times: 1 })
  const waits = await Promise.allSettled([limiter.wait('user'), limiter.wait('user')])
  expect(waits.map(({ status }) => status)).toEqual(['rejected', 'rejected'])
  expect((await limiter.wait('user')).allowed).toBe(true)
})
