// The lease table: batches of renewals, releases, steals and claims in random orders on the same rows: nothing deadlocks.
import { Pool } from 'pg'
import { createLocks } from '../../src/locks.js'
import { ALL, type Claim, type Store } from '../../src/store.js'
import { migrate, postgres } from '../../src/stores/postgres/index.js'
import { startPostgres } from '../../testbed/servers/index.js'
import type { Proving } from './proving.js'

export interface BatchFigures {
  calls: number
  /** Calls that rejected, and items answered "unknown". */
  failed: number
  deadlocks: number
  slowestMs: number
  firstError: string
}

/** Several clients, each with batches of the same keys in an order of its own, all at the same time. */
export async function batchesAtOnce(url: string, seconds: number): Promise<BatchFigures> {
  const pool = new Pool({ connectionString: url, max: 10 })
  const stores = Array.from({ length: 3 }, () => postgres(pool, { timeout: '5s' }))
  const figures: BatchFigures = { calls: 0, failed: 0, deadlocks: 0, slowestMs: 0, firstError: '' }
  const fail = (error: unknown): void => {
    figures.failed++
    figures.firstError ||= String(error)
  }
  const end = performance.now() + seconds * 1_000
  const worker = async (store: Store, me: number): Promise<void> => {
    while (performance.now() < end) {
      const began = performance.now()
      const answers = await oneCall(store, me).catch(fail)
      figures.slowestMs = Math.max(figures.slowestMs, performance.now() - began)
      figures.calls++
      for (const answer of answers ?? []) if ('error' in answer) fail(answer.error)
    }
  }
  await Promise.all(stores.flatMap((store, i) => [0, 1, 2].map((j) => worker(store, i * 3 + j))))
  const { rows } = await pool.query('select deadlocks::int from pg_stat_database where datname = current_database()')
  figures.deadlocks = rows[0].deadlocks
  for (const store of stores) await store.close()
  await pool.end()
  return figures
}

const KEYS = 40

async function oneCall(store: Store, me: number): Promise<readonly object[]> {
  const keys = Array.from({ length: KEYS }, (_, i) => `lock:batch:${i}`).sort(() => Math.random() - 0.5)
  const claims = keys.map((key): Claim => ({ key, owner: `w${me % 4}`, weight: ALL, capacity: ALL, ttlMs: 200 }))
  const kind = Math.random()
  if (kind < 0.25) return store.acquire(claims)
  if (kind < 0.35) return store.acquire(claims.map((claim) => ({ ...claim, steal: Math.random() < 0.3 })))
  if (kind < 0.45) return store.acquire(claims.slice(0, 10), { atomic: true })
  return kind < 0.75 ? store.renew(claims) : store.release(claims)
}

export interface ReleaseFigures {
  rounds: number
  renewed: number
  /** `release()` rejected or said that the lock was not ours. */
  failed: number
  lost: number
  slowestMs: number
}

/** A process with a hundred locks releases them, in random order, at the moment in which their heartbeat is due. */
export async function releasesAgainstHeartbeats(url: string, seconds: number, ttlMs = 900): Promise<ReleaseFigures> {
  const pool = new Pool({ connectionString: url, max: 10 })
  const store = postgres(pool)
  const locks = createLocks(store, { ttl: ttlMs, wait: '10s' })
  const figures: ReleaseFigures = { rounds: 0, renewed: 0, failed: 0, lost: 0, slowestMs: 0 }
  locks.on('renewed', () => figures.renewed++)
  locks.on('lost', () => figures.lost++)
  const names = Array.from({ length: 100 }, (_, i) => `n${i}`)
  const end = performance.now() + seconds * 1_000
  while (performance.now() < end) {
    figures.rounds++
    const began = performance.now()
    const held = await Promise.all(names.sort(() => Math.random() - 0.5).map((name) => locks.acquire(name)))
    const heartbeat = ttlMs / 3 - 35 + Math.random() * 70 - (performance.now() - began)
    await new Promise((resolve) => setTimeout(resolve, heartbeat))
    const releasing = performance.now()
    const answers = await Promise.all(held.map((lock) => lock.release().catch(() => false)))
    figures.slowestMs = Math.max(figures.slowestMs, performance.now() - releasing)
    figures.failed += answers.filter((released) => !released).length
  }
  await locks.close({ grace: 0 })
  await store.close()
  await pool.end()
  return figures
}

export default async function prove(p: Proving): Promise<void> {
  const server = await startPostgres()
  const pool = new Pool({ connectionString: server.url, max: 1 })
  await migrate(pool)
  await pool.end()
  const batches = await batchesAtOnce(server.url, p.seconds)
  p.check(
    'nine workers with batches of 40 keys in random orders: no call fails',
    batches.failed + batches.deadlocks === 0,
    JSON.stringify(batches),
  )
  const releases = await releasesAgainstHeartbeats(server.url, p.seconds)
  p.check(
    'a hundred locks released in random order while their heartbeat is due: none fails, none is lost',
    releases.failed + releases.lost === 0,
    JSON.stringify(releases),
  )
  await server.stop()
}
