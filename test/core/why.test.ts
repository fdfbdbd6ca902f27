import { inspect } from 'node:util'
import { describe, expect, test } from 'vitest'
import { LockLostError, type LockEvents, type Locks, StoreUnavailableError } from '../../src/index.js'
import type { AcquireOptions } from '../../src/core/options.js'
import type { Lock } from '../../src/core/lock.js'
import type { LeaseId, Watch } from '../../src/store.js'
import { RemoteMemory } from './remote-memory.js'

const URL_WITH_PASSWORD = 'no route to redis://app:hunter2@10.0.0.7'
const jsonable = (_: string, value: unknown): unknown => (typeof value === 'bigint' ? String(value) : value)

interface Holder {
  remote: RemoteMemory
  locks: Locks
  lock: Lock
  lost: LockEvents['lost'][]
  atRisk: LockEvents['atRisk'][]
}

async function holder(options: AcquireOptions = {}, remote = new RemoteMemory()): Promise<Holder> {
  const locks = remote.locks({ namespace: 'shop' })
  const [lost, atRisk]: [LockEvents['lost'][], LockEvents['atRisk'][]] = [[], []]
  locks.on('lost', (facts) => lost.push(facts))
  locks.on('atRisk', (facts) => atRisk.push(facts))
  const acquiring = locks.acquire('order:7', { ttl: 3_000, metadata: { job: 'charge' }, ...options })
  await remote.pass(1)
  return { remote, locks, lock: await acquiring, lost, atRisk }
}

