// Locks on PostgreSQL: the lease table, session advisory locks, and the bare statements.
import type { Client, Pool } from 'pg'
import type * as library from '../../src/index.js'
import type * as advisoryStore from '../../src/stores/postgres-advisory/index.js'
import type * as tableStore from '../../src/stores/postgres/index.js'
import type { Context } from '../harness/types.js'
import type { Locker, OpenLocker } from './locker.js'

const TTL_MS = 30_000
const WAIT_MS = 60_000
const POOL = 10

async function openPool({ address }: Context): Promise<Pool> {
  const { default: pg } = await import('pg')
  return new pg.Pool({ connectionString: address.urls[0], max: POOL })
}

async function openClient({ address }: Context): Promise<Client> {
  const { default: pg } = await import('pg')
  const client = new pg.Client({ connectionString: address.urls[0] })
  await client.connect()
  return client
}

const lockerOf = (locks: library.Locks): Locker => ({
  async acquire(name) {
    const lock = await locks.acquire(name)
    return () => lock.release()
  },
})

export const leaseholdTable: OpenLocker = async (context) => {
  const { createLocks } = await context.leasehold<typeof library>('index.js')
  const { migrate, postgres } = await context.leasehold<typeof tableStore>('stores/postgres/index.js')
  const pool = await openPool(context)
  await migrate(pool)
  return lockerOf(createLocks(postgres(pool), { ttl: TTL_MS, wait: WAIT_MS }))
}

export const leaseholdAdvisory: OpenLocker = async (context) => {
  const { createLocks } = await context.leasehold<typeof library>('index.js')
  const { advisory } = await context.leasehold<typeof advisoryStore>('stores/postgres-advisory/index.js')
  return lockerOf(createLocks(advisory(await openPool(context)), { ttl: TTL_MS, wait: WAIT_MS }))
}

/** A number per name, as every library has to find one. */
const numberOf = (context: Context, name: string): string => `${context.prefix.length}${name.split(':').at(-1)}`

/** Prepared statements on one connection, which also is what a lock of a session needs. */
export const bareAdvisory =
  (waits: boolean): OpenLocker =>
  async (context) => {
    const client = await openClient(context)
    const take = waits
      ? { name: 'take', text: 'SELECT pg_advisory_lock($1) IS NOT NULL AS ok' }
      : { name: 'take', text: 'SELECT pg_try_advisory_lock($1) AS ok' }
    const give = { name: 'give', text: 'SELECT pg_advisory_unlock($1) AS ok' }
    return {
      async acquire(name) {
        const values = [numberOf(context, name)]
        const { rows } = await client.query<{ ok: boolean }>({ ...take, values })
        if (!rows[0]?.ok) throw new Error(`${name} is held`)
        return () => client.query({ ...give, values })
      },
    }
  }

const TABLE = 'CREATE TABLE IF NOT EXISTS bench_bare (name text PRIMARY KEY, owner text, ends timestamptz)'
const INSERT = `INSERT INTO bench_bare VALUES ($1, $2, now() + $3 * interval '1 ms')
  ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, ends = excluded.ends WHERE bench_bare.ends < now()`

/** A row per lock, inserted and deleted, on a pool of ten. Durable, as a grant has to be: it commits to disk. */
export const bareTable: OpenLocker = async (context) => {
  const pool = await openPool(context)
  await pool.query(TABLE)
  return {
    async acquire(name) {
      const values = [name, context.prefix, TTL_MS]
      const { rowCount } = await pool.query({ name: 'insert', text: INSERT, values })
      if (rowCount !== 1) throw new Error(`${name} is held`)
      const text = 'DELETE FROM bench_bare WHERE name = $1 AND owner = $2'
      return () => pool.query({ name: 'delete', text, values: [name, context.prefix] })
    },
  }
}

interface VerrouLock {
  acquire(): Promise<boolean>
  release(): Promise<void>
}

export const verrouKnex =
  (retryMs?: number): OpenLocker =>
  async (context) => {
    const { LockFactory } = context.peer<{
      LockFactory: new (store: unknown, options: object) => { createLock(name: string, ttlMs: number): VerrouLock }
    }>('@verrou/core')
    const { knexStore } = context.peer<{ knexStore(options: object): { factory(): unknown } }>(
      '@verrou/core/drivers/knex',
    )
    const createKnex = context.peer<(options: object) => object>('knex')
    const connection = createKnex({
      client: 'pg',
      connection: context.address.urls[0],
      pool: { min: 2, max: POOL },
    })
    const store = knexStore({ connection, tableName: 'verrou', autoCreateTable: context.member === 0 }).factory()
    const factory = new LockFactory(store, retryMs === undefined ? {} : { retry: { delay: retryMs } })
    return {
      async acquire(name) {
        const lock = factory.createLock(name, TTL_MS)
        if (!(await lock.acquire())) throw new Error(`verrou did not get ${name}`)
        return () => lock.release()
      },
    }
  }

interface AdvisoryMutex {
  lock(): Promise<() => Promise<void>>
}

/** A connection of its own for every lock: it has no other way. */
export const advisoryLock: OpenLocker = async (context) => {
  const { default: advisory } = context.peer<{
    default: (url: string) => (name: string) => AdvisoryMutex
  }>('advisory-lock')
  const mutexOf = advisory(context.address.urls[0] as string)
  return { acquire: (name) => mutexOf(name).lock() }
}
