import { afterAll, beforeAll, describe, test } from 'vitest'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'
import { Servers } from './servers.js'

conformance({
  name: 'redlock on five servers',
  open: async () => {
    const servers = await Servers.start(5)
    let clients = 0
    return {
      store: async () => servers.store({}, clients++ % 2 ? servers.mixed() : servers.ioredis()),
      close: () => servers.stop(),
    }
  },
  // Every attempt has an owner of its own, so an owner who asks again from another client is another.
  lacks: ['line', 'counting', 'atomic', 'take', 'handoff', 'owners'],
  cases: [...storeCases(), ...coreCases()],
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
})