describe('a lock that was lost tells why:', () => {
  test('blocked, if synchronous code kept the event loop busy past the deadline', async () => {
    const { remote, lock, lost } = await holder()
    await remote.pass(2_500)
    remote.world.block(31_200)
    await remote.pass(1)
    expect(lost).toMatchObject([{ why: 'blocked', name: 'order:7', namespace: 'shop', metadata: { job: 'charge' } }])
    const { error, stalledMs, lastRenewedMsAgo, attempts } = lost[0] as LockEvents['lost']
    expect(error.message).toMatch(
      /^"order:7" is no longer held: the event loop was blocked for 3[01]\.\d s; raise ttl, or find what blocks$/,
    )
    expect(stalledMs).toBeGreaterThan(30_900)
    expect(stalledMs).toBeLessThanOrEqual(31_200)
    expect(lastRenewedMsAgo).toBeGreaterThan(31_200)
    expect(attempts.map(({ outcome }) => outcome)).toEqual(['renewed', 'renewed'])
    expect(attempts.every(({ at, tookMs }) => at instanceof Date && tookMs < 5)).toBe(true)
    expect(error).toMatchObject({ why: 'blocked', stalledMs, lastRenewedMsAgo, attempts })
    expect(lock.signal.reason).toBe(error)
  })

  test('blocked, if the code that blocks asks by itself, before any timer', async () => {
    const { remote, lock } = await holder()
    remote.world.block(4_000)
    expect(() => lock.assertHeld()).toThrow(expect.objectContaining({ why: 'blocked' }))
  })

  test('blocked, if the answer to a renewal waits in the socket while the loop is blocked', async () => {
    const { remote, lost } = await holder()
    remote.fate = (method) => (method === 'renew' ? { replyMs: 20 } : undefined)
    await remote.pass(1_010)
    remote.world.block(5_000)
    await remote.pass(1)
    expect(lost).toMatchObject([{ why: 'blocked' }])
    expect(lost[0]?.attempts.at(-1)?.tookMs).toBeGreaterThan(4_900)
  })

  test('blocked, if a ttl shorter than the watch on the event loop ran out in a busy loop', async () => {
    const { remote, lost } = await holder({ ttl: 120 })
    remote.world.block(150)
    await remote.pass(1)
    expect(lost).toMatchObject([{ why: 'blocked' }])
  })

  test('frozen, if the process used no processor time meanwhile', async () => {
    const { remote, lost } = await holder()
    await remote.pass(700)
    remote.world.freeze(5_000)
    await remote.pass(1)
    expect(lost).toMatchObject([{ why: 'frozen' }])
    expect(lost[0]?.error.message).toMatch(/the process did not run for \d\.\d s/)
  })

  test('frozen, although the process was busy before it was stopped', async () => {
    const { remote, lost } = await holder()
    for (let i = 0; i < 50; i++) {
      remote.world.block(10)
      await remote.pass(0)
    }
    remote.world.freeze(4_000)
    await remote.pass(1)
    expect(lost).toMatchObject([{ why: 'frozen' }])
  })

  test('frozen for as long as it was frozen, if the answer to the renewal before came late', async () => {
    const { remote, lost } = await holder({ ttl: 150 })
    remote.fate = (method) => (method === 'renew' ? { replyMs: 90 } : undefined)
    await remote.pass(139)
    remote.world.freeze(60)
    await remote.pass(1)
    expect(lost[0]?.attempts[0]).toMatchObject({ outcome: 'renewed' })
    expect(lost[0]?.stalledMs).toBeLessThanOrEqual(61)
  })

  test('unreachable, if renewals are not answered', async () => {
    const { remote, lost } = await holder()
    remote.fate = (method) => (method === 'renew' ? 'lose' : undefined)
    await remote.pass(3_000)
    expect(lost).toMatchObject([{ why: 'unreachable', stalledMs: 0 }])
    expect(lost[0]?.attempts).toMatchObject([{ outcome: 'unanswered' }])
  })

  test('unreachable, if renewals fail, with the last five attempts and the last error', async () => {
    const { remote, lost } = await holder()
    remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
    await remote.pass(3_000)
    expect(lost).toMatchObject([{ why: 'unreachable' }])
    const { error, attempts } = lost[0] as LockEvents['lost']
    expect(attempts).toHaveLength(5)
    expect(attempts.every(({ outcome, error: said }) => outcome === 'failed' && said?.includes('ECONNRESET'))).toBe(
      true,
    )
    expect(attempts.map(({ at }) => at.getTime())).toEqual(attempts.map(({ at }) => at.getTime()).sort())
    expect(error.cause).toBeInstanceOf(StoreUnavailableError)
    expect(error.message).toContain('ECONNRESET')
  })

  test('unreachable, although a short stall came on top of the outage', async () => {
    const { remote, lost } = await holder()
    remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
    await remote.pass(1_500)
    remote.world.block(600)
    await remote.pass(1_500)
    expect(lost).toMatchObject([{ why: 'unreachable' }])
    expect(lost[0]?.stalledMs).toBeGreaterThan(300)
  })

  test('server-down, if nothing listens at the address of the server', async () => {
    const refused = Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:6379'), { code: 'ECONNREFUSED' })
    const { remote, lost } = await holder({}, new RemoteMemory({ outage: () => refused }))
    remote.fate = (method) => (method === 'renew' ? 'lose' : undefined)
    await remote.pass(3_000)
    expect(lost).toMatchObject([{ why: 'server-down' }])
  })

  test('unreachable, and in time, if the store throws when it is asked about the outage', async () => {
    const warnings: Error[] = []
    const onWarning = (warning: Error): number => warnings.push(warning)
    process.on('warning', onWarning)
    const outage = (): never => {
      throw new Error('no idea')
    }
    const { remote, lock, lost } = await holder({}, new RemoteMemory({ outage }))
    const { signal } = lock
    remote.fate = (method) => (method === 'renew' ? 'lose' : undefined)
    await remote.pass(3_000)
    process.off('warning', onWarning)
    expect(signal.aborted).toBe(true)
    expect(lost).toMatchObject([{ why: 'unreachable' }])
    expect(warnings.map(({ message }) => message)).toContain('no idea')
  })

  test('without the secrets in what a store reports', async () => {
    const renew = async (): Promise<never[]> => [{ outcome: 'unknown', error: new Error(URL_WITH_PASSWORD) } as never]
    const { remote, lost } = await holder({}, new RemoteMemory({ renew, outage: () => new Error(URL_WITH_PASSWORD) }))
    await remote.pass(3_000)
    const { error, attempts } = lost[0] as LockEvents['lost']
    expect(attempts.at(-1)?.error).toContain('no route to redis://')
    const shown = inspect([error, attempts], { depth: 9, showHidden: true }) + JSON.stringify(lost[0], jsonable)
    expect(shown).not.toContain('hunter2')
  })

  test('expired, if it was not to be renewed', async () => {
    const { remote, lost } = await holder({ autoRenew: false })
    await remote.pass(3_000)
    expect(lost).toMatchObject([{ why: 'expired', attempts: [] }])
  })

  test('expired, if it was not to be renewed, was granted late, and a stall outlasted its time', async () => {
    const remote = new RemoteMemory()
    remote.fate = (method) => (method === 'acquire' ? { replyMs: 1_600 } : undefined)
    const locks = remote.locks()
    const acquiring = locks.acquire('order:7', { ttl: 3_000, autoRenew: false })
    await remote.pass(1_601)
    const lock = await acquiring
    remote.world.block(4_000)
    expect(() => lock.assertHeld()).toThrow(expect.objectContaining({ why: 'expired' }))
  })

  test('expired, if it was not to be renewed and was granted late; and no renewal was sent', async () => {
    const remote = new RemoteMemory()
    remote.fate = (method) => (method === 'acquire' ? { replyMs: 1_600 } : 'lose')
    const locks = remote.locks()
    const lost: LockEvents['lost'][] = []
    locks.on('lost', (facts) => void lost.push(facts))
    const acquiring = locks.acquire('order:7', { ttl: 3_000, autoRenew: false })
    await remote.pass(1_601)
    await acquiring
    await remote.pass(3_000)
    expect(lost).toMatchObject([{ why: 'expired', attempts: [] }])
    expect(remote.calls.map(({ method }) => method)).toEqual(['acquire'])
  })

  test('max-hold, gone or revoked, whatever stalls there were', async () => {
    const { remote, locks, lost } = await holder(
      { maxHold: 2_000 },
      new RemoteMemory({ watchRevoked: undefined } as never),
    )
    await remote.pass(2_000)
    const others = ['gone', 'revoked'].map((name) => locks.acquire(name, { ttl: 3_000 }))
    await remote.pass(1)
    await Promise.all(others)
    remote.world.block(800)
    await locks.forceRelease('revoked')
    remote.real.revoke('lock:shop:gone')
    await remote.pass(1_100)
    expect(lost.map(({ name, why }) => `${name} ${why}`).sort()).toEqual([
      'gone gone',
      'order:7 max-hold',
      'revoked revoked',
    ])
  })

  test('session, with the error, if the connection broke that its lease was bound to; also before the grant was answered', async () => {
    const listeners: ((lease: LeaseId, broken?: unknown) => void)[] = []
    const watchRevoked = (listener: (typeof listeners)[0]): Watch => {
      listeners.push(listener)
      return { ready: true, live: () => true, close: () => {} }
    }
    const { remote, locks, lock, lost } = await holder({}, new RemoteMemory({ watchRevoked }))
    const broken = new Error('connection reset')
    remote.fate = (method) => (method === 'acquire' ? { replyMs: 50 } : undefined)
    const late = locks.acquire('late', { ttl: 3_000 })
    await remote.pass(10)
    const [early] = remote.real.holders('lock:shop:late')
    for (const listener of listeners) listener(early as LeaseId, broken)
    await remote.pass(50)
    expect((await late).isHeld).toBe(false)
    expect(lock.isHeld).toBe(true)
    const [held] = remote.real.holders('lock:shop:order:7')
    for (const listener of listeners) listener(held as LeaseId, broken)
    expect(lock.isHeld).toBe(false)
    expect(lost.map(({ name, why, error }) => [name, why, error.cause])).toEqual([
      ['late', 'session', broken],
      ['order:7', 'session', broken],
    ])
  })

  test('nothing of a stall that ended before the last good renewal is reported', async () => {
    const { remote, lost } = await holder()
    remote.world.block(900)
    await remote.pass(1_500)
    remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
    await remote.pass(5_000)
    expect(lost).toMatchObject([{ why: 'unreachable', stalledMs: 0 }])
  })
})

