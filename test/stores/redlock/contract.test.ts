import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import type { RedisServer } from '../../../testbed/servers/index.js'
import { createLocks } from '../../../src/index.js'
import { ALL, type Claim, type Grant, type LeaseId, type Store, type Watch } from '../../../src/store.js'
import { scripts } from '../../../src/stores/redlock/lua-node.js'
import { Servers } from './servers.js'

let servers: Servers
let store: Store
/** SOON: less than a third of a ttl of 20 s, after which a heartbeat would notice a loss by itself. */
const SOON = 6_000

let names = 0
const fresh = (): string => `lock:contract:${names++}`
const claim = (key: string, more: Partial<Claim> = {}): Claim => {
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 20_000, ...more }
}

async function granted(wanted: Claim, from: Store = store): Promise<Grant & { key: string }> {
  const [answer] = await from.acquire([wanted])
  if (answer?.granted !== true) throw new Error(`not granted: ${JSON.stringify(answer)}`)
  return { ...answer, key: wanted.key }
}

beforeAll(async () => {
  servers = await Servers.start(3)
  store = servers.store()
})
afterAll(() => servers.stop())

describe('tokens', () => {
  test('a release with another token answers gone, and ends nothing', async () => {
    const { key, owner, token } = await granted(claim(fresh()))
    const asked = claim(fresh())
    const other = await granted(asked)
    const released = await store.release([
      { key, owner, token: token - 1n },
      { key, owner, token: token + 1n },
      // By the name under which it was asked for, too.
      { key: asked.key, owner: asked.owner, token: other.token + 1n },
    ])
    expect(released.map(({ outcome }) => outcome)).toEqual(['gone', 'gone', 'gone'])
    const renewed = await store.renew([
      { key, owner, token, ttlMs: 20_000 },
      { key: other.key, owner: other.owner, ttlMs: 20_000 },
    ])
    expect(renewed.map(({ outcome }) => outcome)).toEqual(['ours', 'ours'])
    expect(await store.release([{ key, owner, token }])).toMatchObject([{ outcome: 'released' }])
  })

  test('a renewal with another token answers gone, and does not extend the lease', async () => {
    const { key, owner, token } = await granted(claim(fresh(), { ttlMs: 5_000 }))
    const renewed = await store.renew([
      { key, owner, token: token + 1n, ttlMs: 50_000 },
      { key, owner, token, ttlMs: 6_000, queued: true },
      { key, owner, token, ttlMs: 10_000 },
    ])
    expect(renewed.map(({ outcome }) => outcome)).toEqual(['gone', 'gone', 'ours'])
    const { holders = [] } = (await store.inspect?.(key)) ?? {}
    expect(holders[0]?.ttlMs).toBeLessThanOrEqual(10_000)
  })

  test('a late release of an attempt that was given up does not end the next grant of the same owner', async () => {
    const wanted = claim(fresh())
    const first = await granted(wanted)
    await store.release([{ key: wanted.key, owner: wanted.owner }])
    const second = await granted(wanted)
    expect(await store.release([first])).toMatchObject([{ outcome: 'gone' }])
    expect(await store.release([{ ...second }])).toMatchObject([{ outcome: 'released' }])
  })

  test('an acquire by an owner that already holds keeps the value that is there', async () => {
    const wanted = claim(fresh(), { value: '"first"' })
    const { owner, token } = await granted(wanted)
    await store.renew([{ key: wanted.key, owner, ttlMs: 20_000, value: '"second"' }])
    expect(await granted({ ...wanted, value: '"late"' })).toMatchObject({ owner, token })
    expect((await store.inspect?.(wanted.key))?.holders).toMatchObject([{ value: '"second"' }])
  })
})

describe('waiters', () => {
  test('release() answers hasWaiters for the keys that another process watches', async () => {
    const [watched, other] = [await granted(claim(fresh())), await granted(claim(fresh()))]
    const watch = servers.store().watch?.(watched.key, () => {}) as Watch
    onTestFinished(() => watch.close())
    expect(await watch.ready).toBe(true)
    expect(await store.release([watched, other])).toEqual([
      { outcome: 'released', hasWaiters: true },
      { outcome: 'released', hasWaiters: false },
    ])
  })
})

