import pg from 'pg'
import { afterAll, beforeAll, describe, test } from 'vitest'
import { startPostgres } from '../../../scripts/servers/index.js'
import { advisory } from '../../../src/stores/postgres-advisory/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'

conformance({
  name: 'postgres-advisory',
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
  cases: [...storeCases(), ...coreCases()],
  lacks: ['line', 'handoff', 'counting', 'values', 'watch', 'take', 'owners'],
  except: {
    'all or none that is asked again by the same owners gets the same grants':
      'an owner is known to its own client only',
    'all or none completes what its owner already holds in part': 'an owner is known to its own client only',
    'when the store doubts, every lease is renewed at once, and one that is gone is lost':
      'another client cannot release it',
    'a hundred locks are renewed together, not one by one':
      'claims that wait travel alone, and are batched by the store',
  },
  async open() {
    const server = await startPostgres()
    const pool = new pg.Pool({ connectionString: server.url })
    return {
      store: async () => advisory(pool),
      close: async () => {
        await pool.end()
        await server.stop()
      },
    }
  },
})
