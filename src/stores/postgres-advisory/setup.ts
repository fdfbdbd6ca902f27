import { errorCode, isConnectionLost } from '../../clients/postgres/errors.js'
import type { PgClient, PgPool, TextRow } from '../../clients/postgres/types.js'
import { InvalidOptionError, LeaseholdError, StoreUnavailableError, UnsupportedError } from '../../errors.js'
import type { World } from '../../util/world.js'
import { endClient } from '../../clients/postgres/end-client.js'
import { poolerError } from './errors.js'
import { type AdvisoryStatements, FACTS, SETTINGS } from './statements.js'

/** The channel on which processes that use this store ask each other what they hold, and to release it. */
export const QUERY_CHANNEL = 'leasehold_advisory'

/** The end of the application name by which sessions of this library are told from others. */
export const APPLICATION_TAG = '[leasehold]'

/** PostgreSQL 14: the first with `idle_session_timeout` and `client_connection_check_interval`. */
const OLDEST_VERSION = 140_000

export interface SetupOptions {
  world: World
  open: () => PgClient
  statements: AdvisoryStatements
  /** How long one statement may stay in the queue of a lock. */
  queueMs: number
  applicationName: string
}

/** Which backend a session has. A process ID alone may be used again by a later backend. */
export interface Backend {
  pid: number
  startedAt: string
}

/** How to open a connection like those of the pool, without the options that would cut our statements short. */
export function clientsLike(pool: PgPool, connectMs: number): () => PgClient {
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
      // pg makes the password non-enumerable, so the copy above lacks it.
      password: options.password,
      connectionTimeoutMillis: connectMs,
      statement_timeout: undefined,
      lock_timeout: undefined,
      idle_in_transaction_session_timeout: undefined,
      // query_timeout rejects without ending the statement: a lock would be granted to nobody.
      query_timeout: undefined,
      keepAlive: true,
      keepAliveInitialDelayMillis: 3_000,
      binary: false,
      pipeline: false,
      types: { getTypeParser: () => asText },
    })
    // A connection string may set query_timeout too, and wins over the options.
    const parameters = (client as { connectionParameters?: { query_timeout?: unknown } }).connectionParameters
    if (parameters?.query_timeout) parameters.query_timeout = false
    if (!client.connection?.stream) {
      throw new UnsupportedError('postgres-advisory needs the JavaScript client of pg, not pg-native')
    }
    return client
  }
}

function asText(value: unknown): unknown {
  return value
}

/** Prepares a fresh connection to be a session of the store, or rejects with the reason why it cannot be one. */
export async function setUpSession(client: PgClient, options: SetupOptions): Promise<Backend> {
  const { statements } = options
  return explainMissingRights(statements, async () => {
    const facts = await readFacts(client, statements)
    if (client.processID !== facts.pid) await assertKeepsBackend(client, facts.pid, options)
    await query(client, SETTINGS, [String(Math.ceil(options.queueMs)), options.applicationName])
    await checkConnectionWhileWaiting(client)
    if (!facts.sequenceExists) await createSequence(client, statements)
    else if (!facts.oneByOne) throw new UnsupportedError(notOneByOne(statements))
    await query(client, `${statements.raiseSequence}; LISTEN ${QUERY_CHANNEL}`)
    return { pid: facts.pid, startedAt: facts.startedAt }
  })
}

interface ServerFacts extends Backend {
  sequenceExists: boolean
  oneByOne: boolean
}

async function readFacts(client: PgClient, statements: AdvisoryStatements): Promise<ServerFacts> {
  const [row] = await query(client, FACTS, [statements.sequence])
  const [pid, startedAt, version, standby, exists, oneByOne] = row ?? []
  if (Number(version) < OLDEST_VERSION) {
    throw new UnsupportedError(
      `postgres-advisory needs PostgreSQL 14 or newer (this is ${version}): without idle_session_timeout a holder that freezes would never let go. Use leasehold/postgres (lease table)`,
    )
  }
  if (standby === 't') {
    throw new StoreUnavailableError(
      'postgres-advisory is unavailable: this server is a standby, where locks exclude nobody on the primary',
    )
  }
  // Another session has just created the sequence: PostgreSQL looks names up as of now, but rows as of the statement's start.
  if (exists === 't' && oneByOne === null) return readFacts(client, statements)
  return { pid: Number(pid), startedAt: startedAt ?? '', sequenceExists: exists === 't', oneByOne: oneByOne === 't' }
}

