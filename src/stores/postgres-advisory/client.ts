import { InvalidOptionError, UnsupportedError } from '../../errors.js'
import type { World } from '../../kit/world.js'
import type { PgConnection, Row, Submission } from './submission.js'

/** What is asked of a `pg` Pool: how it would open a connection. None is ever taken out of it. */
export interface PgPool {
  readonly options: object
  connect(): Promise<unknown>
}

/** The few methods of a `pg` Client that are called. */
export interface PgClient {
  /** As the other side named it when the session began. A pooler in between makes up its own. */
  readonly processID?: number | null
  connect(): Promise<unknown>
  query(query: PgQuery, callback: (error: PgError | null | undefined, result: PgResult | PgResult[]) => void): unknown
  /** Something that sends its own messages and hears the answers. */
  query(submission: Submission): unknown
  end(): Promise<void>
  on(event: 'error' | 'end', listener: (error?: Error) => void): unknown
  on(event: 'notification', listener: (message: { channel: string; payload?: string }) => void): unknown
  ref?(): void
  unref?(): void
  readonly connection?: PgConnection
}

interface PgQuery {
  text: string
  values?: readonly string[]
  rowMode: 'array'
}

interface PgResult {
  rows: Row[]
}

export interface PgError extends Error {
  code?: string
  severity?: string
}

export type OpenClient = () => PgClient

/** How to open a session like those of the pool, with what would cut our statements short left out. */
export function clientsLike(pool: PgPool, connectMs: number): OpenClient {
  if (typeof pool === 'function') {
    throw new UnsupportedError(
      'postgres-advisory needs a pg Pool: a postgres.js connection whose backend died ends the whole process with the next query on it, and session locks live on such connections. Use leasehold/postgres (lease table) with postgres.js, or lockInTransaction in your own transactions',
    )
  }
  const { options, Client } = (pool ?? {}) as { options?: { password?: unknown; ssl?: unknown }; Client?: unknown }
  if (typeof options !== 'object' || options === null || typeof Client !== 'function') {
    throw new InvalidOptionError('pool', pool, 'a Pool of the pg package')
  }
  const make = Client as new (options: object) => PgClient
  return () => {
    const client = new make({
      ...options,
      // pg hides it from copies.
      password: options.password,
      connectionTimeoutMillis: connectMs,
      statement_timeout: undefined,
      lock_timeout: undefined,
      idle_in_transaction_session_timeout: undefined,
      // Rejects without ending the statement: a lock would be granted to nobody.
      query_timeout: undefined,
      keepAlive: true,
      keepAliveInitialDelayMillis: 3_000,
      binary: false,
      pipeline: false,
      types: { getTypeParser: () => asIs },
    })
    // A connection string may set it too, and wins over the options.
    const parameters = (client as { connectionParameters?: { query_timeout?: unknown } }).connectionParameters
    if (parameters?.query_timeout) parameters.query_timeout = false
    if (!client.connection?.stream) {
      throw new UnsupportedError('postgres-advisory needs the JavaScript client of pg, not pg-native')
    }
    return client
  }
}

function asIs(value: unknown): unknown {
  return value
}

/** Rows of the last result; a text of several statements has several. */
export function ask(client: PgClient, text: string, values?: readonly string[]): Promise<Row[]> {
  return new Promise((resolve, reject) => {
    client.query(values ? { text, values, rowMode: 'array' } : { text, rowMode: 'array' }, (error, result) => {
      if (error) reject(error)
      else resolve((Array.isArray(result) ? result[result.length - 1] : result)?.rows ?? [])
    })
  })
}

/** An orderly end of a session takes no longer than this on a busy machine. */
const END_MS = 1_000

/** The end of a session, however it stands: a peer that does not answer any more must not keep us waiting. */
export function end(client: PgClient, world: World): Promise<void> {
  return new Promise((resolve) => {
    const destroy = (): void => {
      client.connection?.stream?.destroy()
      resolve()
    }
    // Keeps the process alive: whoever closes the store waits for this.
    const cancel = world.after(END_MS, destroy, true)
    void client
      .end()
      .catch(() => {})
      .then(() => {
        cancel()
        resolve()
      })
  })
}
