/** A batch that holds several kinds of keys: each kind has an index of its own, and so a script call of its own. */
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../../scripts/servers/index.js'
import { createLocks, StoreUnavailableError } from '../../../src/index.js'
import { ALL, type Claim, type Store } from '../../../src/store.js'
import { adapterOf } from '../../../src/clients/redis/adapter-of.js'
import { composeScripts, embedded } from '../../../src/stores/redis/scripts.js'
import { createRedisStore } from '../../../src/stores/redis/store.js'
import { ioredis } from './places.js'

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
