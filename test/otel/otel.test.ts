import { describe, expect, onTestFinished, test } from 'vitest'
import { createLocks, InvalidOptionError, LockTimeoutError, memory } from '../../src/index.js'
import { instrument } from '../../src/otel/index.js'
import { RemoteMemory } from '../core/remote-memory.js'
import { api, startSdk } from './sdk.js'

const KIND = { 'leasehold.store.name': 'memory', 'leasehold.lock.kind': 'lock' }

describe('spans', () => {
  test('acquire and hold stand beside each other below the span of the caller', async () => {
    const sdk = startSdk(onTestFinished)
    const locks = createLocks(memory(), { namespace: 'shop' })
    const caller = api.trace.wrapSpanContext({ traceId: '1'.repeat(32), spanId: '2'.repeat(16), traceFlags: 1 })
    const token = await api.context.with(api.trace.setSpan(api.context.active(), caller), () =>
      locks.withLock('order:7', (lock) => String(lock.fencingToken)),
    )
    const spans = sdk.spans()
    expect(spans.map(({ name }) => name)).toEqual(['acquire lock', 'hold lock'])
    for (const { parentSpanContext, attributes, status } of spans) {
      expect(parentSpanContext?.spanId).toBe('2'.repeat(16))
      expect(attributes).toMatchObject({ ...KIND, 'leasehold.namespace': 'shop', 'leasehold.lock.mode': 'exclusive' })
      expect(attributes).not.toHaveProperty('leasehold.lock.name')
      expect(status.code).toBe(api.SpanStatusCode.UNSET)
    }
    expect(spans[0]?.attributes).toMatchObject({
      'leasehold.outcome': 'granted',
      'leasehold.lock.fencing_token': token,
    })
    expect(spans[1]?.attributes).toMatchObject({
      'leasehold.outcome': 'released',
      'leasehold.lock.fencing_token': token,
    })
  })

  test('the wait is in the span acquire, and not in the span hold', async () => {
    const sdk = startSdk(onTestFinished)
    const locks = createLocks(memory())
    const first = await locks.acquire('a')
    const waiting = locks.acquire('a')
    await new Promise((resolve) => setTimeout(resolve, 60))
    await first.release()
    await (await waiting).release()
    const ms = ([s, ns]: [number, number]): number => s * 1_000 + ns / 1e6
    const [, firstHold, acquire, hold] = sdk.spans()
    expect([firstHold?.name, acquire?.name, hold?.name]).toEqual(['hold lock', 'acquire lock', 'hold lock'])
    expect(ms(acquire?.duration as [number, number])).toBeGreaterThan(45)
    // Times are milliseconds of two clocks: they may differ by one.
    expect(ms(hold?.startTime as [number, number])).toBeGreaterThan(ms(firstHold?.endTime as [number, number]) - 2)
    expect(ms(hold?.startTime as [number, number])).toBeGreaterThan(ms(acquire?.startTime as [number, number]) + 45)
  })

  test('a caller that gave up has the error in its span, a tryAcquire that found it busy has none', async () => {
    const locks = createLocks(memory())
    const held = await locks.acquire('a')
    const sdk = startSdk(onTestFinished)
    await expect(locks.acquire('a', { wait: 0 })).rejects.toBeInstanceOf(LockTimeoutError)
    await locks.tryAcquire('a')
    const [gaveUp, busy] = sdk.spans()
    expect(gaveUp?.status.code).toBe(api.SpanStatusCode.ERROR)
    expect(gaveUp?.attributes).toMatchObject({ 'leasehold.outcome': 'timeout', 'error.type': 'LOCK_TIMEOUT' })
    expect(gaveUp?.events.map(({ name }) => name)).toEqual(['exception'])
    expect(busy?.status.code).toBe(api.SpanStatusCode.UNSET)
    expect(busy?.attributes).toMatchObject({ 'leasehold.outcome': 'busy' })
    await held.release()
  })

  test('a lock that was at risk and lost says so in its span, with why', async () => {
    const sdk = startSdk(onTestFinished)
    const remote = new RemoteMemory()
    const acquiring = remote.locks().acquire('a', { ttl: 3_000 })
    await remote.pass(1)
    const lock = await acquiring
    remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
    await remote.pass(3_000)
    expect(lock.isHeld).toBe(false)
    const hold = sdk.spans().find(({ name }) => name === 'hold lock')
    expect(hold?.status.code).toBe(api.SpanStatusCode.ERROR)
    expect(hold?.attributes).toMatchObject({ 'leasehold.outcome': 'lost', 'leasehold.lost.why': 'unreachable' })
    expect(hold?.events.map(({ name }) => name)).toEqual(['at risk', 'exception'])
  })

  test('a lock whose loss the release finds ends its span as an error, with why', async () => {
    const sdk = startSdk(onTestFinished)
    const store = memory()
    const lock = await createLocks(store).acquire('a')
    // As another process would, without a word to this one.
    await store.release([{ key: 'lock:a', owner: lock.holder, token: lock.fencingToken }])
    expect(await lock.release()).toBe(false)
    const hold = sdk.spans().find(({ name }) => name === 'hold lock')
    expect(hold?.status.code).toBe(api.SpanStatusCode.ERROR)
    expect(hold?.attributes).toMatchObject({ 'leasehold.outcome': 'lost', 'leasehold.lost.why': 'gone' })
  })

  test('several names have one span for their acquisition, with their count, and with names only if asked for', async () => {
    const sdk = startSdk(onTestFinished)
    await createLocks(memory()).withLocks(['b', 'a'], () => {})
    const [acquire, ...holds] = sdk.spans()
    expect([acquire?.name, holds.map(({ name }) => name)]).toEqual(['acquire lock', ['hold lock', 'hold lock']])
    expect(acquire?.attributes).toMatchObject({ ...KIND, 'leasehold.lock.count': 2, 'leasehold.outcome': 'granted' })
    expect(JSON.stringify(acquire?.attributes)).not.toContain('names')
    const named = startSdk(onTestFinished, { lockNames: true })
    await createLocks(memory()).withLocks(['b', 'a'], () => {})
    expect(named.spans()[0]?.attributes).toMatchObject({ 'leasehold.lock.names': ['a', 'b'] })
  })

  test('each name of a group has its span, and the name is an attribute if asked for', async () => {
    const sdk = startSdk(onTestFinished, { lockNames: true })
    await createLocks(memory()).withLocks(['a', 'b'], () => {})
    const names = sdk
      .spans()
      .filter(({ name }) => name === 'hold lock')
      .map(({ attributes }) => attributes['leasehold.lock.name'])
    expect(names).toEqual(['a', 'b'])
  })
})

