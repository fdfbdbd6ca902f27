/** Ownership: locks that opened their store close it, and locks on a borrowed client leave it open. */
import type { EventEmitter } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import pg from 'pg'
import { createClient } from 'redis'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import {
  type EtcdCluster,
  type PostgresServer,
  type RedisServer,
  startEtcd,
  startPostgres,
  startProxy,
  startRedis,
} from '../../testbed/servers/index.js'
import { startChild } from '../../testbed/children.js'
import {
  ClosedError,
  createLocks,
  InvalidOptionError,
  type Locks,
  memory,
  openLocks,
  type Store,
  StoreUnavailableError,
} from '../../src/index.js'
import { advisory } from '../../src/stores/postgres-advisory/index.js'
import { migrate, postgres } from '../../src/stores/postgres/index.js'
import { redis } from '../../src/stores/redis/index.js'
import { redlock } from '../../src/stores/redlock/index.js'

let servers: RedisServer[] = []
let cluster: EtcdCluster
let database: PostgresServer
let folder: string
const cleanups: (() => unknown)[] = []

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'leasehold-ownership-'))
  const started = await Promise.all([startPostgres(), startRedis(), startRedis(), startRedis()])
  ;[database, ...servers] = started
  cluster = await startEtcd()
  const pool = new pg.Pool({ connectionString: database.url })
  await migrate(pool)
  await pool.end()
})

afterAll(async () => {
  for (const clean of cleanups.reverse()) await clean()
  await Promise.all([database, cluster, ...servers].map((server) => server?.stop()))
  rmSync(folder, { recursive: true, force: true })
})

const urls: Record<string, () => string> = {
  memory: () => 'memory:',
  sqlite: () => `sqlite:${join(folder, 'locks.db')}`,
  redis: () => servers[0]?.url ?? '',
  redlock: () => `redlock://${servers.map(({ port }) => `127.0.0.1:${port}`).join(',')}`,
  postgres: () => database.url,
  'postgres+advisory': () => database.url.replace(/^postgres(ql)?:/, 'postgres+advisory:'),
  etcd: () => cluster.url,
}

test.each(Object.keys(urls))('a process that closed the locks of openLocks(%s) exits by itself', async (kind) => {
  const child = startChild<{ closedAt: number }>(new URL('./open-and-close.child.ts', import.meta.url), [
    urls[kind]?.() ?? '',
  ])
  const { closedAt } = await child.next()
  expect(await child.ended).toBe(0)
  // A pool that was left open keeps a process alive for ten seconds, a heartbeat or a subscription for ever.
  expect(Date.now() - closedAt).toBeLessThan(9_000)
})

test.each(Object.keys(urls).filter((kind) => kind !== 'memory'))(
  'close() of openLocks(%s) resolves when what the work under a lock released is free in the store',
  async (kind) => {
    const url = urls[kind]?.() ?? ''
    const [ours, theirs] = await Promise.all([openLocks(url), openLocks(url)])
    let work: Promise<void> | undefined
    await new Promise<void>((begun) => {
      work = ours.withLock('ends-when-told', async ({ signal }) => {
        const told = new Promise((resolve) => signal.addEventListener('abort', resolve))
        begun()
        await told
      })
    })
    const lock = await ours.acquire('released-before')
    const released = lock.release()
    await ours.close()
    for (const name of ['ends-when-told', 'released-before']) {
      const next = await theirs.tryAcquire(name)
      expect(next, name).not.toBeNull()
      await next?.release()
    }
    expect(await released).toBe(true)
    await work
    await theirs.close()
  },
)

test.concurrent.each(['redis', 'postgres', 'postgres+advisory'])(
  'close() of openLocks(%s) settles while the server is silent',
  async (kind) => {
    const url = urls[kind]?.() ?? ''
    const proxy = await startProxy(Number(new URL(url).port))
    cleanups.push(() => proxy.stop())
    const locks = await openLocks(proxy.through(url))
    await locks.acquire('held')
    proxy.blackhole()
    // All of them at once need connections that are not open yet.
    const asked = Array.from({ length: 4 }, (_, i) => locks.holders(`${i}`).catch((error: unknown) => error))
    expect(await locks.tryAcquire('silent').catch((error: unknown) => error)).toBeInstanceOf(StoreUnavailableError)
    const within = new Promise((resolve) => setTimeout(resolve, 20_000, 'still open').unref())
    expect(await Promise.race([locks.close({ grace: 0 }).then(() => 'closed'), within])).toBe('closed')
    await Promise.all(asked)
  },
)

