import { afterAll, beforeAll, describe, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../scripts/servers/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'
import { type Library, placeAt } from './place.js'

let server: PostgresServer

beforeAll(async () => {
  // What a crash would lose is asked elsewhere; here a busy disk would only make short leases run out.
  server = await startPostgres({ settings: { synchronous_commit: 'off' } })
})

afterAll(() => server.stop())

for (const library of ['pg', 'postgres.js'] as Library[]) {
  conformance({
    name: `postgres with ${library}`,
    open: async () => placeAt(library, await server.createDatabase()),
    cases: [...storeCases(), ...coreCases()],
    describe,
    test: test.concurrent,
    beforeAll,
    afterAll,
  })
}
