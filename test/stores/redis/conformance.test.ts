import { afterAll, beforeAll, describe, test } from 'vitest'
import { startRedis } from '../../../testbed/servers/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'
import { makeUser } from '../../../testbed/redis/acl.js'
import { ioredis, nodeRedis, setup } from '../../../testbed/redis/fixtures.js'

const runner = { describe: describe.concurrent, test: test.concurrent, beforeAll, afterAll }

conformance({
  ...runner,
  name: 'ioredis 6, one server',
  cases: [...storeCases(), ...coreCases()],
  async open() {
    const server = await startRedis()
    return setup(
      () => ioredis[6](server.url),
      () => server.stop(),
    )
  },
})

conformance({
  ...runner,
  name: 'ioredis 5, database 3, key prefixes of client and store, a user who may touch nothing else',
  async open() {
    const server = await startRedis()
    const user = await makeUser(server, ['app:*'], ['app:*'])
    return setup(
      () => ioredis[5](`redis://${user}@127.0.0.1:${server.port}/3`, { keyPrefix: 'app:' }),
      () => server.stop(),
      { prefix: 'locks:' },
    )
  },
})

conformance({
  ...runner,
  name: 'node-redis over TLS with a key prefix, a user who may do nothing but lock',
  async open() {
    const server = await startRedis({ tls: true })
    const kinds = ['lock:*', 'semaphore:*', 'election:*', 'once:*', 'run-once:*', 'leasehold:*'].map(
      (pattern) => `app:${pattern}`,
    )
    const user = await makeUser(server, kinds, ['app:leasehold:*'])
    const url = `rediss://${user}@127.0.0.1:${server.port}`
    return setup(
      () => nodeRedis(url, { socket: { tls: true, ca: server.ca }, keyPrefix: 'app:' }),
      () => server.stop(),
    )
  },
})
