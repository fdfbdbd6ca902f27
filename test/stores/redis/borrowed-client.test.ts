/** A client that several stores borrow, and that outlives them. */
import type { EventEmitter } from 'node:events'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import { createLocks } from '../../../src/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import { ioredis, nodeRedis } from '../../../testbed/redis/fixtures.js'

let server: RedisServer
beforeAll(async () => {
  server = await startRedis()
})
afterAll(() => server.stop())

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean()
})

const clients = {
  'ioredis 6': async () => ioredis[6](server.url),
  'ioredis 5': async () => ioredis[5](server.url),
  'node-redis': async () => nodeRedis(server.url),
}

const EVENTS = ['ready', 'end', 'error', 'connect', 'close', 'reconnecting']

describe.each(Object.entries(clients))('%s', (_name, connect) => {
  test('twelve stores on one client listen to it once, also if only their locks were closed', async () => {
    const { client, end } = await connect()
    cleanups.push(end)
    const listeners = (): number[] => EVENTS.map((event) => (client as unknown as EventEmitter).listenerCount(event))
    const warnings: Error[] = []
    const note = (warning: Error): void => void warnings.push(warning)
    process.on('warning', note)
    cleanups.push(() => process.off('warning', note))
    const before = listeners()
    const stores = []
    let withOne: number[] | undefined
    for (let i = 0; i < 12; i++) {
      const store = redis(client, { prefix: `p${i}:` })
      const locks = createLocks(store)
      await (await locks.acquire('a')).release()
      await locks.close()
      stores.push(store)
      withOne ??= listeners()
      expect(listeners()).toEqual(withOne)
    }
    for (const store of stores) await store.close()
    expect(listeners()).toEqual(before)
    expect(warnings.filter(({ name }) => name === 'MaxListenersExceededWarning')).toEqual([])
    // A client that nobody used any more can be used again.
    const again = redis(client)
    cleanups.push(() => again.close())
    expect(await again.now?.()).toBeGreaterThan(0)
  })
})