test.concurrent.each(['redis', 'postgres', 'postgres+advisory'])(
  'a process that closed the locks of openLocks(%s) while the server is silent exits by itself',
  async (kind) => {
    const url = urls[kind]?.() ?? ''
    const proxy = await startProxy(Number(new URL(url).port))
    cleanups.push(() => proxy.stop())
    const script = new URL('./close-while-silent.child.ts', import.meta.url)
    const child = startChild<{ closedAt: number }>(script, [proxy.through(url)], (kill) => cleanups.push(kill))
    await child.next()
    proxy.stall()
    child.tell({})
    const { closedAt } = await child.next()
    expect(await child.ended).toBe(0)
    // A socket that nobody destroys keeps it alive until the server speaks again.
    expect(Date.now() - closedAt).toBeLessThan(20_000)
  },
)

const attempts: Record<string, (locks: Locks, name: string, signal: AbortSignal) => Promise<unknown>> = {
  tryAcquire: (locks, name) => locks.tryAcquire(name),
  'tryAcquire with a signal': (locks, name, signal) => locks.tryAcquire(name, { signal }),
  'acquireAll with a signal': (locks, name, signal) => locks.acquireAll([name, `${name} too`], { signal, wait: 500 }),
  request: (locks, name) => locks.request(name, { ifAvailable: true }, () => undefined),
}

test.each(Object.keys(urls).filter((kind) => kind !== 'memory'))(
  'close() of openLocks(%s) resolves when what an attempt in flight is granted is free in the store',
  async (kind) => {
    const url = urls[kind]?.() ?? ''
    const theirs = await openLocks(url)
    for (const [name, attempt] of Object.entries(attempts)) {
      const ours = await openLocks(url)
      const settled = Promise.allSettled([attempt(ours, name, new AbortController().signal)])
      await ours.close({ grace: 0 })
      const next = await theirs.tryAcquire(name)
      expect(next, name).not.toBeNull()
      await next?.release()
      await settled
    }
    await theirs.close()
  },
)

test('openLocks closes the store that it opened if the options are invalid', async () => {
  await expect(openLocks(urls['redis']?.() ?? '', { ttl: 'never' as never })).rejects.toThrow(InvalidOptionError)
  await expect(openLocks('nosuch://db')).rejects.toThrow(/a URL that begins with one of memory, sqlite, redis/)
})

test('createLocks with a URL throws an error that says what to write instead', () => {
  expect(() => createLocks('redis://db' as never)).toThrow(
    'write await openLocks(url, options), or createLocks(await openStore(url), options)',
  )
})

test.each([
  ['maxBatch', 0, '0'],
  ['maxBatch', Number.NaN, 'NaN'],
  ['maxBatch.renew', { acquire: 32, renew: 1.5, release: 32, take: 32 }, '1.5'],
  ['maxBatch.take', { acquire: 32, renew: 32, release: 32 }, 'undefined'],
])('a store whose %s is no whole number is refused: its calls would carry nothing', (name, maxBatch, was) => {
  const store = Object.assign(memory(), { maxBatch }) as Store
  expect(() => createLocks(store)).toThrow(`store.${name} takes a whole number of at least 1; it was ${was}`)
})

const counts = (emitter: EventEmitter): Record<string, number> =>
  Object.fromEntries(emitter.eventNames().map((event) => [String(event), emitter.listenerCount(event)]))

function ioredisClient(at = 0): Redis {
  const client = new Redis(servers[at]?.url ?? '')
  cleanups.push(() => client.disconnect())
  return client
}

const borrowed: Record<string, () => Promise<{ clients: EventEmitter[]; store: () => Store }>> = {
  ioredis: async () => {
    const client = ioredisClient()
    // While it connects, it listens to itself.
    await client.ping()
    return { clients: [client], store: () => redis(client) }
  },
  'node-redis': async () => {
    const client = createClient({ url: servers[0]?.url ?? '' })
    client.on('error', () => {})
    await client.connect()
    cleanups.push(() => client.destroy())
    return { clients: [client], store: () => redis(client) }
  },
  redlock: async () => {
    const clients = [0, 1, 2].map(ioredisClient)
    // A majority is enough for a lock: the last one may still be connecting, and what waits for that listens to it.
    await Promise.all(clients.map((client) => client.ping()))
    return { clients, store: () => redlock(clients, { maxTtl: '1m' }) }
  },
  'pg, lease table': async () => {
    const pool = new pg.Pool({ connectionString: database.url })
    cleanups.push(() => pool.end())
    return { clients: [pool], store: () => postgres(pool) }
  },
  'pg, advisory locks': async () => {
    const pool = new pg.Pool({ connectionString: database.url })
    cleanups.push(() => pool.end())
    return { clients: [pool], store: () => advisory(pool) }
  },
}