describe('revocations', () => {
  interface ReportedLosses {
    revoked: LeaseId[]
    possible: string[]
  }

  async function reportedLosses(to: Store, keys: readonly string[]): Promise<ReportedLosses> {
    const losses: ReportedLosses = { revoked: [], possible: [] }
    const watch = to.watchRevoked?.((lease) => losses.revoked.push(lease)) ?? expect.fail('watchRevoked exists')
    const stop = to.onPossibleLoss?.((affected) =>
      losses.possible.push(...keys.filter((key) => affected?.(key) ?? true)),
    )
    onTestFinished(() => {
      stop?.()
      watch.close()
    })
    expect(await watch.ready).toBe(true)
    return losses
  }

  test('one subscription reports revocations of every key, each lease once', async () => {
    const other = servers.store()
    const losses = await reportedLosses(store, [])
    const leases = await Promise.all(Array.from({ length: 5 }, () => granted(claim(fresh()))))
    for (const { key } of leases.slice(0, 3)) await other.revoke?.(key)
    for (const { key } of leases.slice(3)) await granted(claim(key, { steal: true }), other)
    await vi.waitFor(() => expect(losses.revoked.length).toBe(5), SOON)
    expect(losses.revoked).toEqual(leases.map(({ key, owner }) => ({ key, owner })))
    expect(losses.possible).toEqual([])
  })

  test('a revocation announced by a minority makes a loss possible, and does not end the lease', async () => {
    const { key, owner } = await granted(claim(fresh()))
    const losses = await reportedLosses(store, [key, 'lock:another'])
    await (servers.all[1] as RedisServer).command('PUBLISH', 'leasehold:redlock:revoked', JSON.stringify([key, owner]))
    await vi.waitFor(() => expect(losses.possible).toEqual([key]), SOON)
    expect(losses.revoked).toEqual([])
    expect(await store.renew([{ key, owner, ttlMs: 20_000 }])).toMatchObject([{ outcome: 'ours' }])
  })

  test('what is no message of leasehold on a channel of its own harms nobody', async () => {
    const { key, owner } = await granted(claim(fresh()))
    const losses = await reportedLosses(store, [])
    const watched = store.watch?.(key, () => {}) as Watch
    expect(await watched.ready).toBe(true)
    // Without a guard, ioredis throws what its listeners throw, and the process ends.
    for (const server of servers.all) {
      const channels = (await server.command('PUBSUB', 'CHANNELS', 'leasehold:*')) as string[]
      expect(channels.length).toBeGreaterThan(1)
      for (const channel of channels)
        for (const junk of ['hello', 'null', '7', '{}', '[]', '[[]]', ''])
          await server.command('PUBLISH', channel, junk)
    }
    await servers.store().revoke?.(key)
    await vi.waitFor(() => expect(losses.revoked).toContainEqual({ key, owner }), SOON)
    watched.close()
  })

  test('a loss of every lease is possible after too few servers were subscribed for a while', async () => {
    const own = await Servers.start(3)
    onTestFinished(() => own.stop())
    const other = own.store()
    await granted(claim(fresh()), other)
    const losses = await reportedLosses(other, ['lock:any'])
    for (const server of own.all) await server.command('CLIENT', 'KILL', 'TYPE', 'pubsub')
    await vi.waitFor(() => expect(losses.possible).toEqual(['lock:any']), SOON)
    expect(losses.revoked).toEqual([])
  })

  test('a lock that is stolen by another process is lost at once', async () => {
    const [locks, others] = [createLocks(store, { ttl: '20s' }), createLocks(servers.store(), { ttl: '20s' })]
    const name = fresh()
    const lock = await locks.acquire(name)
    const { signal } = lock
    // The subscription is opened with the lock, and may take a moment.
    const losses = await reportedLosses(store, [])
    await others.forceRelease(name)
    await vi.waitFor(() => expect(losses.revoked.length).toBe(1), SOON)
    await vi.waitFor(() => expect(signal.aborted).toBe(true), SOON)
    expect(lock.isHeld).toBe(false)
  })
})

describe('what is on the servers', () => {
  test('data of another format is refused by name, and left alone', async () => {
    const own = await Servers.start(3)
    onTestFinished(() => own.stop())
    await granted(claim(fresh()), own.store())
    for (const server of own.all) await server.command('HSET', 'leasehold:redlock', 'format', '1')
    const locks = createLocks(own.store(), { ttl: '20s' })
    await expect(locks.tryAcquire('x')).rejects.toThrow(
      'holds data of format 1, and this version of leasehold reads format 2',
    )
    expect(await own.all[0]?.command('HGET', 'leasehold:redlock', 'format')).toBe('1')
  })

  test.each(Object.entries(scripts))('%s.lua refuses a wrong number of arguments', async (name, { source }) => {
    const server = servers.all[0] as RedisServer
    const call = server.command('EVAL', source, '3', 'leasehold:redlock', 'lock:x', 'lock:y', 'one')
    await expect(call).rejects.toThrow(`leasehold: ${name}.lua takes`)
  })
})
