/** The conformance kit can fail: each mistake in the SQL is noticed by the case that is there for it. */
import { Pool } from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { driverOf } from '../../../src/clients/postgres/open.js'
import { migrateWith } from '../../../src/stores/postgres/migrate.js'
import type { SqlFiles } from '../../../src/stores/postgres/schema.js'
import { createPostgresStore } from '../../../src/stores/postgres/store.js'
import { type Case, type Setup, runCase, storeCases } from '../../../src/testing/index.js'
import { mutants, mutated } from './mutants.js'

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres({ settings: { synchronous_commit: 'off' } })
})

afterAll(() => server.stop())

async function fixtureOf(files: SqlFiles): Promise<Setup> {
  const pool = new Pool({ connectionString: await server.createDatabase(), max: 6 })
  await migrateWith(driverOf(pool), {}, files)
  return {
    store: async () => createPostgresStore(driverOf(pool), {}, files),
    close: () => pool.end(),
  }
}

/** Why the case fails with this SQL, or undefined. */
async function failure(item: Case, files: SqlFiles, tries: number): Promise<unknown> {
  for (let i = 0; i < tries; i++) {
    try {
      await runCase(item, await fixtureOf(files), 2_000)
    } catch (error) {
      return error
    }
  }
  return undefined
}

const cases = new Map(storeCases().map((item) => [item.name, item]))

test.concurrent.each(mutants)('the conformance kit fails if $what', async (mutant) => {
  const item = cases.get(mutant.caughtBy) as Case
  // A race shows itself sooner or later; everything else at once.
  expect(await failure(item, mutated(mutant), 3)).toBeInstanceOf(Error)
})