test.each(Object.keys(borrowed))('close() removes every listener from a borrowed client (%s)', async (kind) => {
  const { clients, store } = await (borrowed[kind] as (typeof borrowed)[string])()
  await createLocks(store()).close()
  const before = clients.map(counts)
  const warnings: Error[] = []
  const warned = (warning: Error): void => void warnings.push(warning)
  process.on('warning', warned)
  // As a development server does when it reloads a module after each change.
  for (let reload = 0; reload < 12; reload++) {
    const locks = createLocks(store(), { namespace: `reload-${reload}` })
    await locks.withLock('a', () => locks.acquire('a', { wait: 20 }).catch(() => undefined))
    await locks.close()
  }
  expect(clients.map(counts)).toEqual(before)
  await new Promise(setImmediate)
  process.off('warning', warned)
  expect(warnings.filter(({ name }) => name === 'MaxListenersExceededWarning')).toEqual([])
})

/** What the server has open for clients, but for the connections of a pool, and for the one that asks. */
async function connectionsBeside(pool: pg.Pool): Promise<number> {
  const admin = new pg.Client(database.url)
  await admin.connect()
  const { rows } = await admin.query(
    "SELECT count(*)::int AS open FROM pg_stat_activity WHERE backend_type = 'client backend' AND starts_with(application_name, $1)",
    [pool.options.application_name],
  )
  await admin.end()
  return rows[0].open - pool.totalCount
}

test.each([
  ['postgres', 2, postgres],
  ['postgres+advisory', 1, advisory],
] as const)(
  'close() ends the connections that %s opened beside a borrowed pool, and the next locks open them again',
  async (kind, opened, open) => {
    const pool = new pg.Pool({ connectionString: database.url, application_name: `borrowed for ${kind}` })
    cleanups.push(() => pool.end())
    const store = open(pool)
    cleanups.push(() => store.close())
    for (const round of ['first', 'second']) {
      const [locks, others] = [createLocks(store), createLocks(store)]
      await locks.withLock('a', () => locks.acquire('a', { wait: 100 }).catch(() => undefined))
      await vi.waitFor(async () => expect(await connectionsBeside(pool), round).toBeGreaterThanOrEqual(opened), 15_000)
      await others.close()
      expect(await connectionsBeside(pool), round).toBeGreaterThanOrEqual(opened)
      await locks.close()
      await vi.waitFor(async () => expect(await connectionsBeside(pool), round).toBe(0), 15_000)
    }
  },
)

test('close() ends a wait for an advisory lock that has only just begun', async () => {
  const url = urls['postgres+advisory']?.() ?? ''
  const [theirs, ours] = await Promise.all([openLocks(url), openLocks(url)])
  const lock = await theirs.acquire('waited-for')
  // Without a session yet: the first attempt is under way when closing calls it back.
  const refused = expect(ours.acquire('waited-for')).rejects.toThrow(ClosedError)
  const began = performance.now()
  await ours.close()
  // The server keeps a waiter in its queue for up to 5 s.
  expect(performance.now() - began).toBeLessThan(4_000)
  await refused
  await lock.release()
  await theirs.close()
})

test('a request after close() subscribes to nothing', async () => {
  const store = redis(ioredisClient())
  cleanups.push(() => store.close())
  const subscribed = vi.spyOn(store, 'watchRevoked')
  const locks = createLocks(store)
  await locks.close()
  await expect(locks.request('a', () => undefined)).rejects.toThrow('"a" cannot be acquired: locks.close() was called')
  expect(subscribed).not.toHaveBeenCalled()
})

test.each(Object.keys(borrowed))('a store outlives the locks on it, in sequence and in parallel (%s)', async (kind) => {
  const { clients, store: make } = await (borrowed[kind] as (typeof borrowed)[string])()
  const store = make()
  cleanups.push(() => store.close())
  const attached = clients.map(counts)
  const [one, two] = [createLocks(store), createLocks(store)]
  await one.close()
  expect(clients.map(counts)).toEqual(attached)
  expect(await two.withLock('later', () => 'held')).toBe('held')
  await two.close()
  const three = createLocks(store)
  expect(await three.withLock('later', () => 'held again')).toBe('held again')
  expect(clients.map(counts)).toEqual(attached)
  await three.close()
})

test('calls of close() leave no timer behind that keeps the process alive', async () => {
  const timers = (): number => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length
  const before = timers()
  const locks = createLocks(memory())
  const lock = await locks.acquire('a')
  const closed = [locks.close({ grace: '30s' }), locks.close(), locks.close({ grace: '1m' })]
  expect(timers()).toBeGreaterThan(before)
  await lock.release()
  await Promise.all(closed)
  expect(timers()).toBe(before)
})

test('a second close() with a shorter grace shortens the first', async () => {
  const locks = createLocks(memory())
  const lock = await locks.acquire('a')
  const began = performance.now()
  const first = locks.close({ grace: '30s' })
  expect(lock.isHeld).toBe(true)
  const second = locks.close({ grace: 50 })
  await Promise.all([first, second])
  expect(performance.now() - began).toBeLessThan(20_000)
  expect(lock.isHeld).toBe(false)
  await expect(locks.acquire('a')).rejects.toThrow(ClosedError)
})
