/** What people see: errors, console.log, events, listings. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { inspect } from 'node:util'
import { expect, onTestFinished, test } from 'vitest'
import { startChild } from '../../testbed/children.js'
import { startStopwatch } from '../../testbed/running-time.js'
import { faulty } from '../../src/testing/index.js'
import { createLocks, type LockFacts, LockTimeoutError, memory, openLocks, openStore } from '../../src/index.js'

async function failing<T>(call: Promise<T>): Promise<LockTimeoutError> {
  return call.then(
    () => expect.fail('it was granted'),
    (error: unknown) => error as LockTimeoutError,
  )
}

test.each(['memory:', 'sqlite:'])('a LockTimeoutError has the frames of its caller (%s)', async (scheme) => {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-frames-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  const locks = await openLocks(scheme === 'memory:' ? scheme : `sqlite:${join(folder, 'locks.db')}`)
  const held = await locks.acquire('a')
  const others: Record<string, () => Promise<unknown>> = {
    theFunctionThatAcquires: async () => await locks.acquire('a', { wait: 20 }),
    theFunctionThatTriesOnce: async () => await locks.acquire('a', { wait: 0 }),
    theFunctionWithALock: async () => await locks.withLock('a', () => {}, { wait: 20 }),
    theFunctionThatReads: async () => await locks.readWrite('a').read(() => {}, { wait: 20 }),
    theFunctionWithSeveral: async () => await locks.withLocks(['a', 'b'], () => {}, { wait: 20 }),
  }
  for (const [name, call] of Object.entries(others)) {
    const error = await failing(call())
    expect(error).toBeInstanceOf(LockTimeoutError)
    expect(error.stack).toMatch(/^LockTimeoutError: "a" stayed busy/)
    expect(error.stack).toContain(name)
  }
  await held.release()
  await locks.close()
})

test('console.log shows the state of a lock, of locks and of a store', async () => {
  const locks = createLocks(memory(), { namespace: 'shop' })
  const lock = await locks.acquire('a')
  const waiting = locks.acquire('a')
  expect(inspect(lock)).toMatch(/^Lock \{\s+name: 'a',\s+mode: 'exclusive',\s+isHeld: true,\s+remainingMs: \d+,/)
  expect(inspect(locks)).toMatch(
    /^Locks \{\s+store: 'memory',\s+namespace: 'shop',\s+held: \[ 'a' \],\s+waiting: \[ 'a' \],/,
  )
  expect(inspect(memory())).toContain("name: 'memory'")
  await lock.release()
  await (await waiting).release()
  expect(inspect(lock)).toContain('isHeld: false')
  await locks.close()
  expect(inspect(locks)).toContain('closed: true')
})

test('the weight of an exclusive holder is not shown as a large number', async () => {
  const locks = createLocks(memory())
  await locks.acquire('a')
  await locks.semaphore('s', 3).acquire({ weight: 2 })
  expect(
    JSON.stringify((await locks.inspect('a')).holders, (_, value) => (typeof value === 'bigint' ? '' : value)),
  ).not.toContain('weight')
  expect((await locks.inspect('s', { kind: 'semaphore' })).holders[0]?.weight).toBe(2)
})

test('events carry the metadata of the lock and the namespace of the instance', async () => {
  const locks = createLocks(memory(), { namespace: 'shop' })
  const told: Record<string, Partial<LockFacts>> = {}
  locks.on('acquired', (facts) => (told['acquired'] = facts))
  locks.on('released', (facts) => (told['released'] = facts))
  locks.on('timeout', (facts) => (told['timeout'] = facts))
  const lock = await locks.acquire('a', { metadata: { job: 'charge' } })
  await failing(locks.acquire('a', { wait: 0, metadata: { job: 'refund' } }))
  await lock.release()
  expect(told['acquired']).toMatchObject({ name: 'a', namespace: 'shop', metadata: { job: 'charge' } })
  expect(told['released']).toMatchObject({ name: 'a', namespace: 'shop', metadata: { job: 'charge' } })
  expect(told['timeout']).toMatchObject({ name: 'a', namespace: 'shop', metadata: { job: 'refund' } })
})

test('a timeout after a wait and an error carry the name and the metadata of the request', async () => {
  const store = faulty(memory())
  const locks = createLocks(store, { namespace: 'shop' })
  const told: unknown[] = []
  locks.on('timeout', (facts) => told.push(facts))
  locks.on('error', (facts) => told.push(facts))
  await locks.acquire('a')
  await failing(locks.acquire('a', { wait: 20, metadata: { job: 'refund' } }))
  store.inject({ effect: 'break-call', on: 'acquire' })
  await failing(locks.acquire('b', { wait: 50, metadata: { job: 'charge' } }))
  const common = { namespace: 'shop', kind: 'lock' }
  expect(told[0]).toMatchObject({ ...common, name: 'a', metadata: { job: 'refund' } })
  expect(told[1]).toMatchObject({ ...common, name: 'b', doing: 'acquire', metadata: { job: 'charge' } })
})

test('the record of a run is no metadata in events', async () => {
  const locks = createLocks(memory())
  const told: unknown[] = []
  locks.on('acquired', ({ metadata }) => told.push(metadata))
  locks.on('timeout', ({ metadata }) => told.push(metadata))
  let finish = (): void => {}
  const run = locks.runOnce('c', () => new Promise<void>((resolve) => (finish = resolve)))
  await failing(locks.runOnce('c', () => {}, { wait: 0 }))
  finish()
  await run
  expect(told).toEqual([undefined, undefined])
})

test('a bare number below 100 as a ttl warns once, because most callers mean seconds', async () => {
  const child = startChild<string[]>(new URL('./bare-ttl.child.ts', import.meta.url))
  const warnings = await child.next()
  expect(await child.ended).toBe(0)
  expect(warnings).toEqual([expect.stringContaining('ttl: 30 means 30 milliseconds')])
  expect(warnings[0]).toContain("Write '30s' for seconds, or '30ms'")
})

test.each([
  'redis://127.0.0.1:1',
  'redlock://127.0.0.1:1,127.0.0.1:1,127.0.0.1:1',
  'postgres://127.0.0.1:1/x',
  'postgres+advisory://127.0.0.1:1/x',
  'etcd://127.0.0.1:1',
])('an outage of %s is reported with code and address within any wait', async (url) => {
  for (const wait of [250, 700, 2_000]) {
    const locks = await openLocks(url)
    const began = performance.now()
    const watch = startStopwatch()
    const error = await failing(locks.acquire('a', { wait }))
    const [took, ran] = [performance.now() - began, watch.ms()]
    await locks.close({ grace: 0 })
    expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE' })
    expect(error.message).toContain('ECONNREFUSED 127.0.0.1:1')
    expect(took).toBeGreaterThanOrEqual(wait - 2)
    expect(ran).toBeLessThan(wait + 400)
    // A request that could not be sent has nothing to undo, so no time is spent on that.
    expect(watch.ms()).toBeLessThan(wait + 1_500)
    watch.stop()
  }
})

test('an error of a host with several addresses says which of them refused', async () => {
  const store = await openStore('redis://localhost:1')
  const locks = createLocks(store)
  const error = await failing(locks.acquire('a', { wait: 300 }))
  expect(error.message).toMatch(/ECONNREFUSED (127\.0\.0\.1|::1):1/)
  await locks.close({ grace: 0 })
  await store.close()
})
