import { afterAll, beforeAll, describe, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'
import { type Library, fixtureAt } from '../../../testbed/postgres/fixture.js'

let server: PostgresServer

beforeAll(async () => {
  // What a crash would lose is asked elsewhere; here a busy disk would only make short leases run out.
  server = await startPostgres({ settings: { synchronous_commit: 'off' } })
})

afterAll(() => server.stop())

for (const library of ['pg', 'postgres.js'] as Library[]) {
  conformance({
    name: `postgres with ${library}`,
    open: async () => fixtureAt(library, await server.createDatabase()),
    lacks: ['watchGrants'],
    cases: [...storeCases(), ...coreCases()],
    describe: describe.concurrent,
    test: test.concurrent,
    beforeAll,
    afterAll,
  })
}
