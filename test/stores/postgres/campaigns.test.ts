/** Short slices of `npm run prove -- postgres`, `postgres-batches` and `postgres-size`. */
import { Pool } from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { batchesAtOnce, releasesAgainstHeartbeats } from '../../../verify/campaigns/postgres-batches.js'
import { pairs } from '../../../verify/campaigns/postgres-size.js'
import { contestRounds, failover } from '../../../verify/campaigns/postgres.js'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { ALL } from '../../../src/store.js'
import { postgres } from '../../../src/stores/postgres/index.js'
import { contend } from '../../../testbed/postgres/history.js'
import { type Library, fixtureAt, storeAt } from '../../../testbed/postgres/fixture.js'

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres()
})

afterAll(() => server.stop())

test.concurrent('processes with both libraries, some of them killed, never hold a name at the same time', async () => {
  const url = await server.createDatabase()
  await fixtureAt('pg', url)
  const libraries: Library[] = ['pg', 'postgres.js', 'pg']
  const urls = libraries.map(() => url)
  const history = await contend({
    urls,
    libraries,
    names: 4,
    acquisitions: 200,
    killEvery: 50,
    seed: 42,
    withinMs: 170_000,
  })
  expect(history.violations).toEqual([])
})

test.concurrent.each(['repeatable read', 'serializable'])(
  'every round has one holder if the default isolation level is %s',
  async (level) => {
    const url = await server.createDatabase()
    await server.psql(
      `alter database "${new URL(url).pathname.slice(1)}" set default_transaction_isolation = '${level}'`,
    )
    await fixtureAt('pg', url)
    const stores = Array.from({ length: 6 }, (_, i) => storeAt(i % 2 ? 'pg' : 'postgres.js', url, { max: 1 }))
    expect(await contestRounds(stores, 30, 'lock:round')).toEqual({ several: 0, none: 0, failed: 0 })
    for (const store of stores) await store.close()
  },
)

test.concurrent('batches of renewals, releases, steals and claims in random orders never deadlock', async () => {
  const url = await server.createDatabase()
  await fixtureAt('pg', url)
  expect(await batchesAtOnce(url, 3)).toMatchObject({ failed: 0, deadlocks: 0, firstError: '' })
})

test.concurrent('a hundred locks can be released in any order while their heartbeat is due', async () => {
  const url = await server.createDatabase()
  await fixtureAt('pg', url)
  expect(await releasesAgainstHeartbeats(url, 6, 6_000)).toMatchObject({ failed: 0, lost: 0 })
})

test.concurrent('a failover to a synchronous standby loses nothing that was acknowledged', async () => {
  const { acknowledged, ...lost } = await failover(true, 300)
  expect(acknowledged).toBeGreaterThanOrEqual(300)
  expect(lost).toEqual({ lostGrants: 0, repeatedTokens: 0 })
})

test.concurrent('acquire/release pairs on 100 names leave a small table', async () => {
  const url = await server.createDatabase()
  await fixtureAt('pg', url)
  const { most, hotShare } = await pairs(url, 5_000)
  expect(most).toBeLessThan(1_000_000)
  // With an index on an updated column no update is heap-only. How many are without one depends on how long snapshots
  // of others keep old versions in their pages, and so on the load.
  expect(hotShare).toBeGreaterThan(0.5)
})

test.concurrent('a renewal and another owner’s claim never both succeed at the moment of expiry', async () => {
  const url = await server.createDatabase()
  await fixtureAt('pg', url)
  const [a, b] = [storeAt('pg', url, { max: 10 }), storeAt('pg', url, { max: 10 })]
  const seen = { renewed: 0, taken: 0, both: 0 }
  const round = async (key: string): Promise<void> => {
    const claim = { key, owner: 'a', weight: ALL, capacity: ALL, ttlMs: 30 }
    if ((await a.acquire([claim]))[0]?.granted !== true) throw new Error('it was free')
    const jitter = () => new Promise((resolve) => setTimeout(resolve, 25 + Math.random() * 8))
    const renewing = jitter().then(() => a.renew([{ ...claim, ttlMs: 60_000 }]))
    const taking = jitter().then(() => b.acquire([{ ...claim, owner: 'b', ttlMs: 60_000 }]))
    const renewed = (await renewing)[0]?.outcome === 'ours'
    const taken = (await taking)[0]?.granted === true
    seen.renewed += Number(renewed)
    seen.taken += Number(taken)
    seen.both += Number(renewed && taken)
  }
  for (let i = 0; i < 25; i++) await Promise.all(Array.from({ length: 12 }, (_, j) => round(`lock:edge:${i}:${j}`)))
  expect(seen.both).toBe(0)
  expect(seen.taken, 'some were taken').toBeGreaterThan(0)
  await a.close()
  await b.close()
})

test.concurrent('later calls delete names that were used once', async () => {
  const url = await server.createDatabase()
  await fixtureAt('pg', url)
  const pool = new Pool({ connectionString: url, max: 1 })
  const store = postgres(pool, { listen: false })
  const once = async (from: number, to: number): Promise<void> => {
    for (let i = from; i < to; i += 50) {
      const leases = Array.from({ length: 50 }, (_, j) => ({
        key: `run-once:${i + j}`,
        owner: 'o',
        weight: 1,
        capacity: 1,
        ttlMs: 60_000,
      }))
      await store.acquire(leases)
      // Every tenth is kept.
      await store.release(leases.filter((_, j) => j % 10 !== 0))
    }
  }
  await once(0, 500)
  await pool.query(`update leasehold_leases set sweep_at = clock_timestamp()`)
  await once(500, 1_500)
  const { rows } = await pool.query(
    `select count(*)::int as kept, count(owner)::int as held from leasehold_leases where split_part(key, ':', 2)::int < 500`,
  )
  expect(rows).toEqual([{ kept: 50, held: 50 }])
  await store.close()
  await pool.end()
})
