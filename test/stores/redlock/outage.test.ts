import { afterAll, beforeAll, expect, test } from 'vitest'
import { Servers } from './servers.js'

let servers: Servers

beforeAll(async () => {
  servers = await Servers.start(3)
})
afterAll(() => servers.stop())

test('outage() names the servers that are down once no majority is left, and nothing before', async () => {
  const clients = servers.ioredis({ retryStrategy: () => 50 })
  const store = servers.store({}, clients)
  await store.now?.()
  expect(store.outage?.()).toBeUndefined()
  const refused = async (i: number): Promise<void> => {
    const told = new Promise((resolve) => clients[i]?.once('error', resolve))
    await servers.all[i]?.kill()
    await told
  }
  await refused(0)
  expect(store.outage?.()).toBeUndefined()
  await refused(1)
  const [first, second, third] = servers.ports
  const message = String(store.outage?.())
  expect(message).toContain(`${first} `)
  expect(message).toContain(`${second} `)
  expect(message).toContain('ECONNREFUSED')
  expect(message).not.toContain(third)
})
