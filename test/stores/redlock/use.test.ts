import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { Redis } from 'ioredis'
import { Redis as Redis5 } from 'ioredis5'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import { type RedisServer, startProxy } from '../../../testbed/servers/index.js'
import { createLocks, type InvalidOptionError, type Locks, UnsupportedError } from '../../../src/index.js'
import { ALL, type Grant, type Store } from '../../../src/store.js'
import { redlock, type RedlockClient, type RedlockOptions } from '../../../src/stores/redlock/index.js'
import { open } from '../../../src/stores/redlock/open.js'
import { Servers } from './servers.js'

let servers: Servers
beforeAll(async () => {
  servers = await Servers.start(5)
})
afterAll(() => servers.stop())

/** SOON: what vi.waitFor() waits for at most. Its default is a second, for which a busy machine stops. */
const SOON = 30_000

let names = 0
const fresh = (): string => `use:${names++}`
const locksOn = (store: Store): Locks => createLocks(store, { ttl: '20s', wait: '20s' })

/** The error of a call that must throw. */
function thrownBy(run: () => unknown): InvalidOptionError {
  try {
    run()
  } catch (error) {
    return error as InvalidOptionError
  }
  throw new Error('it did not throw')
}

describe('asking for a store', () => {
  test('redlock() refuses fewer than three servers', () => {
    const clients = servers.ioredis({ lazyConnect: true })
    for (const few of [0, 1, 2]) {
      const error = thrownBy(() => redlock(clients.slice(0, few), { maxTtl: '1m' }))
      expect(error).toMatchObject({ code: 'INVALID_OPTION', option: 'clients', value: few })
    }
    expect(thrownBy(() => redlock('redis://localhost' as never, { maxTtl: '1m' }))).toMatchObject({
      option: 'clients',
    })
  })

  test('redlock() refuses a client that is given twice', () => {
    const [a, b] = servers.ioredis({ lazyConnect: true }) as [Redis, Redis]
    expect(thrownBy(() => redlock([a, b, a], { maxTtl: '1m' }))).toMatchObject({ option: 'clients' })
  })

  test('redlock() refuses what is not a client of one server, and names its position', () => {
    const [a, b] = servers.ioredis({ lazyConnect: true }) as [Redis, Redis]
    for (const odd of [null, {}, 'redis://localhost', new Redis.Cluster([], { lazyConnect: true })]) {
      expect(thrownBy(() => redlock([a, b, odd as never], { maxTtl: '1m' })).message).toContain('clients[2]')
    }
  })

  test('redlock() refuses bad options by name', () => {
    const clients = servers.ioredis({ lazyConnect: true })
    const bad: [string, Partial<RedlockOptions>][] = [
      ['maxTtl', { maxTtl: 0 }],
      ['maxTtl', { maxTtl: 'soon' as never }],
      ['drift', { maxTtl: '1m', drift: -0.1 }],
      ['drift', { maxTtl: '1m', drift: Number.NaN }],
      ['nodeTimeout', { maxTtl: '1m', nodeTimeout: '2m' }],
    ]
    for (const [option, options] of bad) {
      expect(thrownBy(() => redlock(clients, options as RedlockOptions))).toMatchObject({ option })
    }
  })

  test('a store without options grants leases of at most a minute', async () => {
    const store = redlock(servers.ioredis())
    onTestFinished(() => store.close())
    expect(store.maxTtlMs).toBe(60_000)
    const lock = await createLocks(store, { ttl: '1m' }).acquire(fresh())
    await lock.release()
    expect(() => createLocks(store, { ttl: '2m' })).toThrow('ttl')
  })

  test('a store refuses one server behind two addresses, naming both', async () => {
    const proxy = await startProxy((servers.all[0] as RedisServer).port)
    const ports = [(servers.all[0] as RedisServer).port, (servers.all[1] as RedisServer).port, proxy.port]
    const clients = ports.map((port) => new Redis(port, '127.0.0.1'))
    const store = servers.store({}, clients)
    const locks = locksOn(store)
    for (let i = 0; i < 3; i++) {
      const error = (await locks.acquire(fresh()).catch((reason: unknown) => reason)) as InvalidOptionError
      expect(error).toMatchObject({ code: 'INVALID_OPTION', option: 'clients' })
      expect(error.message).toContain(`127.0.0.1:${ports[0]}`)
      expect(error.message).toContain(`127.0.0.1:${proxy.port}`)
    }
    await locks.close({ grace: 0 })
    for (const client of clients) client.disconnect()
    await proxy.stop()
  })

  test('a store refuses servers that belong to a redlock of another size, and names both sizes', async () => {
    const five = locksOn(servers.store())
    await five.withLock(fresh(), async () => {})
    const three = locksOn(servers.store({}, servers.ioredis().slice(0, 3)))
    await expect(three.tryAcquire(fresh())).rejects.toThrow('belongs to a redlock of 5 nodes, and this one has 3')
  })

  test('a store throws UnsupportedError for what it cannot do safely', () => {
    const locks = locksOn(servers.store())
    expect(() => locks.limiter('x', { limit: 1, per: '1s' })).toThrow(UnsupportedError)
    expect(() => locks.readWrite('x')).toThrow(UnsupportedError)
    expect(() => locks.readWrite('x', { starvation: 'accepted' })).not.toThrow()
  })
})

