// Servers of the scenarios: free loopback ports, temporary directories, gone with this process.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startEtcd, startPostgres, startRedis } from '../../testbed/servers/index.js'
import { atExit } from './exit.js'
import type { Address, PlaceKind, Server } from './types.js'

const REDLOCK_NODES = 5

export interface Place {
  address: Address
  servers: readonly Server[]
  /** Damages the servers, if the place is one with damage. Called once all libraries are connected and warm. */
  damage(): Promise<void>
  close(): Promise<void>
}

const nothing = async (): Promise<void> => {}

async function redisPlace(): Promise<Place> {
  const server = await startRedis()
  return { address: { urls: [server.url], folder: '' }, servers: [server], damage: nothing, close: () => server.stop() }
}

async function redlockPlace(kind: PlaceKind): Promise<Place> {
  const servers = await Promise.all(Array.from({ length: REDLOCK_NODES }, () => startRedis()))
  const [first, second] = servers
  return {
    address: { urls: servers.map(({ url }) => url), folder: '' },
    servers,
    async damage() {
      if (kind === 'redlock-frozen') await first?.freeze()
      if (kind === 'redlock-dead') await Promise.all([first?.kill(), second?.kill()])
    },
    async close() {
      await Promise.all(servers.map((server) => server.stop()))
    },
  }
}

async function postgresPlace(): Promise<Place> {
  const server = await startPostgres()
  return { address: { urls: [server.url], folder: '' }, servers: [], damage: nothing, close: () => server.stop() }
}

async function etcdPlace(): Promise<Place> {
  const server = await startEtcd({ nodes: 3 })
  return { address: { urls: server.endpoints, folder: '' }, servers: [], damage: nothing, close: () => server.stop() }
}

function folderPlace(): Place {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-bench-'))
  const remove = atExit(() => rmSync(folder, { recursive: true, force: true }))
  return { address: { urls: [], folder }, servers: [], damage: nothing, close: async () => remove() }
}

export async function openPlace(kind: PlaceKind): Promise<Place> {
  switch (kind) {
    case 'none':
      return { address: { urls: [], folder: '' }, servers: [], damage: nothing, close: nothing }
    case 'folder':
      return folderPlace()
    case 'redis':
      return redisPlace()
    case 'postgres':
      return postgresPlace()
    case 'etcd':
      return etcdPlace()
    default:
      return redlockPlace(kind)
  }
}
