import { afterAll, beforeAll } from 'vitest'
import { startRedis } from '../../testbed/servers/index.js'
import { oracle } from './suite.js'

let server: Awaited<ReturnType<typeof startRedis>>
beforeAll(async () => {
  server = await startRedis()
})
afterAll(() => server.stop())

oracle('redis', () => server.url, ['kill', 'shared', 'freeze'])
