import { afterAll, beforeAll } from 'vitest'
import { startPostgres } from '../../testbed/servers/index.js'
import { oracle } from './suite.js'

let server: Awaited<ReturnType<typeof startPostgres>>
beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

oracle('postgres+advisory', () => server.url.replace('postgres:', 'postgres+advisory:'), ['kill', 'shared', 'freeze'])