/** Lets the server notice a client that vanished in the middle of a wait. Some operating systems cannot. */
async function checkConnectionWhileWaiting(client: PgClient): Promise<void> {
  try {
    await query(client, "SET client_connection_check_interval = '500ms'")
  } catch (error) {
    if (errorCode(error) !== '22023') throw error
  }
}

async function createSequence(client: PgClient, statements: AdvisoryStatements): Promise<void> {
  try {
    await query(client, statements.createSequenceAlone)
  } catch (error) {
    if (isConnectionLost(error)) throw error
    await query(client, 'ROLLBACK')
    // A client that does not take our lock created the sequence at this very moment.
    if (errorCode(error) !== '23505' && errorCode(error) !== '42P07') throw error
  }
}

function notOneByOne(statements: AdvisoryStatements): string {
  return `the sequence ${statements.sequence} must hand out one number after the other, or fencing tokens would not grow: ALTER SEQUENCE ${statements.sequence} INCREMENT 1 CACHE 1 NO CYCLE`
}

/** Turns errors about missing rights and schemas into one that says what to run. */
async function explainMissingRights<T>(statements: AdvisoryStatements, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    const code = errorCode(error)
    if (code !== '42501' && code !== '3F000') throw error
    throw new LeaseholdError(
      'SCHEMA',
      `fencing tokens come from the sequence ${statements.sequence}, and this role may not use or create it (${(error as Error).message}). Let its owner run: ${statements.grants}`,
      { cause: error },
    )
  }
}

/**
 * SECOND_CONNECTION_MS: how long a pooler may take to give a second connection. A pooler that has none to give lets its
 * clients wait for one without end.
 */
const SECOND_CONNECTION_MS = 1_000

/**
 * ROUNDS: how often two connections swap their order. A pooler in transaction mode hands out the connection that was
 * returned last, or the first, and other clients may take one meanwhile, so a single round could meet the same backend.
 */
const ROUNDS = 6

/**
 * Rejects if a pooler, which made up our process ID, does not keep one backend for us. This is tried before any setting is
 * made: a setting would stay behind on a connection that other clients get.
 */
export async function assertKeepsBackend(
  client: PgClient,
  pid: number,
  { open, world }: Pick<SetupOptions, 'open' | 'world'>,
): Promise<void> {
  const bounded = <T>(work: Promise<T>): Promise<T> => withTimeout(world, work)
  const other = open()
  other.on('error', () => {})
  try {
    await bounded(other.connect())
    for (let round = 0; round < ROUNDS; round++) {
      await bounded(query(client, 'BEGIN'))
      await bounded(query(other, 'BEGIN'))
      for (const each of round % 2 ? [client, other] : [other, client]) await bounded(query(each, 'COMMIT'))
      if ((await bounded(backendOf(client))) !== pid) throw poolerError()
    }
  } catch (error) {
    if (error instanceof LeaseholdError) throw error
    throw new StoreUnavailableError(
      'postgres-advisory is unavailable: a pooler is in between, and it had no second connection to tell whether it keeps sessions apart',
      { cause: error },
    )
  } finally {
    await endClient(other, world)
  }
}

async function backendOf(client: PgClient): Promise<number> {
  return Number((await query(client, 'SELECT pg_backend_pid()'))[0]?.[0])
}

function withTimeout<T>(world: World, work: Promise<T>): Promise<T> {
  let cancel: (() => void) | undefined
  const late = new Promise<never>((_, reject) => {
    cancel = world.after(SECOND_CONNECTION_MS, () => reject(new Error('no second connection')), true)
  })
  return Promise.race([work, late]).finally(() => cancel?.())
}

/** Rows of the last result; a text of several statements has several. */
function query(client: PgClient, text: string, values?: readonly string[]): Promise<TextRow[]> {
  return new Promise((resolve, reject) => {
    client.query(values ? { text, values, rowMode: 'array' } : { text, rowMode: 'array' }, (error, result) => {
      if (error) reject(error)
      else resolve((Array.isArray(result) ? result[result.length - 1] : result)?.rows ?? [])
    })
  })
}
