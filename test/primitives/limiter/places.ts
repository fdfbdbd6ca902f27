/** The stores these primitives run on, each on a real server where it has one. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import pg from 'pg'
import { startPostgres, startRedis } from '../../../scripts/servers/index.js'
import type { Store } from '../../../src/store.js'
import { memory } from '../../../src/stores/memory/index.js'
import { migrate, postgres } from '../../../src/stores/postgres/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import { sqlite } from '../../../src/stores/sqlite/index.js'

export type Kind = 'memory' | 'sqlite' | 'redis' | 'postgres'
export const KINDS: readonly Kind[] = ['memory', 'sqlite', 'redis', 'postgres']

export interface Place {
  /** What another process opens it with. */
  readonly at: string
  /** A client of its own each time, as processes have. */
  store(): Store
  close(): Promise<void>
}

/** A store with a client of its own, closed with it. */
export function storeAt(kind: Exclude<Kind, 'memory'>, at: string): Store {
  if (kind === 'sqlite') return sqlite(at)
  if (kind === 'redis') {
    const client = new Redis(at)
    client.on('error', () => {})
    return withClient(redis(client), async () => client.disconnect())
  }
  const pool = new pg.Pool({ connectionString: at, max: 4 })
  pool.on('error', () => {})
  return withClient(postgres(pool), () => pool.end())
}

function withClient(store: Store, end: () => Promise<unknown>): Store {
  const close = store.close.bind(store)
  store.close = async () => {
    await close()
    await end()
  }
  return store
}

export async function openPlace(kind: Kind): Promise<Place> {
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

async function serve(kind: Exclude<Kind, 'memory'>): Promise<{ at: string; stop: () => Promise<void> }> {
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

/** Looks again until it is so. */
export async function until(what: string, isSo: () => unknown, withinMs = 15_000): Promise<void> {
  const deadline = performance.now() + withinMs
  while (!(await isSo())) {
    if (performance.now() > deadline) throw new Error(`${what}: not within ${withinMs} ms`)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}
