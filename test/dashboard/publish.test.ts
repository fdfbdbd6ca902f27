/** What processes publish for dashboards: `createLocks(store, { publish: '5s' })`. */
import { expect, test } from 'vitest'
import {
  createLocks,
  type Lock,
  InvalidOptionError,
  type LockEvents,
  type Locks,
  memory,
  StoreUnavailableError,
  UnsupportedError,
} from '../../src/index.js'
import { Histogram } from '../../src/primitives/publish/histogram.js'
import type { PublishedStats } from '../../src/primitives/publish/stats.js'
import type { Renewed } from '../../src/store.js'
import { VirtualWorld } from '../../testbed/virtual-world.js'
import { Locks as LocksClass } from '../../src/locks.js'
import { RemoteMemory } from '../core/remote-memory.js'

async function published(locks: Locks): Promise<PublishedStats[]> {
  return (await locks.holders('', { kind: 'stats' })).map(({ metadata }) => metadata as PublishedStats)
}

async function only(locks: Locks): Promise<PublishedStats> {
  const all = await published(locks)
  expect(all).toHaveLength(1)
  return all[0] as PublishedStats
}

test('an instance with publish keeps one lease of kind stats with its counters, waits and holds', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks({ publish: '5s' })
  await remote.pass(10)
  expect(await only(locks)).toMatchObject({ version: 1, held: 0, counters: { acquired: 0 }, everyMs: 5_000 })
  const held = await locks.acquire('a')
  const waiting = locks.acquire('a', { wait: '1s' }).catch((error: Error) => error.name)
  await remote.pass(5_000)
  expect(await waiting).toBe('LockTimeoutError')
  const after = await only(locks)
  expect(after).toMatchObject({ held: 1, waiting: 0, counters: { acquired: 1, timeouts: 1, released: 0 } })
  expect(after.names).toMatchObject([{ kind: 'lock', name: 'a', acquired: 1, timeouts: 1, waitMs: 1_000 }])
  const waits = new Histogram()
  waits.merge(after.wait)
  expect([waits.total, Math.round(waits.percentile(0.95) ?? 0)]).toEqual([2, 1_024])
  await held.release()
  await remote.pass(5_000)
  expect((await only(locks)).counters).toMatchObject({ released: 1 })
  const closed = locks.close()
  await remote.pass(100)
  await closed
  expect(await published(remote.locks())).toEqual([])
})

test('a loss is published at once, with its reason', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks({ publish: '1m' })
  await remote.pass(1_000)
  const lock = await locks.acquire('order:7')
  await remote.locks().forceRelease('order:7')
  await remote.pass(1_000)
  const { losses, lostBy, counters } = await only(locks)
  expect(losses).toMatchObject([{ kind: 'lock', name: 'order:7', holder: lock.holder, why: 'revoked' }])
  expect([lostBy, counters.lost]).toEqual([{ revoked: 1 }, 1])
})

test('a lock at risk is published at once, and at once no longer when a renewal works again', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks({ publish: '1m', ttl: '9s' })
  await remote.pass(1_000)
  const lock = await locks.acquire('order:7')
  remote.fate = (method, _, [first]) => (method === 'renew' && first?.key === 'lock:order:7' ? 'break' : undefined)
  await remote.pass(4_000)
  const ends = remote.world.date() + lock.remainingMs
  expect(lock.atRisk).toBe(true)
  expect(await only(locks)).toMatchObject({
    held: 1,
    atRisk: 1,
    risks: [{ kind: 'lock', name: 'order:7', holder: lock.holder, token: String(lock.fencingToken), ends }],
  })
  remote.fate = () => undefined
  await remote.pass(2_000)
  expect(lock.atRisk).toBe(false)
  expect(await only(locks)).toMatchObject({ held: 1, atRisk: 0, risks: [] })
})

test('a loss is published with the stall and the last attempts that explain it', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks({ publish: '1m', ttl: '6s' })
  await remote.pass(1_000)
  await locks.acquire('order:7')
  const lost = new Promise<LockEvents['lost']>((resolve) => locks.on('lost', resolve))
  remote.fate = (method, _, [first]) => (method === 'renew' && first?.key === 'lock:order:7' ? 'break' : undefined)
  await remote.pass(8_000)
  const { stalledMs, lastRenewedMsAgo, attempts } = await lost
  const [loss] = (await only(locks)).losses
  expect(loss).toMatchObject({ stalledMs, lastRenewedMsAgo: Math.round(lastRenewedMsAgo ?? 0) })
  expect(loss?.attempts).toHaveLength(5)
  expect(loss?.attempts).toEqual(
    attempts.map(({ at, outcome, tookMs, error }) => ({
      at: at.getTime(),
      outcome,
      tookMs: Math.round(tookMs),
      error,
    })),
  )
  expect(loss?.attempts?.[0]).toMatchObject({ outcome: 'failed', error: expect.stringMatching(/./) })
})

test('an instance publishes again after its lease was taken away or ran out', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks({ publish: '5s' })
  await remote.pass(10)
  const [holder] = await locks.holders('', { kind: 'stats' })
  expect(await locks.forceRelease(holder?.name ?? '', { kind: 'stats' })).toHaveLength(1)
  expect(await published(locks)).toEqual([])
  await remote.pass(5_100)
  await only(locks)
})

