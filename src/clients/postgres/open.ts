import { Socket } from 'node:net'
import { InvalidOptionError, MissingPackageError } from '../../errors.js'
import { unlessMissing } from '../../util/optional-import.js'
import { realWorld } from '../../util/world.js'
import type { PostgresClient, PostgresDriver } from './driver.js'
import { isPool, PgDriver } from './pg.js'
import { isPostgresJs, PostgresJsDriver } from './postgres-js.js'

/** The adapter for the library that the client is of. */
export function driverOf(client: PostgresClient): PostgresDriver {
  if (isPostgresJs(client)) return new PostgresJsDriver(client)
  if (isPool(client)) return new PgDriver(client)
  const single = typeof (client as { query?: unknown } | null)?.query === 'function'
  throw new InvalidOptionError(
    'pool',
    client,
    `a pg Pool or a postgres.js sql${single ? ' (a single Client may be in the middle of your transaction)' : ''}`,
  )
}

/** A pool is given this many milliseconds to end in order: one whose server is silent would wait for it for ever. */
const END_WITHIN_MS = 1_000

/** A client opened from a URL. */
export interface OpenPostgresClient {
  client: PostgresClient
  close: () => Promise<void>
}

/** `pg` if it is installed, else `postgres`. */
export async function openClient(url: string): Promise<OpenPostgresClient> {
  const pg = await loadPg()
  if (pg) return openPool(pg.default.Pool, url)
  const postgres = await loadPostgresJs()
  if (postgres) {
    // Its default pause between attempts to reconnect grows to 20 s, in which no heartbeat is sent and locks run out.
    const sql = postgres.default(url, { onnotice: () => {}, backoff: (tries) => Math.min(0.05 * 2 ** tries, 1) })
    return { client: sql as unknown as PostgresClient, close: () => sql.end({ timeout: 1 }) }
  }
  throw new MissingPackageError('a store on PostgreSQL', ['pg', 'postgres'])
}

function openPool(Pool: typeof import('pg').Pool, url: string): OpenPostgresClient {
  const sockets = new Set<Socket>()
  const stream = (): Socket => {
    const socket = new Socket()
    sockets.add(socket)
    return socket.once('close', () => sockets.delete(socket))
  }
  // Idle connections must not keep a process alive that has nothing else to do.
  const pool = new Pool({ connectionString: url, allowExitOnIdle: true, max: 10, stream })
  pool.on('error', () => {})
  const close = async (): Promise<void> => {
    if (pool.ending) return
    const cancel = realWorld.after(
      END_WITHIN_MS,
      () => {
        for (const socket of sockets) socket.destroy()
      },
      true,
    )
    await pool.end()
    cancel()
  }
  return { client: pool, close }
}

async function loadPg(): Promise<typeof import('pg') | undefined> {
  try {
    return await import('pg')
  } catch (error) {
    return unlessMissing(error, 'pg')
  }
}

async function loadPostgresJs(): Promise<{ default: typeof import('postgres') } | undefined> {
  try {
    return await import('postgres')
  } catch (error) {
    return unlessMissing(error, 'postgres')
  }
}
