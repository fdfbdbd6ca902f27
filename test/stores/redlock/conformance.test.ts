import { afterAll, beforeAll, describe, test } from 'vitest'
import type { RedisServer } from '../../../testbed/servers/index.js'
import type { Duration } from '../../../src/util/duration.js'
import type { Setup } from '../../../src/testing/index.js'
import { conformance, coreCases, type Need, storeCases } from '../../../src/testing/index.js'
import { Servers } from './servers.js'

// Every attempt has an owner of its own, so an owner that asks again from another client is another owner.
const lacks: Need[] = ['queue', 'counting', 'atomic', 'watchGrants', 'take', 'handoff', 'owners']
const runner = { describe, test: test.concurrent, beforeAll, afterAll }

/** `nodeTimeout`: all cases run at once, each with clients of its own, and keep a small machine busy for longer than the default. */
async function setup(nodeTimeout: Duration, prepare: (servers: Servers) => Promise<void>): Promise<Setup> {
  const servers = await Servers.start(5)
  await prepare(servers)
  let clients = 0
  return {
    store: async () => servers.store({ nodeTimeout }, clients++ % 2 ? servers.mixed() : servers.ioredis()),
    close: () => servers.stop(),
  }
}

conformance({
  name: 'redlock on five servers',
  open: () => setup('5s', async () => {}),
  lacks,
  cases: [...storeCases(), ...coreCases()],
  ...runner,
})

conformance({
  name: 'redlock with one of five servers frozen',
  open: () =>
    setup('2s', async (servers) => {
      const founder = servers.store()
      await founder.release([{ key: 'lock:x', owner: 'x' }])
      await founder.acquire([{ key: 'lock:x', owner: 'x', weight: 1, capacity: 2 ** 31 - 1, ttlMs: 1_000 }])
      await (servers.all[2] as RedisServer).freeze()
    }),
  lacks,
  ...runner,
})
