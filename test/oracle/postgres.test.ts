import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { afterAll, beforeAll } from 'vitest'
import { startPostgres } from '../../testbed/servers/index.js'
import { oracle } from './suite.js'

let server: Awaited<ReturnType<typeof startPostgres>>
beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

/** A database with the SQL of these sources, because the mutation is in the SQL. */
async function urlFor(source: string): Promise<string> {
  const url = await server.createDatabase()
  const module = pathToFileURL(join(source, 'stores/postgres/index.ts')).href
  const { migrate } = (await import(module)) as typeof import('../../src/stores/postgres/index.js')
  const pool = new pg.Pool({ connectionString: url })
  await migrate(pool)
  await pool.end()
  return url
}

oracle('postgres', urlFor, ['kill', 'shared', 'freeze'])
