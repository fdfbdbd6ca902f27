import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { RedisServer } from '../../../testbed/servers/index.js'
import { ALL, type Store } from '../../../src/store.js'
import { Servers } from './servers.js'

// A server executes one command at a time: a client that lists much must not keep it from the others.

const NAMES = 10_000
const READERS = 3_000
const TTL_MS = 1_000_000
const SLOWEST_MS = 5

let servers: Servers
let store: Store

beforeAll(async () => {
  servers = await Servers.start(3)
  store = servers.store({ maxTtl: '20m' })
  const [grant] = await store.acquire([{ key: 'lock:crowd', owner: 'first', weight: 1, capacity: ALL, ttlMs: TTL_MS }])
  expect(grant).toMatchObject({ granted: true })
  await Promise.all(servers.all.map(fill))
})
afterAll(() => servers.stop())

/** Writes what the scripts would write, in a fraction of the time. */
async function fill({ url }: RedisServer): Promise<void> {
  const client = new Redis(url)
  const token = Date.now() * 1_000
  const entry = `${token}:${Date.now()}:1:0:0:`
  for (let from = 0; from < NAMES; from += 2_000) {
    const pipeline = client.pipeline()
    const fields: string[] = []
    for (let i = from; i < from + 2_000; i++) {
      const owner = `owner-${i}#abcdefgh1`
      pipeline.set(`lock:many:${i}`, owner, 'PX', TTL_MS)
      fields.push(`:lock:many:${i}`, entry + owner)
    }
    pipeline.hset('leasehold:redlock', ...fields)
    await pipeline.exec()
  }
  const pipeline = client.pipeline()
  for (let i = 0; i < READERS; i++) {
    const owner = `reader-${i}#abcdefgh1`
    pipeline.zadd('leasehold:redlock:readers:lock:crowd', Date.now() + TTL_MS, owner)
    pipeline.hset('leasehold:redlock:entries:lock:crowd', owner, entry)
  }
  await pipeline.exec()
  client.disconnect()
}

/** Processor time and calls of scripts since the server began. Unlike elapsed time, it does not depend on who else is busy. */
async function spent(server: RedisServer): Promise<{ cpuMs: number; calls: number }> {
  const [cpu, stats] = await Promise.all(['cpu', 'commandstats'].map((what) => server.command('INFO', what)))
  const of = (text: unknown, name: string): number =>
    Number(new RegExp(`${name}[:=](?:calls=)?([\\d.]+)`).exec(String(text))?.[1] ?? 0)
  return {
    cpuMs: 1_000 * (of(cpu, 'used_cpu_user') + of(cpu, 'used_cpu_sys')),
    calls: of(stats, 'cmdstat_eval') + of(stats, 'cmdstat_evalsha'),
  }
}

async function cost(work: () => Promise<unknown>): Promise<{ msPerCall: number; calls: number }[]> {
  const before = await Promise.all(servers.all.map(spent))
  await work()
  const after = await Promise.all(servers.all.map(spent))
  return after.map(({ cpuMs, calls }, i) => {
    const more = calls - (before[i]?.calls as number)
    return { calls: more, msPerCall: (cpuMs - (before[i]?.cpuMs as number)) / more }
  })
}

test('holders() returns everything, in calls that are each short for a server', async () => {
  let found: { key: string }[] = []
  const costs = await cost(async () => (found = (await store.holders?.('lock:')) ?? []))
  expect(found.length).toBe(NAMES + READERS + 1)
  expect(new Set(found.map(({ key }) => key)).size).toBe(NAMES + 1)
  for (const { calls, msPerCall } of costs) {
    expect(calls).toBeGreaterThan(NAMES / 1_000)
    expect(msPerCall).toBeLessThan(SLOWEST_MS)
  }
})

test('holders() of a few among many finds them all, and shows the same as inspect()', async () => {
  const found = (await store.holders?.('lock:many:77')) ?? []
  expect(found.length).toBe(111)
  const one = found.find(({ key }) => key === 'lock:many:777') ?? expect.fail('it is listed')
  const { holders = [] } = (await store.inspect?.('lock:many:777')) ?? {}
  expect(holders).toMatchObject([{ owner: one.owner, token: one.token, weight: ALL, detail: { nodes: 3 } }])
})

test('inspect() of a key with thousands of readers returns them all, in calls that are each short', async () => {
  let readers: unknown[] = []
  const costs = await cost(async () => (readers = (await store.inspect?.('lock:crowd'))?.holders ?? []))
  expect(readers.length).toBe(READERS + 1)
  for (const { msPerCall } of costs) expect(msPerCall).toBeLessThan(SLOWEST_MS)
})

test('a lock is granted in the middle of a listing', async () => {
  const other = servers.store({ maxTtl: '20m' })
  const claim = { key: 'lock:other', owner: 'o', weight: ALL, capacity: ALL, ttlMs: TTL_MS }
  await other.release([claim])
  let done = false
  const listing = Promise.resolve(store.holders?.('lock:')).finally(() => (done = true))
  const [answer] = await other.acquire([claim])
  expect(answer).toMatchObject({ granted: true })
  expect(done, 'the listing is over').toBe(false)
  expect((await listing)?.length).toBeGreaterThan(NAMES)
})

test('a listing leaves out names that are not held any more, and removes them from the record', async () => {
  for (const server of servers.all) {
    await server.command('HSET', 'leasehold:redlock', ':lock:many:gone', '1:1:1:0:0:nobody#abcdefgh1')
  }
  expect(await store.holders?.('lock:many:gone')).toEqual([])
  expect(await servers.all[0]?.command('HEXISTS', 'leasehold:redlock', ':lock:many:gone')).toBe(0)
})

test('revoke() cuts off thousands of readers, and returns them', async () => {
  const cut = (await store.revoke?.('lock:crowd')) ?? []
  expect(cut.length).toBe(READERS + 1)
  expect((await store.inspect?.('lock:crowd'))?.holders).toEqual([])
})
