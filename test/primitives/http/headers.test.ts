import { expect, test } from 'vitest'
import { rateLimitHeaders } from '../../../src/http/index.js'
import { addressKey } from '../../../src/http/client-address.js'
import { createLocks, memory, StoreUnavailableError } from '../../../src/index.js'

const locks = createLocks(memory())
const allowed = { allowed: true, remaining: 7, retryAfterMs: 0, resetMs: 2_400 }

test('tells the policy, what is left and when all of it is back', () => {
  const limiter = locks.limiter('api', { limit: 10, per: '1m' })
  expect(rateLimitHeaders(limiter, allowed)).toEqual({
    'RateLimit-Policy': '"api";q=10;w=60',
    RateLimit: '"api";r=7;t=3',
  })
})

test('tells a refused client when to come again, in whole seconds that are never too short', () => {
  const limiter = locks.limiter('api', { limit: 10, per: '1m' })
  const refused = { allowed: false, remaining: 0, retryAfterMs: 1_001, resetMs: 60_000 }
  expect(rateLimitHeaders(limiter, refused)['Retry-After']).toBe('2')
  expect(rateLimitHeaders(limiter, { ...refused, retryAfterMs: 1 })['Retry-After']).toBe('1')
  expect(rateLimitHeaders(limiter, { ...refused, retryAfterMs: Number.POSITIVE_INFINITY })).not.toHaveProperty(
    'Retry-After',
  )
})

test('windows are told in whole seconds, whatever they are', () => {
  const policy = (limit: number, per: `${number}ms` | `${number}s`): string | undefined =>
    rateLimitHeaders(locks.limiter('x', { limit, per }), allowed)['RateLimit-Policy']
  expect(policy(5, '500ms')).toBe('"x";q=10;w=1')
  expect(policy(0.5, '1s')).toBe('"x";q=1;w=2')
  expect(policy(3, '1500ms')).toBe('"x";q=4;w=2')
  expect(policy(0, '1s')).toBe('"x";q=0;w=1')
})

test('several limits are all told, and odd names are made harmless', () => {
  const limits = [
    { limit: 5, per: '1s' },
    { limit: 100, per: '1d' },
  ] as const
  const limiter = locks.limiter('a"b\\é', { limits })
  expect(rateLimitHeaders(limiter, allowed)['RateLimit-Policy']).toBe(
    '"a\\"b\\\\%C3%A9";q=5;w=1, "a\\"b\\\\%C3%A9";q=100;w=86400',
  )
})

test('during an outage nothing is told that nobody knows', () => {
  const limiter = locks.limiter('api', { limit: 10, per: '1m' })
  const storeError = new StoreUnavailableError('gone')
  expect(rateLimitHeaders(limiter, { ...allowed, storeError })).not.toHaveProperty('RateLimit')
})

test.each([
  ['203.0.113.7', '203.0.113.7'],
  ['::ffff:203.0.113.7', '203.0.113.7'],
  ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
  ['2001:DB8:1:2::6', '2001:db8:1:2::/64'],
  ['2001:0db8::1', '2001:db8:0:0::/64'],
  ['::1', '0:0:0:0::/64'],
  ['fe80::1%eth0', 'fe80:0:0:0::/64'],
  ['64:ff9b::203.0.113.7', '64:ff9b:0:0::/64'],
  [undefined, 'unknown'],
  ['', 'unknown'],
])('the address %s counts as %s', (address, key) => {
  expect(addressKey(address)).toBe(key)
})
