import pg from 'pg'
import { afterAll, beforeAll, describe, test } from 'vitest'
import { startPostgres } from '../../../testbed/servers/index.js'
import { advisory } from '../../../src/stores/postgres-advisory/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'

conformance({
  name: 'postgres-advisory',
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
  cases: [...storeCases(), ...coreCases()],
  lacks: ['queue', 'handoff', 'counting', 'values', 'watch', 'watchGrants', 'take', 'owners'],
  except: {
    'an atomic batch that the same owners send again returns the same grants':
      'an owner is known to its own client only',
    'an atomic batch completes what its owner already holds in part': 'an owner is known to its own client only',
    'a possible loss renews every lease at once, and a lease that is gone is lost': 'another client cannot release it',
    'a hundred locks are renewed together, not one by one':
      'claims that wait travel alone, and are batched by the store',
  },
  async open() {
    const server = await startPostgres()
    const pool = new pg.Pool({ connectionString: server.url })
    return {
      store: async () => advisory(pool, { timeout: '20s' }),
      close: async () => {
        await pool.end()
        await server.stop()
      },
    }
  },
})
