import { afterAll, beforeAll, describe, test } from 'vitest'
import { memory } from '../../src/stores/memory/index.js'
import { conformance, coreCases, storeCases } from '../../src/testing/index.js'

conformance({
  name: 'memory',
  open: async () => {
    const place = memory()
    return { store: async () => place, close: async () => {} }
  },
  lacks: ['watchGrants'],
  cases: [...storeCases(), ...coreCases()],
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
})