describe('metrics', () => {
  test('count waits, holds and calls to the store, without the names of locks', async () => {
    const sdk = startSdk(onTestFinished)
    const locks = createLocks(memory())
    for (let i = 0; i < 3; i++) await locks.withLock(`order:${i}`, () => {})
    expect(await sdk.points('leasehold.lock.wait.duration')).toMatchObject([
      { attributes: { ...KIND, 'leasehold.outcome': 'granted' }, value: { count: 3 } },
    ])
    expect(await sdk.points('leasehold.lock.hold.duration')).toMatchObject([
      { attributes: { ...KIND, 'leasehold.outcome': 'released' }, value: { count: 3 } },
    ])
    const calls = await sdk.points('leasehold.store.call.duration')
    expect(calls.map(({ attributes }) => attributes['leasehold.store.call'])).toEqual(['acquire', 'release'])
    expect(calls).toMatchObject([{ value: { count: 3 } }, { value: { count: 3 } }])
    expect(await sdk.prometheus()).not.toContain('order:')
  })

  test('tell how many wait and how many are held now', async () => {
    const sdk = startSdk(onTestFinished)
    const locks = createLocks(memory())
    const held = await locks.acquire('a')
    const waiting = [locks.acquire('a'), locks.acquire('a')]
    expect(await sdk.points('leasehold.lock.waiting')).toEqual([{ attributes: KIND, value: 2 }])
    expect(await sdk.points('leasehold.lock.held')).toEqual([{ attributes: KIND, value: 1 }])
    await held.release()
    for (const lock of waiting) await (await lock).release()
    expect(await sdk.points('leasehold.lock.waiting')).toEqual([{ attributes: KIND, value: 0 }])
    expect(await sdk.points('leasehold.lock.held')).toEqual([{ attributes: KIND, value: 0 }])
  })

  test('count losses by why, timeouts, and renewals by outcome', async () => {
    const sdk = startSdk(onTestFinished)
    const remote = new RemoteMemory()
    const locks = remote.locks()
    const acquiring = locks.acquire('a', { ttl: 3_000 })
    await remote.pass(1)
    await acquiring
    const busy = locks.acquire('a', { wait: 100 }).catch((error: unknown) => error)
    await remote.pass(1_100)
    expect(await busy).toBeInstanceOf(LockTimeoutError)
    remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
    await remote.pass(4_000)
    const store = { ...KIND, 'leasehold.store.name': 'remote' }
    expect(await sdk.points('leasehold.lock.timeouts')).toEqual([{ attributes: store, value: 1 }])
    expect(await sdk.points('leasehold.lock.lost')).toEqual([
      { attributes: { ...store, 'leasehold.lost.why': 'unreachable' }, value: 1 },
    ])
    const renewals = await sdk.points('leasehold.lock.renewals')
    expect(renewals.map(({ attributes }) => attributes['leasehold.outcome'])).toEqual(['renewed', 'failed'])
    const failed = (await sdk.points('leasehold.store.call.duration')).find(
      ({ attributes }) => attributes['leasehold.outcome'] === 'failed',
    )
    expect(failed?.attributes).toMatchObject({ 'leasehold.store.call': 'renew', 'error.type': 'STORE_UNAVAILABLE' })
  })

  test('forget a name that nobody waits for or holds any more', async () => {
    const sdk = startSdk(onTestFinished, { lockNames: true })
    const locks = createLocks(memory())
    await locks.withLock('a', () => {})
    const held = await locks.acquire('b')
    expect(await sdk.points('leasehold.lock.held')).toEqual([
      { attributes: { ...KIND, 'leasehold.lock.name': 'b' }, value: 1 },
    ])
    await held.release()
  })
})

