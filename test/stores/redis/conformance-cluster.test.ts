import { afterAll, beforeAll, describe, test } from 'vitest'
import { startRedisCluster } from '../../../testbed/servers/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'
import { clusterOf, setup } from '../../../testbed/redis/fixtures.js'

/** NOBODY_DIES_MS: longer than a busy machine stops. A fail-over would lose what was not replicated yet. */
const NOBODY_DIES_MS = 60_000

const runner = {
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
  cases: [...storeCases(), ...coreCases()],
}

conformance({
  ...runner,
  name: 'ioredis 6, a cluster of three masters with replicas',
  async open() {
    const cluster = await startRedisCluster({ nodeTimeoutMs: NOBODY_DIES_MS })
    return setup(
      () => clusterOf.ioredis6(cluster),
      () => cluster.stop(),
    )
  },
})

conformance({
  ...runner,
  name: 'node-redis, a cluster of three masters with replicas',
  async open() {
    const cluster = await startRedisCluster({ nodeTimeoutMs: NOBODY_DIES_MS })
    return setup(
      () => clusterOf.nodeRedis(cluster),
      () => cluster.stop(),
    )
  },
})
