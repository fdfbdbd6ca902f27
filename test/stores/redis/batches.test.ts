/** Batches: of several kinds, each of which has a script call of its own, and what the locks of one kind cost together. */
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import { createLocks, StoreUnavailableError } from '../../../src/index.js'
import { Batcher } from '../../../src/core/batcher.js'
import { ALL, type Answer, type Claim, type Store } from '../../../src/store.js'
import { adapterOf } from '../../../src/clients/redis/open.js'
import { composeScripts, embedded } from '../../../src/stores/redis/transport.js'
import { createRedisStore } from '../../../src/stores/redis/create.js'
import { realWorld } from '../../../src/util/world.js'
import { ioredis } from '../../../testbed/redis/fixtures.js'

let server: RedisServer
beforeAll(async () => {
  server = await startRedis()
})
afterAll(() => server.stop())

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean()
  await server.command('FLUSHALL')
})

function open(): Store {
  const { client, end } = ioredis[6](server.url)
  cleanups.push(end)
  const store = createRedisStore(adapterOf(client))
  cleanups.push(() => store.close())
  return store
}

let counter = 0
function claim(key: string, over: Partial<Claim> = {}): Claim {
  return { key, owner: `test/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

async function held(): Promise<string[]> {
  const keys = (await server.command('KEYS', '*')) as string[]
  return keys.filter((key) => /^(lock|semaphore|election|run-once):/.test(key)).sort()
}

test('claims of one key that are made at once are queued in their order, however many calls they need', async () => {
  const store = open()
  const batcher = new Batcher(store, realWorld)
  await batcher.acquire(claim('lock:a'))
  const claims = Array.from({ length: 200 }, () => claim('lock:a', { queueMs: 30_000 }))
  await Promise.all(claims.map((each) => batcher.acquire(each)))
  const seen = await store.inspect?.('lock:a')
  expect(seen?.waiters?.map(({ owner }) => owner)).toEqual(claims.map(({ owner }) => owner))
})

test('a batch of several kinds releases each of them, whatever the number of each kind', async () => {
  const store = open()
  for (const keys of [
    ['lock:a', 'semaphore:s'],
    ['lock:a', 'semaphore:s', 'lock:b'],
    ['election:e', 'lock:a', 'run-once:o', 'semaphore:s', 'semaphore:t'],
  ]) {
    const claims = keys.map((key) =>
      key.startsWith('semaphore') ? claim(key, { weight: 1, capacity: 3 }) : claim(key),
    )
    expect((await store.acquire(claims)).map(({ granted }) => granted)).toEqual(keys.map(() => true))
    expect(await held()).toEqual([...keys].sort())
    const renewed = await store.renew(claims.map(({ key, owner }) => ({ key, owner, ttlMs: 30_000 })))
    expect(renewed.map(({ outcome }) => outcome)).toEqual(keys.map(() => 'ours'))
    const stranger = { key: 'run-once:never', owner: 'nobody' }
    const released = await store.release([stranger, ...claims.map(({ key, owner }) => ({ key, owner }))])
    expect(released.map(({ outcome }) => outcome)).toEqual(['gone', ...keys.map(() => 'released')])
    expect(await held()).toEqual([])
  }
})

test.each(['release', 'releaseAll', 'close'] as const)(
  '%s() of a lock and a permit leaves nothing held',
  async (how) => {
    const locks = createLocks(open(), { ttl: '30s' })
    const lock = await locks.acquire('job')
    const permit = await locks.semaphore('pool', 3).acquire()
    if (how === 'release') expect(await Promise.all([lock.release(), permit.release()])).toEqual([true, true])
    else if (how === 'releaseAll') await locks.releaseAll()
    else await locks.close({ grace: 0 })
    expect(await held()).toEqual([])
  },
)

test('a kind whose index cannot be used fails alone: the others of the batch are granted, renewed and released', async () => {
  const store = open()
  await store.acquire([claim('lock:warm'), claim('semaphore:warm', { weight: 1, capacity: 2 })])
  const [lock, permit] = [claim('lock:a'), claim('semaphore:s', { weight: 1, capacity: 3 })]
  const wrong = (await server.command('KEYS', '*held:semaphore')) as string[]
  expect(wrong).toHaveLength(1)
  await server.command('SET', String(wrong[0]), 'not ours')
  expect(await store.acquire([lock, permit])).toMatchObject([{ granted: true }, { granted: 'unknown' }])
  const renewals = [lock, permit].map(({ key, owner }) => ({ key, owner, ttlMs: 30_000 }))
  expect(await store.renew(renewals)).toMatchObject([{ outcome: 'ours' }, { outcome: 'unknown' }])
  expect((await store.release([permit, lock]))[1]).toEqual({ outcome: 'released' })
})

test('a group whose whole call is refused does not take the others with it', async () => {
  await server.command('ACL', 'SETUSER', 'half', 'on', '>pw', '+@all', '&*', '~leasehold:*', '~lock:*')
  cleanups.push(() => server.command('ACL', 'DELUSER', 'half'))
  const { client, end } = ioredis[6](server.url.replace('redis://', 'redis://half:pw@'))
  cleanups.push(end)
  const store = createRedisStore(adapterOf(client))
  cleanups.push(() => store.close())
  const [lock, permit] = [claim('lock:a'), claim('semaphore:s', { weight: 1, capacity: 3 })]
  const [granted, refused] = await store.acquire([lock, permit])
  expect(granted).toMatchObject({ granted: true })
  expect(refused).toMatchObject({ granted: 'unknown' })
  expect(refused && 'error' in refused && refused.error).toBeInstanceOf(StoreUnavailableError)
  expect(await store.release([permit, lock])).toMatchObject([{ outcome: 'unknown' }, { outcome: 'released' }])
})

test.each(['acquire', 'renew', 'release'] as const)(
  '%s refuses a call with too few or too many arguments',
  async (name) => {
    const { source } = composeScripts(embedded, false)[name]
    const call = (...args: string[]): Promise<unknown> =>
      server.command('EVAL', source, '2', 'leasehold:1:held:lock', 'lock:a', ...args)
    for (const count of [1, 7, 13]) {
      const args = Array.from({ length: count }, () => '1')
      await expect(call(...args)).rejects.toThrow(/leasehold: \w+ was called with 2 keys and \d+ arguments/)
    }
    expect(await server.command('EXISTS', 'lock:a')).toBe(0)
  },
)

/** What the server has done meanwhile, command by command. */
async function commandsOf(act: () => Promise<unknown>): Promise<Record<string, number>> {
  await server.command('CONFIG', 'RESETSTAT')
  await act()
  const lines = String(await server.command('INFO', 'commandstats')).matchAll(/cmdstat_([a-z|]+):calls=(\d+)/g)
  const counts = Object.fromEntries([...lines].map(([, name, calls]) => [name as string, Number(calls)]))
  for (const name of ['config|resetstat', 'info', 'ping', 'blmpop', 'hello', 'client|setname']) delete counts[name]
  return counts
}

const MANY = 60

test('plain locks of one batch cost one command each to acquire and to renew, and a handful for all of them', async () => {
  const store = open()
  await store.acquire([claim('lock:warm')])
  const claims = Array.from({ length: MANY }, (_, i) => claim(`lock:plain:${i}`))
  let answers: Answer[] = []
  const acquired = await commandsOf(async () => (answers = await store.acquire(claims)))
  // One call in a hundred sweeps the index besides.
  expect(acquired).toMatchObject({ evalsha: 1, set: MANY, hset: 1 })
  expect(Object.values(acquired).reduce((sum, each) => sum + each)).toBeLessThan(MANY + 30)
  const leases = answers.map((answer, i) => {
    if (answer.granted !== true) throw new Error('not granted')
    return { key: claims[i]?.key as string, owner: answer.owner, token: answer.token }
  })
  const tokens = leases.map(({ token }) => token)
  expect(new Set(tokens).size).toBe(MANY)
  const renewals = leases.map((lease) => ({ ...lease, ttlMs: 40_000 }))
  const renewed = await commandsOf(async () => expect(await store.renew(renewals)).toHaveLength(MANY))
  expect(renewed).toEqual({ evalsha: 1, mget: 1, hmget: 1, pexpire: MANY, pttl: 1 })
  const released = await commandsOf(async () => expect(await store.release(leases)).toHaveLength(MANY))
  expect(released).toEqual({ evalsha: 1, mget: 1, hmget: 1, del: 1, hdel: 1 })
  expect(await held()).toEqual(['lock:warm'])
})

test('a lease that is twice in one release is released once and gone the second time', async () => {
  const store = open()
  const [one, other] = [claim('lock:a'), claim('lock:b')]
  await store.acquire([claim('lock:warm')])
  await store.acquire([one, other])
  const released = await store.release([one, other, one, { ...other, token: 1n }])
  expect(released.map(({ outcome }) => outcome)).toEqual(['released', 'released', 'gone', 'gone'])
})

test('the claims of one batch for one key are decided in their order, also where only the first takes the slow path', async () => {
  const store = open()
  await store.acquire([claim('lock:warm')])
  const claims = [
    claim('lock:a', { value: '"first"' }),
    claim('lock:b'),
    claim('lock:a'),
    claim('lock:b', { weight: 1 }),
    claim('lock:c'),
  ]
  const answers = await store.acquire(claims)
  expect(answers.map(({ granted }) => granted)).toEqual([true, true, false, false, true])
  expect(answers[2]).toMatchObject({ blocker: { owner: claims[0]?.owner, value: '"first"' } })
  const tokens = answers.flatMap((answer) => (answer.granted === true ? [answer.token] : []))
  expect(tokens).toEqual([...tokens].sort((a, b) => Number(a - b)))
})

test('a key of another type is a holder, and changes nothing for the others of its batch', async () => {
  const store = open()
  await store.acquire([claim('lock:warm')])
  await server.command('RPUSH', 'lock:b', 'somebody')
  const claims = ['lock:a', 'lock:b', 'lock:c'].map((key) => claim(key))
  const answers = await store.acquire(claims)
  expect(answers.map(({ granted }) => granted)).toEqual([true, false, true])
  const renewals = claims.map(({ key, owner }) => ({ key, owner, ttlMs: 40_000 }))
  expect((await store.renew(renewals)).map(({ outcome }) => outcome)).toEqual(['ours', 'gone', 'ours'])
  expect((await store.release(claims)).map(({ outcome }) => outcome)).toEqual(['released', 'gone', 'released'])
})

test.each([1, 3])('a renewal gives a key its expiry back, in a batch of %i', async (count) => {
  const store = open()
  const claims = Array.from({ length: count }, (_, i) => claim(`lock:${i}`))
  await store.acquire(claims)
  await server.command('PERSIST', 'lock:0')
  const renewals = claims.map(({ key, owner }) => ({ key, owner, ttlMs: 40_000 }))
  expect((await store.renew(renewals)).map(({ outcome }) => outcome)).toEqual(claims.map(() => 'ours'))
  expect(Number(await server.command('PTTL', 'lock:0'))).toBeGreaterThan(30_000)
})

test('a renewal for a shorter time than is left shortens no lease of its batch', async () => {
  const store = open()
  const claims = [claim('lock:a'), claim('lock:b', { ttlMs: 1_000 })]
  await store.acquire(claims)
  const renewals = claims.map(({ key, owner }) => ({ key, owner, ttlMs: 5_000 }))
  expect((await store.renew(renewals)).map(({ outcome }) => outcome)).toEqual(['ours', 'ours'])
  expect(Number(await server.command('PTTL', 'lock:a'))).toBeGreaterThan(20_000)
  expect(Number(await server.command('PTTL', 'lock:b'))).toBeGreaterThan(2_000)
})

test.each([0, 1, 9])(
  'a take of %i leaves a key of another type as it is, and says so, in a batch as alone',
  async (cost) => {
    const store = open()
    const limits = [{ algorithm: 'token-bucket' as const, limit: 5, perMs: 60_000, burst: 5 }]
    const take = (...keys: string[]): ReturnType<NonNullable<Store['take']>> =>
      (store.take as NonNullable<Store['take']>)(keys.map((key) => ({ key, limits, cost })))
    const spend = (key: string): unknown => store.take?.([{ key, limits, cost: 1 }])
    await spend('limiter:api:a')
    const [meter] = (await server.command('KEYS', '*limiter*')) as string[]
    await server.command('DEL', meter as string)
    await server.command('RPUSH', meter as string, 'somebody')
    const refused = {
      granted: 'unknown',
      error: expect.objectContaining({ message: expect.stringContaining('WRONGTYPE') }),
    }
    expect(await take('limiter:api:a')).toEqual([refused])
    const [first, second] = await take('limiter:api:b', 'limiter:api:a')
    expect(first).toMatchObject({ allowed: cost < 9 })
    expect(second).toEqual(refused)
    expect(await server.command('TYPE', meter as string)).toBe('list')
  },
)
