import { afterAll, beforeAll, describe, test } from 'vitest'
import { startSentinel } from '../../../testbed/servers/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'
import { sentinelOf, setup } from '../../../testbed/redis/fixtures.js'

/** NOBODY_DIES_MS: longer than a busy machine stops. A fail-over would lose what was not replicated yet. */
const NOBODY_DIES_MS = 60_000

const runner = {
  describe: describe.concurrent,
  test: test.concurrent,
  beforeAll,
  afterAll,
  cases: [...storeCases(), ...coreCases()],
}

conformance({
  ...runner,
  name: 'ioredis 6, through Sentinel',
  async open() {
    const sentinel = await startSentinel({ downAfterMs: NOBODY_DIES_MS })
    return setup(
      () => sentinelOf.ioredis6(sentinel),
      () => sentinel.stop(),
    )
  },
})

conformance({
  ...runner,
  name: 'node-redis, through Sentinel',
  async open() {
    const sentinel = await startSentinel({ downAfterMs: NOBODY_DIES_MS })
    return setup(
      () => sentinelOf.nodeRedis(sentinel),
      () => sentinel.stop(),
    )
  },
})
