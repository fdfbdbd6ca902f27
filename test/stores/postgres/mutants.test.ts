/** The suite can fail: SQL with one mistake each is noticed, by a case that is there for that mistake. */
import { Pool } from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../scripts/servers/index.js'
import { databaseOf } from '../../../src/stores/postgres/database.js'
import { migrateDatabase, type Sources } from '../../../src/stores/postgres/migrate.js'
import { createPostgresStore } from '../../../src/stores/postgres/store.js'
import { type Case, type Setup, runCase, storeCases } from '../../../src/testing/index.js'
import { mutants, mutated } from './mutants.js'

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres({ settings: { synchronous_commit: 'off' } })
})

afterAll(() => server.stop())

async function placeOf(files: Sources): Promise<Setup> {
  const pool = new Pool({ connectionString: await server.createDatabase(), max: 6 })
  await migrateDatabase(databaseOf(pool), {}, files)
  return {
    store: async () => createPostgresStore(databaseOf(pool), {}, files),
    close: () => pool.end(),
  }
}

/** Why the case fails with this SQL, or undefined. */
async function failure(item: Case, files: Sources, tries: number): Promise<unknown> {
  for (let i = 0; i < tries; i++) {
    try {
      await runCase(item, await placeOf(files), 2_000)
    } catch (error) {
      return error
    }
  }
  return undefined
}

const cases = new Map(storeCases().map((item) => [item.name, item]))

test.concurrent.each(mutants)('it is noticed when $what', async (mutant) => {
  const item = cases.get(mutant.caughtBy) as Case
  // A race shows itself sooner or later; everything else at once.
  expect(await failure(item, mutated(mutant), 3)).toBeInstanceOf(Error)
})
