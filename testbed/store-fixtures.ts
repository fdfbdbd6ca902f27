/** The stores that these primitives run on, each on a real server where it has one. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import pg from 'pg'
import { startPostgres, startRedis } from './servers/index.js'
import type { Store } from '../src/store.js'
import { memory } from '../src/stores/memory/index.js'
import { migrate, postgres } from '../src/stores/postgres/index.js'
import { redis } from '../src/stores/redis/index.js'
import { sqlite } from '../src/stores/sqlite/index.js'

export type StoreKind = 'memory' | 'sqlite' | 'redis' | 'postgres'
export const STORE_KINDS: readonly StoreKind[] = ['memory', 'sqlite', 'redis', 'postgres']

export interface StoreFixture {
  /** The URL or path with which another process opens the store. */
  readonly at: string
  /** Opens a store with its own client, as processes have. */
  store(): Store
  close(): Promise<void>
}

/** PATIENT: a busy machine does not answer within the default of some seconds, which would be an outage. */
const PATIENT = { timeout: '20s' } as const

/** A store with its own client, which is closed with the store. */
export function storeAt(kind: Exclude<StoreKind, 'memory'>, at: string): Store {
  if (kind === 'sqlite') return sqlite(at)
  if (kind === 'redis') {
    const client = new Redis(at)
    client.on('error', () => {})
    return withClient(redis(client, PATIENT), async () => client.disconnect())
  }
  const pool = new pg.Pool({ connectionString: at, max: 4 })
  pool.on('error', () => {})
  return withClient(postgres(pool, PATIENT), () => pool.end())
}

function withClient(store: Store, end: () => Promise<unknown>): Store {
  const close = store.close.bind(store)
  store.close = async () => {
    await close()
    await end()
  }
  return store
}

export async function openStoreFixture(kind: StoreKind): Promise<StoreFixture> {
  if (kind === 'memory') {
    const store = memory()
    return { at: 'memory', store: () => store, close: async () => {} }
  }
  const { at, stop } = await serve(kind)
  const stores: Store[] = []
  return {
    at,
    store() {
      const store = storeAt(kind, at)
      stores.push(store)
      return store
    },
    async close() {
      for (const store of stores) await store.close()
      await stop()
    },
  }
}

async function serve(kind: Exclude<StoreKind, 'memory'>): Promise<{ at: string; stop: () => Promise<void> }> {
  if (kind === 'sqlite') {
    const folder = mkdtempSync(join(tmpdir(), 'leasehold-primitives-'))
    return { at: join(folder, 'locks.db'), stop: async () => rmSync(folder, { recursive: true, force: true }) }
  }
  if (kind === 'redis') {
    const server = await startRedis()
    return { at: server.url, stop: () => server.stop() }
  }
  const server = await startPostgres()
  const pool = new pg.Pool({ connectionString: server.url })
  await migrate(pool)
  await pool.end()
  return { at: server.url, stop: () => server.stop() }
}

/** Polls until the condition holds. */
export async function until(what: string, isSo: () => unknown, withinMs = 15_000): Promise<void> {
  const deadline = performance.now() + withinMs
  while (!(await isSo())) {
    if (performance.now() > deadline) throw new Error(`${what}: not within ${withinMs} ms`)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}
