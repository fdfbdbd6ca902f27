// The lease table: migrations under load beside an idle transaction: nobody waits long, and no lock is lost.
import { Pool } from 'pg'
import { createLocks } from '../../src/locks.js'
import { driverOf } from '../../src/clients/postgres/open.js'
import { migrate, postgres } from '../../src/stores/postgres/index.js'
import { migrateWith } from '../../src/stores/postgres/migrate.js'
import { RELEASE, sqlFiles } from '../../src/stores/postgres/schema.js'
import { startPostgres } from '../../testbed/servers/index.js'
import type { Proving } from './proving.js'

export interface MigrationFigures {
  migrations: number
  pairs: number
  /** The longest that an acquire and release of a free name took. */
  slowestMs: number
  failed: number
  lost: number
  firstError: string
  groundRent: number
}

/** Each migration has other functions than the one before, and has to make a trigger anew, for which it locks the table. */
export async function migrationsUnderLoad(url: string, migrations: number): Promise<MigrationFigures> {
  const [pool, admin] = [new Pool({ connectionString: url, max: 10 }), new Pool({ connectionString: url, max: 3 })]
  await admin.query(`create function leasehold_ground_rent(years int) returns int language sql as 'select years * 250'`)
  await migrate(admin)
  const figures = { migrations: 0, pairs: 0, slowestMs: 0, failed: 0, lost: 0, firstError: '', groundRent: 0 }
  const store = postgres(pool)
  const locks = createLocks(store, { ttl: '9s', wait: '30s' })
  locks.on('lost', () => figures.lost++)
  const held = await Promise.all(Array.from({ length: 50 }, (_, i) => locks.acquire(`held ${i}`)))
  let over = false
  const worker = async (me: number): Promise<void> => {
    while (!over) {
      const began = performance.now()
      await locks
        .withLock(`worker ${me}`, async () => {})
        .then(
          () => figures.pairs++,
          (error: unknown) => {
            figures.failed++
            figures.firstError ||= String(error)
          },
        )
      figures.slowestMs = Math.max(figures.slowestMs, Math.round(performance.now() - began))
    }
  }
  const workers = Array.from({ length: 8 }, (_, i) => worker(i))
  for (let i = 0; i < migrations; i++) {
    await admin.query('drop trigger leasehold_on_delete on leasehold_leases')
    const idle = await admin.connect()
    await idle.query('begin')
    await idle.query(`select acquire_lock('of an idle transaction', 'psql ${i}')`)
    const changed = {
      ...sqlFiles,
      inspect: `${sqlFiles.inspect.replace('* 1000\n$leasehold$', `* 1000 + 0 * ${i}\n$leasehold$`)}`,
    }
    const migrating = migrateWith(driverOf(admin), {}, changed, { ...RELEASE, revision: RELEASE.revision + 1 + i })
    await new Promise((resolve) => setTimeout(resolve, 700))
    await idle.query('rollback')
    idle.release()
    if (await migrating) figures.migrations++
  }
  over = true
  await Promise.all(workers)
  figures.lost += held.filter((lock) => !lock.isHeld).length
  figures.groundRent = (await admin.query('select leasehold_ground_rent(1) as rent')).rows[0].rent
  await locks.close({ grace: 0 })
  await store.close()
  await Promise.all([pool.end(), admin.end()])
  return figures
}

export default async function prove(p: Proving): Promise<void> {
  const server = await startPostgres()
  const figures = await migrationsUnderLoad(server.url, 50)
  const { slowestMs, failed, lost, groundRent } = figures
  p.check(
    '50 migrations under load beside an idle transaction: no caller waits longer than a second, no lock is lost',
    slowestMs < 1_000 && failed + lost === 0 && groundRent === 250 && figures.migrations === 50,
    JSON.stringify(figures),
  )
  await server.stop()
}
