import { expect, test } from 'vitest'
import { createLocks, InvalidOptionError, type LimiterOptions, memory, UnsupportedError } from '../../../src/index.js'
import type { Store } from '../../../src/store.js'

const locks = createLocks(memory())

test.each<[string, object]>([
  ['limit', { limit: -1, per: '1s' }],
  ['limit', { limit: Number.NaN, per: '1s' }],
  ['limit', { limit: '5', per: '1s' }],
  ['per', { limit: 1 }],
  ['per', { limit: 1, per: 0 }],
  ['per', { limit: 1, per: '1 second' }],
  ['burst', { limit: 1, per: '1s', burst: 0 }],
  ['burst', { limit: 5, per: '1s', burst: 9, algorithm: 'sliding-window' }],
  ['algorithm', { limit: 1, per: '1s', algorithm: 'fixed-window' }],
  ['onStoreError', { limit: 1, per: '1s', onStoreError: 'ignore' }],
  ['onStoreError', { limit: 1, per: '1s', onStoreError: { local: 2 } }],
  ['share', { limit: 1, per: '1s', onStoreError: { local: 0.5, share: 2 } }],
  ['limits', { limits: [] }],
  [
    'limits[1].limit',
    {
      limits: [
        { limit: 1, per: '1s' },
        { limit: -1, per: '1d' },
      ],
    },
  ],
  ['limt', { limt: 1, per: '1s' }],
  ['limit', { limits: [{ limit: 1, per: '1s' }], limit: 3 }],
])('an invalid %s is rejected when the limiter is created', (option, options) => {
  const make = (): unknown => locks.limiter('api', options as LimiterOptions)
  expect(make).toThrow(InvalidOptionError)
  try {
    make()
  } catch (error) {
    expect((error as InvalidOptionError).option).toBe(option)
  }
})

test.each([-1, Number.NaN, Number.POSITIVE_INFINITY, '1', null])(
  'a cost of %s is rejected and charges nothing',
  async (cost) => {
    const limiter = locks.limiter(`cost-${cost}`, { limit: 3, per: '1h' })
    await limiter.take('user', 3)
    await limiter.take('user')
    await expect(limiter.take('user', cost as number)).rejects.toThrow(InvalidOptionError)
    await expect(limiter.wait('user', { cost: cost as number })).rejects.toThrow(InvalidOptionError)
  },
)

test('fractions of a unit are valid limits and costs', async () => {
  const limiter = locks.limiter('fractions', { limit: 0.5, per: '1h' })
  expect((await limiter.take('user', 0.75)).allowed).toBe(true)
  expect((await limiter.take('user', 0.25)).allowed).toBe(true)
  const { allowed, retryAfterMs } = await limiter.take('user', 0.25)
  expect(allowed).toBe(false)
  expect(retryAfterMs).toBeGreaterThan(1_790_000)
})

test('names and keys with colons do not collide, and namespaces are separate', async () => {
  const store = memory()
  const [plain, shop] = [createLocks(store), createLocks(store, { namespace: 'shop' })]
  const options = { limit: 1, per: '1h' } as const
  expect((await plain.limiter('a:b', options).take('c')).allowed).toBe(true)
  expect((await plain.limiter('a', options).take('b:c')).allowed).toBe(true)
  expect((await plain.limiter('a%3Ab', options).take('c')).allowed).toBe(true)
  expect((await shop.limiter('a:b', options).take('c')).allowed).toBe(true)
  expect((await plain.limiter('a:b', options).take('c')).allowed).toBe(false)
})

test('a store that cannot limit says so when the limiter is created', () => {
  const store = Object.assign(memory(), { take: undefined }) as unknown as Store
  expect(() => createLocks(store).limiter('api', { limit: 1, per: '1s' })).toThrow(UnsupportedError)
})
