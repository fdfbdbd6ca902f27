import { expect, test } from 'vitest'
import { rateLimitHeaders } from '../../../src/http/index.js'
import { addressKey } from '../../../src/http/client-address.js'
import { memory, StoreUnavailableError } from '../../../src/index.js'
import { Locks } from '../../../src/locks.js'
import { VirtualWorld } from '../../../testbed/virtual-world.js'

/** Time stands still: seconds that passed between two takes would show in the headers. */
const world = new VirtualWorld(1)
const locks = new Locks(memory({ world }), {}, world)
const allowed = { allowed: true, remaining: 7, retryAfterMs: 0, resetMs: 2_400 }

test('the headers show the policy, the remaining requests and the time until there are more', () => {
  const limiter = locks.limiter('api', { limit: 10, per: '1m' })
  const headers = (resetMs: number, remaining = 7): unknown =>
    rateLimitHeaders(limiter, { ...allowed, remaining, resetMs })
  expect(headers(2_400)).toEqual({ 'RateLimit-Policy': '"api";q=10;w=60', RateLimit: '"api";r=7;t=3' })
  // One token comes every 6 s, and 8.5 s are missing until all are there.
  expect(headers(8_500)).toMatchObject({ RateLimit: '"api";r=7;t=3' })
  expect(headers(60_000, 0)).toMatchObject({ RateLimit: '"api";r=0;t=6' })
  expect(headers(0, 10)).toMatchObject({ RateLimit: '"api";r=10' })
})

test('after t seconds one more request passes', async () => {
  const limiter = locks.limiter('quick', { limit: 100, per: '1m' })
  await limiter.take('k', 100)
  expect(rateLimitHeaders(limiter, await limiter.take('k'))).toMatchObject({
    RateLimit: '"quick";r=0;t=1',
    'Retry-After': '1',
  })
})

test.each(['token-bucket', 'sliding-window'] as const)('several limits (%s) have an item each', async (algorithm) => {
  const limiter = locks.limiter(`mail-${algorithm}`, {
    limits: [
      { limit: 2, per: '1h', algorithm },
      { limit: 10, per: '1d', algorithm },
    ],
  })
  const name = `mail-${algorithm}`
  const headers = async (): Promise<unknown> => rateLimitHeaders(limiter, await limiter.take('k'))
  const [hour, day] = algorithm === 'token-bucket' ? [1_800, 8_640] : [3_600, 86_400]
  expect(await headers()).toEqual({
    'RateLimit-Policy': `"${name}-1h";q=2;w=3600, "${name}-1d";q=10;w=86400`,
    RateLimit: `"${name}-1h";r=1;t=${hour}, "${name}-1d";r=9;t=${day}`,
  })
  await headers()
  // The second is refused by the process itself, which remembers.
  for (let i = 0; i < 2; i++) {
    const refused = (await headers()) as { RateLimit: string }
    expect(refused.RateLimit).toBe(`"${name}-1h";r=0;t=${hour}, "${name}-1d";r=8;t=${day}`)
  }
})

test('Retry-After is in whole seconds that are never too short', () => {
  const limiter = locks.limiter('api', { limit: 10, per: '1m' })
  const refused = { allowed: false, remaining: 0, retryAfterMs: 1_001, resetMs: 60_000 }
  expect(rateLimitHeaders(limiter, refused)['Retry-After']).toBe('2')
  expect(rateLimitHeaders(limiter, { ...refused, retryAfterMs: 1 })['Retry-After']).toBe('1')
  expect(rateLimitHeaders(limiter, { ...refused, retryAfterMs: Number.POSITIVE_INFINITY })).not.toHaveProperty(
    'Retry-After',
  )
})

test('the policy has windows in whole seconds, whatever the limit has', () => {
  const policy = (limit: number, per: `${number}ms` | `${number}s`): string | undefined =>
    rateLimitHeaders(locks.limiter('x', { limit, per }), allowed)['RateLimit-Policy']
  expect(policy(5, '500ms')).toBe('"x";q=10;w=1')
  expect(policy(0.5, '1s')).toBe('"x";q=1;w=2')
  expect(policy(3, '1500ms')).toBe('"x";q=4;w=2')
  expect(policy(0, '1s')).toBe('"x";q=0;w=1')
})

test('several limits have an item each, and names are escaped', () => {
  const limits = [
    { limit: 5, per: '1s' },
    { limit: 100, per: '1d' },
  ] as const
  const limiter = locks.limiter('a"b\\é', { limits })
  expect(rateLimitHeaders(limiter, allowed)['RateLimit-Policy']).toBe(
    '"a\\"b\\\\%C3%A9-1s";q=5;w=1, "a\\"b\\\\%C3%A9-1d";q=100;w=86400',
  )
})

test('during an outage the headers contain no counts', () => {
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
  ['64:ff9b::203.0.113.7', '203.0.113.7'],
  ['64:ff9b::cb00:7107', '203.0.113.7'],
  ['::ffff:cb00:7107', '203.0.113.7'],
  ['203.0.113.7:5001', '203.0.113.7'],
  ['[2001:db8:1:2::6]:5001', '2001:db8:1:2::/64'],
  ['[2001:db8:1:2::6]', '2001:db8:1:2::/64'],
  ['[::ffff:203.0.113.7]:80', '203.0.113.7'],
  ['proxy.example', 'proxy.example'],
  [undefined, 'unknown'],
  ['', 'unknown'],
])('the address %s counts as %s', (address, key) => {
  expect(addressKey(address)).toBe(key)
})
