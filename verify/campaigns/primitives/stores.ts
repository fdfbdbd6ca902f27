import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { migrate } from '../../../src/stores/postgres/index.js'
import { openClient } from '../../../src/clients/postgres/open.js'
import { startPostgres, startRedis } from '../../../testbed/servers/index.js'

/** A store that several processes can share. */
export interface SharedStore {
  readonly name: 'SQLite' | 'Redis' | 'Redlock' | 'PostgreSQL' | 'PostgreSQL advisory'
  readonly url: string
  /** True if the store can list its leaders. */
  readonly elections: boolean
}

/** Starts one fixture of each kind. */
export async function openSharedStores(): Promise<{ stores: SharedStore[]; close: () => Promise<void> }> {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-prove-'))
  const [redis, ...nodes] = await Promise.all(Array.from({ length: 6 }, () => startRedis()))
  const postgres = await startPostgres()
  const { client, close } = await openClient(postgres.url)
  await migrate(client)
  await close()
  const stores: SharedStore[] = [
    { name: 'SQLite', url: `sqlite:${join(folder, 'locks.db')}`, elections: true },
    { name: 'Redis', url: (redis as { url: string }).url, elections: true },
    { name: 'PostgreSQL', url: postgres.url, elections: true },
    { name: 'Redlock', url: `redlock://${nodes.map(({ port }) => `127.0.0.1:${port}`).join()}`, elections: true },
    { name: 'PostgreSQL advisory', url: postgres.url.replace('postgres:', 'postgres+advisory:'), elections: false },
  ]
  return {
    stores,
    async close() {
      await Promise.all([redis, postgres, ...nodes].map((server) => server?.stop()))
      rmSync(folder, { recursive: true, force: true })
    },
  }
}
