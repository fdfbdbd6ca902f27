/** Short slices of `npm run prove -- postgres`. */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { contestRounds, failover, pairs } from '../../../scripts/prove/postgres.js'
import { type PostgresServer, startPostgres } from '../../../scripts/servers/index.js'
import { contend } from './history.js'
import { type Library, placeAt, storeAt } from './place.js'

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres()
})

afterAll(() => server.stop())

test.concurrent('several processes with both libraries, some killed: the history is clean', async () => {
  const url = await server.createDatabase()
  await placeAt('pg', url)
  const libraries: Library[] = ['pg', 'postgres.js', 'pg']
  const urls = libraries.map(() => url)
  const history = await contend({
    urls,
    libraries,
    names: 4,
    acquisitions: 200,
    killEvery: 50,
    seed: 42,
    withinMs: 80_000,
  })
  expect(history.violations).toEqual([])
}, 90_000)

test.concurrent.each(['repeatable read', 'serializable'])(
  'with %s as the default there is one holder in every round',
  async (level) => {
    const url = await server.createDatabase()
    await server.psql(
      `alter database "${new URL(url).pathname.slice(1)}" set default_transaction_isolation = '${level}'`,
    )
    await placeAt('pg', url)
    const stores = Array.from({ length: 6 }, (_, i) => storeAt(i % 2 ? 'pg' : 'postgres.js', url, { max: 1 }))
    expect(await contestRounds(stores, 30, 'lock:round')).toEqual({ several: 0, none: 0, failed: 0 })
    for (const store of stores) await store.close()
  },
)

test.concurrent('a failover to a synchronous standby loses nothing that was acknowledged', async () => {
  const { acknowledged, ...lost } = await failover(true, 300)
  expect(acknowledged).toBeGreaterThanOrEqual(300)
  expect(lost).toEqual({ lostGrants: 0, repeatedTokens: 0 })
}, 60_000)

test.concurrent('acquire/release pairs on 100 names leave a small table', async () => {
  const url = await server.createDatabase()
  await placeAt('pg', url)
  const { most, hotShare } = await pairs(url, 5_000)
  expect(most).toBeLessThan(500_000)
  expect(hotShare).toBeGreaterThan(0.95)
})
