/** What lies in Redis: what is listed, what stays behind, and how tokens come about. */
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import { ALL, type Claim, type Store } from '../../../src/store.js'
import { adapterOf } from '../../../src/clients/redis/open.js'
import { type RedisStoreOptions, redis } from '../../../src/stores/redis/index.js'
import { embedded, type RedisScriptSources } from '../../../src/stores/redis/transport.js'
import { createRedisStore } from '../../../src/stores/redis/create.js'
import { ioredis } from '../../../testbed/redis/fixtures.js'

let server: RedisServer
beforeAll(async () => {
  server = await startRedis({ args: ['--enable-debug-command', 'yes'] })
})
afterAll(() => server.stop())

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean()
  await server.command('FLUSHALL')
})

function open(options: RedisStoreOptions = {}, sources: RedisScriptSources = embedded): Store {
  const { client, end } = ioredis[6](server.url)
  cleanups.push(end)
  const store = createRedisStore(adapterOf(client), options, sources)
  cleanups.push(() => store.close())
  return store
}

let counter = 0
function claim(key: string, over: Partial<Claim> = {}): Claim {
  return { key, owner: `test/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

async function granted(store: Store, what: Claim): Promise<bigint> {
  const [answer] = await store.acquire([what])
  if (answer?.granted !== true) throw new Error('not granted')
  return answer.token
}

/** In as many calls as the store wants. */
async function inBatches<I, O>(items: I[], call: (part: I[]) => Promise<O[]> | O[]): Promise<O[]> {
  const answers: O[] = []
  for (let at = 0; at < items.length; at += 249) answers.push(...(await call(items.slice(at, at + 249))))
  return answers
}

async function keys(): Promise<string[]> {
  return (await server.command('KEYS', '*')) as string[]
}

/** The scripts, with days that last seconds. */
function hasty(seconds: number): RedisScriptSources {
  const ms = String(seconds * 1_000)
  const replace = (source: string): string => {
    const changed = source
      .replace('local DAY = 86400000', `local DAY = ${ms}`)
      .replace('local HOUR = 3600000', 'local HOUR = 0')
      .replaceAll('100800000', ms)
      .replace('now + ARGV[2]', `now + ${ms}`)
    return changed
  }
  return Object.fromEntries(
    Object.entries(embedded).map(([name, source]) => [name, replace(source)]),
  ) as RedisScriptSources
}

test('ten thousand names used once each leave one index and its entry, and after a day nothing', async () => {
  const store = open({}, hasty(2))
  const claims = Array.from({ length: 10_000 }, (_, i) => claim(`lock:once:${i}`, { ttlMs: 1_500 }))
  // Half of them are released in time, the others end by themselves.
  const released = await inBatches(claims.slice(0, 5_000), async (part) => {
    const lasting = part.map((one) => ({ ...one, ttlMs: 5_000 }))
    expect((await store.acquire(lasting)).every((answer) => answer.granted === true)).toBe(true)
    return store.release(part)
  })
  expect(released.every(({ outcome }) => outcome === 'released')).toBe(true)
  const answers = await inBatches(claims.slice(5_000), (part) => store.acquire(part))
  expect(answers.every((answer) => answer.granted === true)).toBe(true)
  expect(await keys()).toContain('leasehold:1:held:lock')
  await expect.poll(async () => (await keys()).length).toBeLessThanOrEqual(2)
  await expect.poll(keys).toEqual([])
})

test('everything that waiting, sharing, values and limits leave has an expiry', async () => {
  const store = open()
  const held = claim('lock:a', { value: '{}', announce: true })
  await granted(store, held)
  for (const weight of [ALL, 1]) await store.acquire([claim('lock:a', { weight, queueMs: 5_000 })])
  await granted(store, claim('semaphore:s', { weight: 1, capacity: 3, value: '{"a":1}' }))
  await granted(store, claim('semaphore:s', { weight: 2, capacity: 3 }))
  await store.acquire([claim('semaphore:s', { weight: 1, capacity: 3, queueMs: 5_000 })])
  const window = { algorithm: 'sliding-window', limit: 5, perMs: 60_000, burst: 5 } as const
  await store.take?.([{ key: 'limiter:l:u', cost: 1, limits: [window, { ...window, algorithm: 'token-bucket' }] }])
  const all = await keys()
  expect(all.length).toBeGreaterThan(12)
  for (const key of all) expect([key, await server.command('PTTL', key)]).not.toEqual([key, -1])
})

test('leases that end by themselves are swept out of the index by later calls', async () => {
  const store = open()
  const dead = Array.from({ length: 3_000 }, (_, i) => claim(`run-once:dead:${i}`, { ttlMs: 5_000, value: '{}' }))
  await inBatches(dead, (part) => store.acquire(part))
  const size = async (): Promise<number> => Number(await server.command('HLEN', 'leasehold:1:held:run-once'))
  expect(await size()).toBeGreaterThan(3_000)
  await expect.poll(async () => Number(await server.command('EXISTS', 'run-once:dead:2999'))).toBe(0)
  for (let i = 0; i < 4_000 && (await size()) > 300; i++) {
    const one = claim(`run-once:live:${i % 7}`)
    await granted(store, one)
    await store.release([one])
  }
  expect(await size()).toBeLessThanOrEqual(300)
})

test('a waiter is handed the lock although its queue entry was missing for a moment, as while a slot moves', async () => {
  const sweeping = { ...embedded, acquire: embedded.acquire.replace("string.sub(text, -2) == '00'", 'true') }
  expect(sweeping.acquire).not.toBe(embedded.acquire)
  const [a, b] = [open({}, sweeping), open({}, sweeping)]
  const heard: unknown[] = []
  const watch = b.watch?.('lock:moving', (event) => heard.push(event))
  expect(await watch?.ready).toBe(true)
  const [held, waiting] = [claim('lock:moving'), claim('lock:moving', { queueMs: 60_000 })]
  await granted(a, held)
  expect(await b.acquire([waiting])).toMatchObject([{ granted: false }])
  const line = 'leasehold:1:{lock:moving}:queue'
  await server.command('RENAME', line, 'elsewhere')
  await granted(a, claim('lock:other'))
  await server.command('RENAME', 'elsewhere', line)
  expect(await a.release([held])).toEqual([{ outcome: 'released' }])
  await expect.poll(() => heard).toMatchObject([{ type: 'granted', owner: waiting.owner }])
  watch?.close()
})

test('holders are found among a hundred thousand other keys, ours and foreign ones, by prefix and by kind', async () => {
  const store = open()
  await server.command('DEBUG', 'POPULATE', '100000', 'other')
  for (const key of ['lock:shop:1', 'lock:shop:2', 'lock:other:1', 'election:shop', 'semaphore:shop'])
    await granted(store, claim(key))
  await server.command('SET', 'lock:shop:foreign', 'somebody', 'PX', '60000')
  const listed = async (prefix: string): Promise<string[]> =>
    ((await store.holders?.(prefix)) ?? []).map(({ key }) => key)
  expect(await listed('lock:shop:')).toEqual(['lock:shop:1', 'lock:shop:2', 'lock:shop:foreign'])
  expect(await listed('election:')).toEqual(['election:shop'])
  expect(await listed('')).toEqual([
    'election:shop',
    'lock:other:1',
    'lock:shop:1',
    'lock:shop:2',
    'lock:shop:foreign',
    'semaphore:shop',
  ])
  const without = open({ listForeign: false })
  expect(((await without.holders?.('lock:shop:')) ?? []).map(({ key }) => key)).toEqual(['lock:shop:1', 'lock:shop:2'])
})

test('the search for foreign holders takes no more than a twentieth of the time, however often a listing is asked for', async () => {
  const store = open()
  await server.command('DEBUG', 'POPULATE', '100000', 'other')
  await store.holders?.('lock:')
  await server.command('CONFIG', 'RESETSTAT')
  const began = performance.now()
  let calls = 0
  // As many calls at least: on a slow machine a few calls are no measure.
  while (performance.now() - began < 1_500 || calls < 50) {
    await store.holders?.('lock:')
    calls++
  }
  const stats = String(await server.command('INFO', 'commandstats'))
  const steps = Number(/cmdstat_scan:calls=(\d+)/.exec(stats)?.[1] ?? 0)
  // A whole walk takes 100 steps of 1,000 keys.
  expect(steps / 100).toBeLessThan(calls / 5)
})

test('tokens grow by one while the clock is behind, and by the clock otherwise', async () => {
  const store = open()
  const key = 'lock:a'
  const next = async (over: Partial<Claim> = {}): Promise<bigint> => {
    const one = claim(key, over)
    const token = await granted(store, one)
    await store.release([one])
    return token
  }
  const before = BigInt(Math.floor(((await store.now?.()) ?? 0) * 1_000))
  const first = await next()
  expect(first).toBeGreaterThanOrEqual(before)
  const ahead = first + 3_600_000_000n
  await server.command('HSET', 'leasehold:1:held:lock', '', String(ahead))
  expect(await next()).toBe(ahead + 1n)
  expect(await next({ weight: 1 })).toBe(ahead + 2n)
  expect(await next({ value: '{}' })).toBe(ahead + 3n)
  const batch = await store.acquire([claim('lock:b'), claim('lock:c'), claim('lock:d', { weight: 1 })])
  expect(batch.map((answer) => answer.granted === true && answer.token)).toEqual([ahead + 4n, ahead + 5n, ahead + 6n])
})

test('a lease of many days keeps its index, whatever shorter ones come after it', async () => {
  const store = open()
  const week = 7 * 86_400_000
  await granted(store, claim('run-once:report', { ttlMs: week, value: '{}' }))
  // As if hours had passed: the next short lease looks after the index.
  await server.command('HSET', 'leasehold:1:held:run-once', '', '1')
  await granted(store, claim('run-once:short'))
  expect(await server.command('PTTL', 'leasehold:1:held:run-once')).toBeGreaterThan(week)
})

test('a lease of ours whose index was lost is still ours, with a larger token', async () => {
  const store = open()
  const held = claim('lock:a')
  const token = await granted(store, held)
  await server.command('DEL', 'leasehold:1:held:lock')
  expect(await store.renew([{ key: held.key, owner: held.owner, ttlMs: 30_000 }])).toMatchObject([{ outcome: 'ours' }])
  expect(await granted(store, held)).toBeGreaterThan(token)
  expect(await store.release([held])).toEqual([{ outcome: 'released' }])
})

test('an index that holds something else fails that call alone, and takes no lock', async () => {
  const store = open()
  await server.command('SET', 'leasehold:1:held:lock', 'not ours')
  const outcome = await Promise.resolve(store.acquire([claim('lock:a')])).catch((error: unknown) => [{ error }])
  expect(JSON.stringify(outcome)).toMatch(/granted":"unknown|error/)
  expect(await server.command('EXISTS', 'lock:a')).toBe(0)
  expect(await granted(store, claim('semaphore:a', { weight: 1, capacity: 2 }))).toBeGreaterThan(0n)
})

test('one exclusive lock is one plain key, with the owner as its value and its time to live', async () => {
  const store = redis(ioredisClient())
  cleanups.push(() => store.close())
  const held = claim('lock:order:7', { ttlMs: 12_345 })
  await granted(store, held)
  expect(await server.command('GET', 'lock:order:7')).toBe(held.owner)
  const left = Number(await server.command('PTTL', 'lock:order:7'))
  expect(left).toBeGreaterThan(10_000)
  expect(left).toBeLessThanOrEqual(12_345)
  expect((await keys()).sort()).toEqual(['leasehold:1:held:lock', 'leasehold:1:indexes', 'lock:order:7'])
  await store.release([held])
  expect((await keys()).sort()).toEqual(['leasehold:1:held:lock', 'leasehold:1:indexes'])
})

function ioredisClient(): ReturnType<(typeof ioredis)[6]>['client'] {
  const { client, end } = ioredis[6](server.url)
  cleanups.push(end)
  return client
}

test('holders() lists what this store was just granted, although the directory learns of its index late', async () => {
  const { client, end } = ioredis[6](server.url)
  cleanups.push(end)
  const adapter = adapterOf(client)
  let announce = (): void => {}
  const mayAnnounce = new Promise<void>((resolve) => {
    announce = resolve
  })
  const { evalsha, eval: run } = adapter
  // As on a cluster, where the directory may be on another server than the lock.
  const late =
    (call: typeof evalsha): typeof evalsha =>
    async (script, keys, args) => {
      if (args[0] === 'leasehold:1:held:lock') await mayAnnounce
      return call.call(adapter, script, keys, args)
    }
  adapter.evalsha = late(evalsha)
  adapter.eval = late(run)
  const store = createRedisStore(adapter, { listForeign: false })
  cleanups.push(() => store.close())
  const held = claim('lock:listed')
  await granted(store, held)
  // Not a whole kind, so the directory says which indexes there are.
  const listing = store.holders?.('loc')
  setTimeout(announce, 50)
  expect(await listing).toMatchObject([{ key: held.key, owner: held.owner }])
})
