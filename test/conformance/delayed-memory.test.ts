/**
 * The reference store behind a delay of a few milliseconds, one delay per client. Covers how the core treats stores
 * that answer later, without the noise of a server.
 */
import { afterAll, beforeAll, describe, test } from 'vitest'
import { memory } from '../../src/stores/memory/index.js'
import { conformance, coreCases, faulty, storeCases } from '../../src/testing/index.js'

conformance({
  name: 'memory behind a delay',
  open: async () => {
    const place = memory()
    const faults = [
      { effect: 'delay-call', ms: 1, chance: 0.5 },
      { effect: 'delay-reply', ms: 2 },
      { effect: 'delay-event', ms: 2 },
    ] as const
    return { store: async () => faulty(place, faults), close: async () => {} }
  },
  lacks: ['watchGrants'],
  cases: [...storeCases(), ...coreCases()],
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
})
