/** A master, two replicas and three sentinels: the master changes while locks are held and awaited. */
import { afterEach, describe, expect, test } from 'vitest'
import { type SentinelSetup, startSentinel } from '../../../testbed/servers/index.js'
import { createLocks } from '../../../src/index.js'
import type { Store } from '../../../src/store.js'
import { redis } from '../../../src/stores/redis/index.js'
import { open } from '../../../src/stores/redis/open.js'
import { type Connection, eventually, sentinelOf } from '../../../testbed/redis/fixtures.js'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean()
})

async function sentinels(): Promise<SentinelSetup> {
  // Nobody dies here. A second fail-over, because a busy machine was slow to answer, could lose what the first did not.
  const setup = await startSentinel({ downAfterMs: 15_000 })
  cleanups.push(() => setup.stop())
  return setup
}

function on(connection: Connection): Store {
  cleanups.push(connection.end)
  const store = redis(connection.client)
  cleanups.push(() => store.close())
  return store
}

const clients = {
  'ioredis 6': async (setup: SentinelSetup) => sentinelOf.ioredis6(setup),
  'node-redis': async (setup: SentinelSetup) => sentinelOf.nodeRedis(setup),
}

describe.each(Object.entries(clients))('%s', (_name, connect) => {
  test('replicated locks stay held over a failover, waiters are served, tokens grow', async () => {
    const setup = await sentinels()
    const [a, b] = [on(await connect(setup)), on(await connect(setup))]
    const [locks, others] = [createLocks(a), createLocks(b)]
    const lock = await locks.acquire('job', { ttl: '30s' })
    const waiting = others.acquire('job', { wait: '60s' })
    await expect.poll(async () => (await locks.waiters('job')).length).toBe(1)
    await expect.poll(() => setup.master.command('WAIT', '2', '2000')).toBe(2)
    await setup.sentinels[0]?.command('SENTINEL', 'FAILOVER', setup.masterName)
    const masterPort = (): Promise<number> =>
      setup.currentMaster().then(
        ({ port }) => port,
        () => setup.master.port,
      )
    await expect.poll(masterPort).not.toBe(setup.master.port)
    const elected = await masterPort()
    // Through the outage the lock is trusted as long as its time lasts, and then it is confirmed.
    await eventually(() => lock.extend('30s'), 20_000)
    expect(await masterPort()).toBe(elected)
    expect(lock.isHeld).toBe(true)
    expect(await lock.release()).toBe(true)
    const successor = await waiting
    expect(successor.fencingToken).toBeGreaterThan(lock.fencingToken)
    await successor.release()
    // A wake-up goes through the new master.
    const second = await locks.acquire('job')
    const next = others.acquire('job', { wait: '30s' })
    await expect.poll(async () => (await locks.waiters('job')).length).toBe(1)
    await second.release()
    expect((await next).fencingToken).toBeGreaterThan(second.fencingToken)
    await locks.close()
    await others.close()
  })
})

test('redis+sentinel:// opens a store on the current master', async () => {
  const setup = await sentinels()
  const store = await open(setup.url)
  cleanups.push(() => store.close())
  const locks = createLocks(store)
  const lock = await locks.acquire('job')
  expect(await setup.master.command('GET', 'lock:job')).toBe(lock.holder)
  expect(await lock.release()).toBe(true)
})
