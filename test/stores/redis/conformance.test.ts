import { afterAll, beforeAll, describe, test } from 'vitest'
import { startRedis } from '../../../scripts/servers/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'
import { ioredis, nodeRedis, setup } from './places.js'

const runner = {
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
  cases: [...storeCases(), ...coreCases()],
}

conformance({
  ...runner,
  name: 'ioredis 6, one server',
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
  name: 'ioredis 5, one server, with key prefixes of the client and of the store',
  async open() {
    const server = await startRedis()
    return setup(
      () => ioredis[5](server.url, { keyPrefix: 'app:' }),
      () => server.stop(),
      { prefix: 'locks:' },
    )
  },
})

conformance({
  ...runner,
  name: 'node-redis, one server',
  async open() {
    const server = await startRedis()
    return setup(
      () => nodeRedis(server.url),
      () => server.stop(),
    )
  },
})
