import { expect, test } from 'vitest'
import { createLocks, InvalidOptionError, memory, StoreUnavailableError } from '../../../src/index.js'
import { type FaultyStore, faulty } from '../../../src/testing/index.js'
import { until } from '../../../testbed/store-fixtures.js'

const takes = (store: FaultyStore): number => store.calls.filter(({ call }) => call === 'take').length

function broken(): { store: FaultyStore; heal: () => void } {
  const store = faulty(memory())
  const fault = store.inject({ effect: 'break-call', on: 'take' })
  return { store, heal: () => fault.lift() }
}

test('an outage is an error by default, never a decision', async () => {
  const { store, heal } = broken()
  const limiter = createLocks(store).limiter('api', { limit: 1, per: '1h' })
  await expect(limiter.take('user')).rejects.toThrow(StoreUnavailableError)
  heal()
  expect((await limiter.take('user')).allowed).toBe(true)
  expect((await limiter.take('user')).allowed).toBe(false)
})

test('an outage is reported by an event, whatever the outage option is', async () => {
  const { store } = broken()
  const locks = createLocks(store)
  const heard: unknown[] = []
  locks.on('error', ({ name, kind, error }) => heard.push([name, kind, error.name]))
  await locks.limiter('api', { limit: 1, per: '1h', onStoreError: 'allow' }).take('user')
  expect(heard).toEqual([['api', 'limiter', 'StoreUnavailableError']])
})

test.each(['allow', 'deny'] as const)('%s decides at once, and reports that the store did not', async (policy) => {
  const { store, heal } = broken()
  const limiter = createLocks(store).limiter('api', { limit: 1, per: '1h', onStoreError: policy })
  for (let i = 0; i < 20; i++) {
    const { allowed, retryAfterMs, storeError } = await limiter.take('user')
    expect(allowed).toBe(policy === 'allow')
    expect(storeError).toBeInstanceOf(StoreUnavailableError)
    expect(retryAfterMs).toBeLessThanOrEqual(1_000)
  }
  // Only the first take sent a request.
  expect(takes(store)).toBe(1)
  heal()
  await until('the store is asked again', async () => !('storeError' in (await limiter.take('user', 0))))
  expect(await limiter.take('user')).toMatchObject({ allowed: true, remaining: 0 })
})

test('a take that waits under "deny" passes when the store is back', async () => {
  const { store, heal } = broken()
  const limiter = createLocks(store).limiter('api', { limit: 1, per: '1h', onStoreError: 'deny' })
  const wait = limiter.wait('user')
  await until('a request was sent', () => takes(store) > 0)
  heal()
  const answer = await wait
  expect(answer.allowed).toBe(true)
  expect(answer.storeError).toBeUndefined()
})

test('a local limiter with a share of the limit keeps a bound', async () => {
  const { store, heal } = broken()
  const locks = createLocks(store)
  const limiter = locks.limiter('api', { limit: 20, per: '1h', onStoreError: { local: 0.25 } })
  const answers = await Promise.all(Array.from({ length: 20 }, () => limiter.take('user')))
  expect(answers.filter(({ allowed }) => allowed)).toHaveLength(5)
  expect(answers.every(({ storeError }) => storeError instanceof StoreUnavailableError)).toBe(true)
  heal()
  await until('the store decides again', async () => (await limiter.take('other')).storeError === undefined)
  expect(await limiter.take('user')).toMatchObject({ allowed: true, remaining: 19 })
})

test('a small share still lets one pass at a time, only less often', async () => {
  const { store } = broken()
  const locks = createLocks(store)
  const onStoreError = { local: 0.1 }
  const bucket = locks.limiter('bucket', { limit: 5, per: '1s', onStoreError })
  const window = locks.limiter('window', { limit: 5, per: '1s', algorithm: 'sliding-window', onStoreError })
  for (const limiter of [bucket, window]) {
    expect((await limiter.take('user')).allowed).toBe(true)
    const refused = await limiter.take('user')
    expect(refused.allowed).toBe(false)
    expect(refused.retryAfterMs).toBeGreaterThan(1_500)
    expect(refused.retryAfterMs).toBeLessThanOrEqual(2_000)
  }
})

test('bad input is never treated as an outage', async () => {
  const { store } = broken()
  const limiter = createLocks(store).limiter('api', { limit: 1, per: '1h', onStoreError: 'allow' })
  await expect(limiter.take('')).rejects.toThrow(InvalidOptionError)
  await expect(limiter.take('user', -1)).rejects.toThrow(InvalidOptionError)
  expect(takes(store)).toBe(0)
})