describe('instrument()', () => {
  test('reports nothing more once it was stopped', async () => {
    const sdk = startSdk(onTestFinished)
    const locks = createLocks(memory())
    const held = await locks.acquire('a')
    sdk.stop()
    await held.release()
    await locks.withLock('b', () => {})
    expect(sdk.spans().map(({ name }) => name)).toEqual(['acquire lock'])
  })

  test('leaves out spans or metrics', async () => {
    const sdk = startSdk(onTestFinished, { spans: false })
    const other = startSdk(onTestFinished, { metrics: false })
    await createLocks(memory()).withLock('a', () => {})
    expect(sdk.spans()).toEqual([])
    expect(await sdk.points('leasehold.lock.wait.duration')).toHaveLength(1)
    expect(other.spans()).toHaveLength(2)
    await expect(other.points('leasehold.lock.wait.duration')).rejects.toThrow('no metric')
  })

  test('refuses what is not the API, and unknown options', () => {
    expect(() => instrument({} as never)).toThrow(InvalidOptionError)
    expect(() => instrument(undefined as never)).toThrow(/import \* as api from '@opentelemetry\/api'/)
    expect(() => instrument(api, { lockName: true } as never)).toThrow(/did you mean "lockNames"/)
    expect(() => instrument(api, { spans: 'yes' as never })).toThrow(InvalidOptionError)
  })
})
