import { afterAll, beforeAll } from 'vitest'
import { startRedis } from '../../testbed/servers/index.js'
import { oracle } from './suite.js'

let servers: Awaited<ReturnType<typeof startRedis>>[]
beforeAll(async () => {
  servers = await Promise.all(Array.from({ length: 5 }, () => startRedis()))
})
afterAll(async () => {
  await Promise.all(servers.map((server) => server.stop()))
})

oracle('redlock', () => `redlock://${servers.map(({ port }) => `127.0.0.1:${port}`).join()}`, [
  'kill',
  'shared',
  'freeze',
])
