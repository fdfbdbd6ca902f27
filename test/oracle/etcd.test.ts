import { afterAll, beforeAll } from 'vitest'
import { startEtcd } from '../../testbed/servers/index.js'
import { oracle } from './suite.js'

let cluster: Awaited<ReturnType<typeof startEtcd>>
beforeAll(async () => {
  cluster = await startEtcd({ nodes: 3 })
})
afterAll(() => cluster.stop())

oracle('etcd', () => cluster.url, ['shared'], ['shared'])