/** Clients that are closed with their test, also when it fails. */
function nodeRedis(options: object = {}): RedlockClient[] {
  return servers.all.map((server) => {
    const client = createClient({ url: server.url, ...options })
    client.on('error', () => {})
    client.connect().catch(() => {})
    onTestFinished(() => client.destroy())
    return client
  })
}

function ioredis5(): RedlockClient[] {
  return servers.all.map((server) => {
    const client = new Redis5(server.url)
    onTestFinished(() => client.disconnect())
    return client
  })
}

describe('clients', () => {
  const kinds: Record<string, () => RedlockClient[]> = {
    ioredis: () => servers.ioredis(),
    'ioredis 5': ioredis5,
    'ioredis that is not connected yet': () => servers.ioredis({ lazyConnect: true }),
    'ioredis with a keyPrefix': () => servers.ioredis({ keyPrefix: 'app:' }),
    'node-redis': () => nodeRedis(),
    'node-redis with a keyPrefix': () => nodeRedis({ keyPrefix: 'app:' }),
    'some of each': () => servers.mixed(),
  }
  test.each(Object.entries(kinds))('locks work with clients of the kind %s', async (kind, clients) => {
    const [one, other] = [clients(), clients()]
    const [a, b] = [locksOn(servers.store({}, one)), locksOn(servers.store({}, other))]
    const name = fresh()
    const held = await a.acquire(name, { metadata: { job: 1 } })
    const prefix = kind.includes('keyPrefix') ? 'app:' : ''
    // A server to which the client is not connected yet has no vote in its first lock: any three may have it.
    const found = await Promise.all(servers.all.map((server) => server.command('GET', `${prefix}lock:${name}`)))
    expect(found.filter((owner) => owner === held.holder).length).toBeGreaterThanOrEqual(3)
    expect(await b.tryAcquire(name)).toBeNull()
    const waiting = b.acquire(name)
    expect((await b.inspect(name)).holders.map(({ holder }) => holder)).toEqual([held.holder])
    expect((await a.holders()).map((holder) => holder.name)).toContain(name)
    expect(await held.release()).toBe(true)
    const next = await waiting
    expect(next.fencingToken).toBeGreaterThan(held.fencingToken)
    await next.release()
    await a.close({ grace: 0 })
    await b.close({ grace: 0 })
  })

  test('the rights that the docs name are enough for every operation', async () => {
    const docs = readFileSync(new URL('../../../docs/stores/redlock.md', import.meta.url), 'utf8')
    const rights =
      /ACL SETUSER locker on >password ([^`]*)```/
        .exec(docs)?.[1]
        ?.split(/[\s\\]+/)
        .filter(Boolean) ?? []
    for (const server of servers.all) await server.command('ACL', 'SETUSER', 'locker', 'on', '>password', ...rights)
    const store = await open(`redlock://locker:password@${servers.ports.join(',')}`)
    const [a, b] = [locksOn(store), locksOn(servers.store())]
    const name = fresh()
    const held = await b.acquire(name)
    const waiting = a.acquire(name, { metadata: { job: 1 } })
    await held.release()
    const lock = await waiting
    await lock.extend('25s')
    expect((await a.inspect(name)).holders).toHaveLength(1)
    expect((await a.holders()).map((holder) => holder.name)).toContain(name)
    expect(await a.forceRelease(name)).toHaveLength(1)
    for (const mode of ['shared', 'exclusive'] as const) await a.withLock(name, async () => {}, { mode })
    await a.close({ grace: 0 })
    await store.close()
  })

  test('a URL opens clients of its own, and closing the store closes them', async () => {
    const hosts = servers.ports.join(',')
    const store = await open(`redlock://${hosts}/0?maxTtl=30s&nodeTimeout=2s`)
    expect(store.maxTtlMs).toBe(30_000)
    const locks = locksOn(store)
    await locks.withLock(fresh(), async (lock) => expect(lock.isHeld).toBe(true))
    await locks.close()
    await store.close()
    expect(
      (await store.acquire([{ key: 'lock:x', owner: 'x', weight: 1, capacity: 2 ** 31 - 1, ttlMs: 1 }]))[0],
    ).toMatchObject({ granted: 'unknown' })
  })

  test('open() rejects a malformed URL with the expected form, and without the password', async () => {
    for (const url of ['redlock://', 'redlock://a,b:x,c', 'redlock://u:secret@a,,b', 'redlock://a,b,c?ttl=1s']) {
      const error = await open(url).catch((reason: Error) => reason)
      expect(error).toMatchObject({ code: 'INVALID_OPTION' })
      expect((error as Error).message).not.toContain('secret')
    }
    await expect(open('redlock://a,b')).rejects.toMatchObject({ option: 'clients' })
  })
})

describe('a semaphore, which is made of slots on redlock', () => {
  test('forceRelease() cuts off all holders of a permit, and no others', async () => {
    const locks = locksOn(servers.store())
    const name = fresh()
    const [api, other] = [locks.semaphore(name, 3), locks.semaphore(`${name}#1`, 2)]
    const permits = [await api.acquire(), await api.acquire(), await other.acquire()] as const
    const state = await locks.inspect(name, { kind: 'semaphore' })
    expect(state.holders.length).toBe(2)
    const cut = await locksOn(servers.store()).forceRelease(name, { kind: 'semaphore' })
    expect(cut.map(({ fencingToken }) => fencingToken).sort()).toEqual(
      permits
        .slice(0, 2)
        .map((permit) => permit.fencingToken)
        .sort(),
    )
    await vi.waitFor(() => expect(permits.map((permit) => permit.isHeld)).toEqual([false, false, true]), SOON)
    expect((await locks.inspect(name, { kind: 'semaphore' })).holders).toEqual([])
    expect((await locks.forceRelease(`${name}#1`, { kind: 'semaphore' })).length, 'another semaphore').toBe(1)
    await locks.close({ grace: 0 })
  })
})

describe('processes that want the same lock at once', () => {
  test.each([4, 5])('split votes on %i servers end, and every process gets the lock in turn', async (size) => {
    const some = size === 5 ? servers : await Servers.start(size)
    const clients = Array.from({ length: 6 }, () => locksOn(some.store()))
    const name = fresh()
    let inside = 0
    let served = 0
    const tokens: bigint[] = []
    const worker = async (locks: Locks): Promise<void> => {
      for (let i = 0; i < 5; i++) {
        await locks.withLock(name, async ({ fencingToken }) => {
          expect(++inside).toBe(1)
          tokens.push(fencingToken)
          await new Promise((resolve) => setImmediate(resolve))
          inside--
          served++
        })
      }
    }
    await Promise.all(clients.map(worker))
    expect(served).toBe(30)
    expect(tokens).toEqual([...tokens].sort((a, b) => (a < b ? -1 : 1)))
    expect(new Set(tokens).size).toBe(30)
    if (some !== servers) await some.stop()
  })

  test('one of several processes that try a free lock at once gets it, mostly also after a split vote', async () => {
    const clients = Array.from({ length: 3 }, () => locksOn(servers.store()))
    await Promise.all(clients.map((locks) => locks.withLock(fresh(), async () => {})))
    let winners = 0
    for (let round = 0; round < 30; round++) {
      const name = fresh()
      const tried = await Promise.all(clients.map((locks) => locks.tryAcquire(name)))
      const got = tried.filter((lock) => lock !== null)
      expect(got.length).toBeLessThanOrEqual(1)
      winners += got.length
      await got[0]?.release()
    }
    expect(winners, 'rounds with a winner, of 30').toBeGreaterThan(20)
  })

  test('a right guess costs one round; after a wrong one, all listings show the token that was found instead', async () => {
    const store = servers.store()
    const locks = locksOn(store)
    await locks.withLock(fresh(), async () => {})
    const raised = async (): Promise<number> => {
      const calls = await Promise.all(servers.all.map((server) => server.command('INFO', 'commandstats')))
      // Only the second round of a lock without a value reads the counter alone.
      return calls
        .map((text) => Number(/cmdstat_hget:calls=(\d+)/.exec(String(text))?.[1] ?? 0))
        .reduce((a, b) => a + b)
    }
    // On a busy machine a request may take longer than the guess is ahead of the clocks.
    await vi.waitFor(async () => {
      const before = await raised()
      await locks.withLock(fresh(), async () => {})
      expect(await raised(), 'second rounds').toBe(before)
    }, SOON)

    const ahead = String((Date.now() + 20_000) * 1_000)
    for (const server of servers.all.slice(1, 4)) await server.command('HSET', 'leasehold:redlock', 'counter', ahead)
    const claim = {
      key: `lock:${fresh()}`,
      owner: 'somebody',
      weight: ALL,
      capacity: ALL,
      ttlMs: 20_000,
      value: '"first"',
    }
    // One server answers late, and accepts the guess when it is no longer the token.
    const late = servers.all[0] as RedisServer
    await late.freeze()
    const grant = (await store.acquire([claim]))[0] as Grant
    await late.thaw()
    await vi.waitFor(async () => expect(await late.command('EXISTS', claim.key)).toBe(1), SOON)
    expect(grant.token, 'the counters that are ahead').toBeGreaterThan(BigInt(ahead))
    const seen = async () => (await store.inspect?.(claim.key))?.holders
    expect(await seen()).toMatchObject([{ token: grant.token, value: '"first"' }])
    await store.renew([{ ...claim, owner: grant.owner, value: '"second"' }])
    expect(await seen()).toMatchObject([{ token: grant.token, value: '"second"' }])
    await store.release([{ key: claim.key, owner: grant.owner }])
  })

  test('a release wakes a waiter long before its next poll', async () => {
    const [a, b] = [locksOn(servers.store()), locksOn(servers.store())]
    const name = fresh()
    let quick = 0
    for (let i = 0; i < 20 && quick < 3; i++) {
      const held = await a.acquire(name)
      const waiting = b.acquire(name)
      await new Promise((resolve) => setTimeout(resolve, 100))
      const releasedAt = performance.now()
      await held.release()
      const next = await waiting
      if (performance.now() - releasedAt < 400) quick++
      await next.release()
    }
    // Without the wake-up none is: it would poll a second after it was refused. On a slow machine, some are not.
    expect(quick).toBe(3)
  })
})

describe('node-redlock on the same servers', () => {
  interface Peer {
    acquire(names: string[], ttlMs: number): Promise<{ release(): Promise<unknown> }>
  }
  const { default: Peer } = createRequire(import.meta.url)('redlock5') as {
    default: new (clients: unknown[], settings: object) => Peer
  }

  test('node-redlock excludes leasehold, and leasehold excludes it, for exclusive and shared locks', async () => {
    const peer = new Peer(servers.ioredis(), { retryCount: 0 })
    const locks = locksOn(servers.store())
    const name = fresh()
    const theirs = await peer.acquire([`lock:${name}`], 20_000)
    expect(await locks.tryAcquire(name)).toBeNull()
    expect(await locks.tryAcquire(name, { mode: 'shared' })).toBeNull()
    await theirs.release()
    for (const mode of ['exclusive', 'shared'] as const) {
      const ours = await locks.acquire(name, { mode })
      await expect(peer.acquire([`lock:${name}`], 20_000)).rejects.toThrow()
      expect(await ours.release()).toBe(true)
      await (await peer.acquire([`lock:${name}`], 20_000)).release()
    }
  })
})
