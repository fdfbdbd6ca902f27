import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, test } from 'vitest'
import { sqlite } from '../../../src/stores/sqlite/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'

conformance({
  name: 'sqlite',
  open: async () => {
    const directory = await mkdtemp(join(tmpdir(), 'leasehold-sqlite-'))
    return {
      store: async () => sqlite(join(directory, 'locks.db')),
      close: () => rm(directory, { recursive: true }),
    }
  },
  lacks: ['watchGrants'],
  cases: [...storeCases(), ...coreCases()],
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
})
