/** A key with more holders than the slots that are kept for it. */
import { Pool } from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { createLocks } from '../../../src/locks.js'
import { ALL, type Claim, type Grant, type Store } from '../../../src/store.js'
import { migrate, postgres } from '../../../src/stores/postgres/index.js'

let server: PostgresServer
let pool: Pool
let store: Store

beforeAll(async () => {
  server = await startPostgres({ settings: { synchronous_commit: 'off' } })
  pool = new Pool({ connectionString: server.url, max: 4 })
  await migrate(pool)
  store = postgres(pool)
})

afterAll(async () => {
  await store.close?.()
  await pool.end()
  await server.stop()
})

const reader = (key: string, n: number): Claim => ({ key, owner: `r${n}`, weight: 1, capacity: ALL, ttlMs: 60_000 })

async function grants(key: string, count: number): Promise<(Claim & Grant)[]> {
  const claims = Array.from({ length: count }, (_, n) => reader(key, n))
  const answers = await store.acquire(claims)
  return claims.map((claim, i) => ({ ...claim, ...(answers[i] as Grant) }))
}

test('the first of many holders keeps its lease and its token when later ones end', async () => {
  const [first, ...others] = (await grants('lock:many', 12)) as [Claim & Grant, ...(Claim & Grant)[]]
  // From the last on: each of these slots is given up.
  for (const lease of others.toReversed()) expect(await store.release([lease])).toEqual([{ outcome: 'released' }])
  expect(await store.renew([first])).toMatchObject([{ outcome: 'ours' }])
  expect((await store.holders?.('lock:many'))?.map(({ token }) => token)).toEqual([first.token])
  expect(await store.release([first])).toEqual([{ outcome: 'released' }])
})

test('no token is granted again, although the slot of the newest is given up', async () => {
  // As if the clock were behind: only what the table remembers keeps tokens growing.
  const leases = await grants('lock:ahead', 12)
  const last = leases.at(-1) as Claim & Grant
  const ahead = last.token + 86_400_000_000n
  await pool.query('update leasehold_leases set token = $1 where key = $2 and owner = $3', [
    ahead,
    'lock:ahead',
    last.owner,
  ])
  await store.release([{ ...last, token: ahead }])
  await store.release(leases.slice(0, -1))
  const [next] = (await store.acquire([{ ...reader('lock:ahead', 99), weight: ALL }])) as [Grant]
  expect(next.token).toBeGreaterThan(ahead)
  await store.release([{ key: 'lock:ahead', owner: 'r99' }])
})

test('what many holders have left is trimmed to a few rows', async () => {
  for (let round = 0; round < 3; round++) await store.release(await grants('lock:rows', 50))
  await store.release(await grants('lock:rows', 1))
  const { rows } = await pool.query(`select count(*)::int as n from leasehold_leases where key = 'lock:rows'`)
  expect(rows[0].n).toBeLessThanOrEqual(9)
})

test('a crowd of readers and writers of two stores passes without a release that finds nothing', async () => {
  const others = new Pool({ connectionString: server.url, max: 4 })
  const second = postgres(others)
  const instances = [createLocks(store, { wait: '30s' }), createLocks(second, { wait: '30s' })] as const
  const lost: unknown[] = []
  for (const locks of instances) locks.on('lost', (event) => lost.push(event))
  const released = await Promise.all(
    Array.from({ length: 200 }, async (_, i) => {
      const crowd = instances[i % 2 === 0 ? 0 : 1].readWrite('crowd')
      const lock = await (i % 10 === 0 ? crowd.acquireWrite() : crowd.acquireRead())
      await new Promise((resolve) => setTimeout(resolve, 1))
      return lock.release()
    }),
  )
  expect(released.filter((was) => !was)).toEqual([])
  expect(lost).toEqual([])
  for (const locks of instances) await locks.close({ grace: 0 })
  await second.close?.()
  await others.end()
})
