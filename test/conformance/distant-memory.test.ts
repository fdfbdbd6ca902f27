/**
 * The reference store a few milliseconds away, each client by itself: what the core does with stores that answer later,
 * without a server's own noise.
 */
import { afterAll, beforeAll, describe, test } from 'vitest'
import { memory } from '../../src/stores/memory/index.js'
import { conformance, coreCases, faulty, storeCases } from '../../src/testing/index.js'

conformance({
  name: 'memory, a few milliseconds away',
  open: async () => {
    const place = memory()
    const faults = [
      { effect: 'delay-call', ms: 1, chance: 0.5 },
      { effect: 'delay-reply', ms: 2 },
      { effect: 'delay-event', ms: 2 },
    ] as const
    return { store: async () => faulty(place, faults), close: async () => {} }
  },
  cases: [...storeCases(), ...coreCases()],
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
})
