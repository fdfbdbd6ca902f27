// The lease table: the size it is left with by a million acquire/release pairs.
import { Pool } from 'pg'
import { ALL } from '../../src/store.js'
import { postgres } from '../../src/stores/postgres/index.js'
import { startPostgres } from '../../testbed/servers/index.js'
import { prepared } from './postgres.js'
import type { Proving } from './proving.js'

const PAIRS = 1_000_000

/**
 * A page cleans itself of versions that no snapshot can see. While something holds one (a vacuum of another table is
 * enough), everything that is written stays, and the table grows by that once: afterwards the room is used again.
 * So what bounds it is how long a snapshot lasts, not how many pairs there are.
 */
const MOST_BYTES = 16_000_000

export default async function prove(p: Proving): Promise<void> {
  await using server = await startPostgres()
  await prepared(server)
  const began = performance.now()
  const { quarters, most, hotShare, written } = await pairs(server.url, PAIRS)
  const seconds = Math.round((performance.now() - began) / 1_000)
  p.say(`pg_total_relation_size at first and after each quarter: ${quarters.join(', ')}; at most ${most}; ${seconds} s`)
  p.check(
    `${PAIRS} acquire/release pairs on 100 names leave a table of bounded size`,
    most < MOST_BYTES,
    `at most ${most} bytes, although versions of ${written} bytes were written`,
  )
  const [, , half = 0, , end = 0] = quarters
  p.check(
    'the second half million adds less than a fiftieth of what it writes',
    end - half < written / 100,
    `${half} bytes after the first, ${end} after the second`,
  )
  p.check('updates touch no index', hotShare > 0.95, `${(hotShare * 100).toFixed(2)} % heap-only updates`)
}

export interface Sizes {
  /** pg_total_relation_size, in bytes: at first, and after each quarter. */
  quarters: number[]
  most: number
  hotShare: number
  /** What all versions of rows together would take. */
  written: number
}

/** Acquire/release pairs on 100 names, and what they leave behind. */
export async function pairs(url: string, count: number): Promise<Sizes> {
  const pool = new Pool({ connectionString: url, max: 5 })
  const store = postgres(pool, { listen: false })
  const names = Array.from({ length: 100 }, (_, i) => `lock:pair:${i}`)
  const look = async (): Promise<number> =>
    Number((await pool.query(`select pg_total_relation_size('leasehold_leases') as n`)).rows[0].n)
  const quarters = [await look()]
  let most = 0
  let done = 0
  const work = async (worker: number): Promise<void> => {
    const mine = names.slice(worker * 25, worker * 25 + 25)
    for (let i = 0; done < count; i++) {
      const leases = mine.map((key) => ({
        key,
        owner: `host:4711:0190d3c5-7e2a-7bbb-8000-${worker}${i}/1`,
        weight: ALL,
        capacity: ALL,
        ttlMs: 30_000,
      }))
      await store.acquire(leases)
      await store.release(leases)
      done += mine.length
      if (worker === 0 && i % 100 === 0) most = Math.max(most, await look())
      if (worker === 0 && done >= (count * quarters.length) / 4) quarters.push(await look())
    }
  }
  await Promise.all([0, 1, 2, 3].map(work))
  if (quarters.length < 5) quarters.push(await look())
  most = Math.max(most, ...quarters)
  await pool.query('select pg_stat_force_next_flush()').catch(() => {})
  const { rows } = await pool.query(
    `select n_tup_hot_upd::float / greatest(n_tup_upd, 1) as share,
       (n_tup_upd * (select avg(pg_column_size(l.*) + 28) from leasehold_leases l))::float as written from pg_stat_user_tables where relname = 'leasehold_leases'`,
  )
  await store.close()
  await pool.end()
  return { quarters, most, hotShare: rows[0].share, written: Math.round(rows[0].written) }
}
