/** What people see: errors, console.log, events, listings. */
import { inspect } from 'node:util'
import { expect, test } from 'vitest'
import { startChild } from '../../scripts/support/children.js'
import { createLocks, type LockFacts, LockTimeoutError, memory, openLocks, openStore } from '../../src/index.js'

async function failing<T>(call: Promise<T>): Promise<LockTimeoutError> {
  return call.then(
    () => expect.fail('it was granted'),
    (error: unknown) => error as LockTimeoutError,
  )
}

test.each(['memory:', 'sqlite:/tmp/leasehold-shown.db'])(
  'a LockTimeoutError has the frames of its caller (%s)',
  async (url) => {
    const locks = await openLocks(url)
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
  },
)

test('console.log shows what matters of a lock, of locks and of a store', async () => {
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

test('the weight of whoever holds everything is not shown as a large number', async () => {
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
  await failing(locks.acquire('a', { wait: 0 }))
  await lock.release()
  expect(told['acquired']).toMatchObject({ name: 'a', namespace: 'shop', metadata: { job: 'charge' } })
  expect(told['released']).toMatchObject({ name: 'a', namespace: 'shop', metadata: { job: 'charge' } })
  expect(told['timeout']).toMatchObject({ name: 'a', namespace: 'shop' })
})

test('a bare number below 100 as a ttl warns once, because most people mean seconds', async () => {
  const child = startChild<string[]>(new URL('./seconds.child.ts', import.meta.url))
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
])('an outage of %s is told with code and address within any wait', async (url) => {
  for (const wait of [100, 700, 2_000]) {
    const locks = await openLocks(url)
    const began = performance.now()
    const error = await failing(locks.acquire('a', { wait }))
    const took = performance.now() - began
    await locks.close({ grace: 0 })
    expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE' })
    expect(error.message).toContain('ECONNREFUSED 127.0.0.1:1')
    expect(took).toBeGreaterThanOrEqual(wait - 2)
    expect(took).toBeLessThan(wait + 400)
    // What could never be sent need not be taken back for seconds.
    expect(performance.now() - began).toBeLessThan(wait + 1_500)
  }
})

test('a host with several addresses says which of them refused', async () => {
  const store = await openStore('redis://localhost:1')
  const locks = createLocks(store)
  const error = await failing(locks.acquire('a', { wait: 300 }))
  expect(error.message).toMatch(/ECONNREFUSED (127\.0\.0\.1|::1):1/)
  await locks.close({ grace: 0 })
  await store.close()
})
