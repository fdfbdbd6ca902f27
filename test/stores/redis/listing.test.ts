import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import { createLocks } from '../../../src/index.js'
import { ALL } from '../../../src/store.js'
import { redis } from '../../../src/stores/redis/index.js'

// A server does one thing at a time: a long listing must not keep it from the others.

const NAMES = 20_000
const READERS = 2_500
const TTL_MS = 1_000_000

let server: RedisServer
let client: Redis

beforeAll(async () => {
  server = await startRedis()
  client = new Redis(server.url)
  const store = redis(client)
  const reader = (i: number) => ({ key: 'lock:crowd', owner: `r${i}`, weight: 1, capacity: ALL, ttlMs: TTL_MS })
  for (let from = 0; from < READERS; from += 100)
    await store.acquire(Array.from({ length: 100 }, (_, i) => reader(from + i)))
  await holdMany(client, NAMES, TTL_MS)
})
afterAll(async () => {
  client.disconnect()
  await server.stop()
})

/** As the scripts write it, and in a fraction of the time. */
async function holdMany(to: Redis, names: number, ttlMs: number): Promise<void> {
  for (let from = 0; from < names; from += 2_000) {
    const pipeline = to.pipeline()
    const fields: string[] = []
    for (let i = from; i < from + 2_000; i++) {
      pipeline.set(`lock:many:${i}`, `owner-${i}`, 'PX', ttlMs)
      fields.push(`lock:many:${i}`, `${Date.now()}000:owner-${i}`)
    }
    pipeline.hset('leasehold:1:held:lock', ...fields)
    await pipeline.exec()
  }
}

async function scriptCalls(): Promise<number> {
  const stats = String(await server.command('INFO', 'commandstats'))
  return Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)?.[1] ?? 0)
}

test('holderPages() lists every holder once, in pages of at most 1,000', async () => {
  const seen = new Set<string>()
  for await (const page of redis(client).holderPages?.('lock:') ?? []) {
    expect(page.length).toBeLessThanOrEqual(1_000)
    for (const { key, owner } of page) {
      expect(seen.has(`${key} ${owner}`)).toBe(false)
      seen.add(`${key} ${owner}`)
    }
  }
  expect(seen.size).toBe(NAMES + READERS)
})

test('holders() returns every holder, in order, although that takes longer than the time limit of one call', async () => {
  const timeoutMs = 2_000
  const before = await scriptCalls()
  await redis(client, { listForeign: false }).holders?.('lock:many:')
  const calls = (await scriptCalls()) - before
  // Each answer is a little late, and in time: together the calls take longer than one may.
  const late = new Redis(server.url)
  const evalsha = late.evalsha.bind(late) as (...args: unknown[]) => Promise<unknown>
  late.evalsha = (async (...args: unknown[]) => {
    const answer = await evalsha(...args)
    await new Promise((resolve) => setTimeout(resolve, (1.5 * timeoutMs) / calls))
    return answer
  }) as typeof late.evalsha
  const locks = createLocks(redis(late, { timeout: timeoutMs, listForeign: false }))
  const began = performance.now()
  const found = await locks.holders('many:')
  late.disconnect()
  expect(performance.now() - began).toBeGreaterThan(timeoutMs)
  expect(found.length).toBe(NAMES)
  const names = found.map(({ name }) => name)
  expect(names).toEqual([...names].sort())
  await locks.close()
})

test('a page is read when it is asked for, and not before', async () => {
  const locks = createLocks(redis(client, { listForeign: false }))
  const before = await scriptCalls()
  for await (const page of locks.holderPages('many:')) {
    expect(page.length).toBe(1_000)
    break
  }
  const first = (await scriptCalls()) - before
  await locks.holders('many:')
  const all = (await scriptCalls()) - before - first
  expect(first).toBeGreaterThan(0)
  expect(all / first).toBeGreaterThan(NAMES / 1_000 / 2)
  await locks.close()
})

test('revoke() cuts off thousands of readers in one step, and tells of each what inspect() told', async () => {
  const store = redis(client)
  const [before] = (await store.inspect?.('lock:crowd'))?.holders ?? []
  const cut = (await store.revoke?.('lock:crowd')) ?? []
  expect(new Set(cut.map(({ owner }) => owner)).size).toBe(READERS)
  const same = cut.find(({ owner }) => owner === before?.owner) ?? expect.fail('it is among those who were cut off')
  expect(same).toMatchObject({ key: 'lock:crowd', weight: 1, capacity: ALL, token: before?.token, waiting: 0 })
  expect(same.ttlMs).toBeGreaterThan(TTL_MS - 120_000)
  expect(same.heldMs).toBeLessThan(120_000)
  expect(await store.inspect?.('lock:crowd')).toEqual({ holders: [], waiters: [] })
  await store.close()
})