test('publishing raises no events, survives releaseAll, and does not hold up close', async () => {
  const world = new VirtualWorld(1)
  const locks = new LocksClass(memory(), { publish: '5s' }, world)
  const seen: string[] = []
  locks.on('acquired', ({ kind }) => seen.push(kind))
  locks.on('released', ({ kind }) => seen.push(kind))
  await world.pass(6_000)
  await locks.releaseAll()
  expect(await published(locks)).toHaveLength(1)
  await locks.close({ grace: '1h' })
  expect(seen).toEqual([])
})

test('limiters and schedules are published with what they did, and a failed job still becomes a warning', async () => {
  const world = new VirtualWorld(1)
  const locks = new LocksClass(memory({ world: world }), { publish: '5s' }, world)
  const limiter = locks.limiter('api', { limit: 2, per: '1h' })
  const answers = Promise.all([limiter.take('ada'), limiter.take('ada'), limiter.take('ada')])
  const warned = new Promise<Error>((resolve) => process.once('warning', resolve))
  const job = locks.schedule('report', '* * * * *', () => Promise.reject(new Error('no paper')), { timezone: 'UTC' })
  await world.pass(70_000)
  await answers
  const { limiters, schedules } = await only(locks)
  expect(limiters).toMatchObject([{ name: 'api', allowed: 2, refused: 1, limits: [{ limit: 2 }] }])
  expect(schedules).toMatchObject([
    { name: 'report', cron: '* * * * *', timezone: 'UTC', last: { outcome: 'failed', error: 'no paper' } },
  ])
  const [published] = schedules
  expect(published?.next).toBe((published?.last?.tick ?? 0) + 60_000)
  expect((await warned).message).toBe('no paper')
  void job.stop()
  await world.pass(6_000)
  expect((await only(locks)).schedules).toEqual([])
})

test('what is published stays small, however many names are used and lost', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks({ publish: '5s' })
  const other = remote.locks()
  for (let i = 0; i < 200; i++) {
    await locks.acquire(`${'n'.repeat(240)}${i}`)
    await other.forceRelease(`${'n'.repeat(240)}${i}`)
    await remote.pass(1_000)
  }
  await remote.pass(10_000)
  const stats = await only(locks)
  expect(stats.counters.lost).toBe(200)
  expect(JSON.stringify(stats).length).toBeLessThan(32_000)
})

test('what is published stays small when all locks of a process are at risk and then lost with long errors', async () => {
  const remote = new RemoteMemory()
  const locks = remote.locks({ publish: '5s', ttl: '10s' })
  const refuse = (renewals: readonly { key: string }[]): Renewed[] | undefined =>
    renewals.some(({ key }) => key.startsWith('lock:'))
      ? renewals.map(() => ({ outcome: 'unknown', error: new StoreUnavailableError('x'.repeat(5_000)) }))
      : undefined
  const { renew } = remote.store
  remote.store.renew = (renewals) => refuse(renewals) ?? renew(renewals)
  // Kept here: a lock that is collected is abandoned, and neither at risk nor lost.
  const held: Lock[] = []
  for (let i = 0; i < 100; i++) held.push(await locks.acquire(`${'n'.repeat(240)}${i}`))
  await remote.pass(5_500)
  const before = await only(locks)
  expect([before.atRisk, before.risks.length]).toEqual([100, 25])
  expect(JSON.stringify(before).length).toBeLessThan(32_000)
  await remote.pass(10_000)
  const after = await only(locks)
  expect(after.counters.lost).toBe(100)
  expect(held.filter(({ isHeld }) => isHeld)).toEqual([])
  expect(JSON.stringify(after).length).toBeLessThan(32_000)
})

test('publish refuses what is no period, and stores that keep no values', () => {
  for (const publish of ['now', 5, '2h', true]) {
    expect(() => createLocks(memory(), { publish: publish as never })).toThrow(InvalidOptionError)
  }
  const store = memory()
  const valueless = { ...store, acquire: store.acquire.bind(store), features: { ...store.features, values: false } }
  expect(() => createLocks(valueless as never, { publish: '5s' })).toThrow(UnsupportedError)
  const brief = { ...store, acquire: store.acquire.bind(store), features: store.features, maxTtlMs: 60_000 }
  expect(() => createLocks(brief as never, { publish: '40s' })).toThrow(/publish takes at most 30s/)
})

test('a histogram tells percentiles within 20 %, and leaves out what is no count', () => {
  const histogram = new Histogram()
  for (let ms = 1; ms <= 1_000; ms++) histogram.add(ms)
  for (const share of [0.5, 0.95, 0.99]) {
    const told = histogram.percentile(share) ?? 0
    expect(told / (share * 1_000)).toBeGreaterThanOrEqual(1)
    expect(told / (share * 1_000)).toBeLessThan(1.2)
  }
  const merged = new Histogram()
  merged.merge([...histogram.toJSON(), -1, 5, 3, Number.NaN, 999, 4])
  expect(merged.total).toBe(1_000)
  expect(merged.countUpTo(512)).toBe(512)
  expect(new Histogram().percentile(0.5)).toBeUndefined()
})