describe('a lock is at risk', () => {
  test('from the first renewal that fails until one succeeds, and says how much time is left', async () => {
    const { remote, lock, atRisk, lost } = await holder()
    expect(lock.atRisk).toBe(false)
    remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
    await remote.pass(1_500)
    expect(lock.atRisk).toBe(true)
    expect(lock.isHeld).toBe(true)
    expect(atRisk).toMatchObject([{ name: 'order:7', namespace: 'shop', metadata: { job: 'charge' } }])
    expect(atRisk[0]?.remainingMs).toBeCloseTo(3_000 * 0.99 - 2 - 1_000, -2)
    expect(atRisk[0]?.error).toBeInstanceOf(StoreUnavailableError)
    remote.fate = () => undefined
    await remote.pass(600)
    expect(lock.atRisk).toBe(false)
    remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
    await remote.pass(1_200)
    expect(atRisk).toHaveLength(2)
    expect(lost).toEqual([])
  })

  test('when half of its time has passed without an answer, although the call has more time', async () => {
    const { remote, lock, atRisk } = await holder()
    remote.fate = (method) => (method === 'renew' ? { replyMs: 800 } : undefined)
    await remote.pass(1_400)
    expect(lock.atRisk).toBe(false)
    await remote.pass(200)
    expect(lock.atRisk).toBe(true)
    expect(atRisk).toHaveLength(1)
    expect(atRisk[0]?.error).toBeUndefined()
    await remote.pass(500)
    expect(lock.atRisk).toBe(false)
    expect(lock.isHeld).toBe(true)
  })

  test('no more once it is lost or released', async () => {
    const { remote, locks, lock } = await holder()
    remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
    await remote.pass(3_100)
    expect(lock.signal.reason).toBeInstanceOf(LockLostError)
    expect(lock.atRisk).toBe(false)
    const acquiring = locks.acquireAll(['a', 'b'], { ttl: 3_000 })
    await remote.pass(1_100)
    const group = await acquiring
    expect([group.atRisk, group.locks.map((each) => each.atRisk)]).toEqual([true, [true, true]])
    const released = group.release()
    await remote.pass(1)
    await released
    expect([group.atRisk, group.locks.map((each) => each.atRisk)]).toEqual([false, [false, false]])
  })

  test('never, if it is not to be renewed', async () => {
    const { remote, lock, atRisk } = await holder({ autoRenew: false })
    await remote.pass(2_900)
    expect(lock.atRisk).toBe(false)
    expect(atRisk).toEqual([])
  })
})
