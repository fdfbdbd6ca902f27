import { LeaseholdError, StoreUnavailableError, UnsupportedError } from '../../errors.js'
import type { World } from '../../kit/world.js'
import { ask, end, type OpenClient, type PgClient } from './client.js'
import { facts as factsSql, settings as settingsSql } from './sql/embedded.js'
import { filled, type Statements } from './statements.js'
import { codeOf, isFatal, pooled } from './trouble.js'

/** Questions between the processes that use this store: who holds what, and let go of that. */
export const CHANNEL = 'leasehold_advisory'

/** Its end is how our sessions are told from others. */
export const MARK = '[leasehold]'

/** PostgreSQL 14: the first with `idle_session_timeout` and `client_connection_check_interval`. */
const OLDEST = 140_000

export interface SetupOptions {
  world: World
  open: OpenClient
  statements: Statements
  /** How long one statement may stay in the queue of a lock. */
  queueMs: number
  applicationName: string
}

export interface Prepared {
  pid: number
  startedAt: string
}

/** Makes a session of ours out of a fresh connection, or says why that cannot be. */
export async function prepare(client: PgClient, options: SetupOptions): Promise<Prepared> {
  const { statements } = options
  const prepared = await explained(statements, async () => {
    const facts = await look(client, statements)
    if (client.processID !== facts.pid) await assertSessions(client, facts.pid, options)
    await ask(client, filled(settingsSql, {}), [String(Math.ceil(options.queueMs)), options.applicationName])
    await noticeLostClients(client)
    if (!facts.sequenceExists) await createSequence(client, statements)
    else if (!facts.oneByOne) throw new UnsupportedError(notOneByOne(statements))
    await ask(client, `${statements.raise}; LISTEN ${CHANNEL}`)
    return { pid: facts.pid, startedAt: facts.startedAt }
  })
  return prepared
}

interface Facts extends Prepared {
  sequenceExists: boolean
  oneByOne: boolean
}

async function look(client: PgClient, statements: Statements): Promise<Facts> {
  const [row] = await ask(client, filled(factsSql, {}), [statements.sequence])
  const [pid, startedAt, version, standby, exists, oneByOne] = row ?? []
  if (Number(version) < OLDEST) {
    throw new UnsupportedError(
      `postgres-advisory needs PostgreSQL 14 or newer (this is ${version}): without idle_session_timeout a holder that freezes would never let go. Use leasehold/postgres (lease table)`,
    )
  }
  if (standby === 't') {
    throw new StoreUnavailableError(
      'postgres-advisory is unavailable: this server is a standby, where locks exclude nobody on the primary',
    )
  }
  // Created this very moment: names are looked up as of now, its numbers as of when the statement began.
  if (exists === 't' && oneByOne === null) return look(client, statements)
  return { pid: Number(pid), startedAt: startedAt ?? '', sequenceExists: exists === 't', oneByOne: oneByOne === 't' }
}

/** A client that has gone in the middle of a wait is noticed. Some operating systems cannot. */
async function noticeLostClients(client: PgClient): Promise<void> {
  try {
    await ask(client, "SET client_connection_check_interval = '500ms'")
  } catch (error) {
    if (codeOf(error) !== '22023') throw error
  }
}

async function createSequence(client: PgClient, statements: Statements): Promise<void> {
  try {
    await ask(client, statements.createAlone)
  } catch (error) {
    if (isFatal(error)) throw error
    await ask(client, 'ROLLBACK')
    // Somebody who does not know our lock created it at this very moment.
    if (codeOf(error) !== '23505' && codeOf(error) !== '42P07') throw error
  }
}

function notOneByOne(statements: Statements): string {
  return `the sequence ${statements.sequence} must hand out one number after the other, or fencing tokens would not grow: ALTER SEQUENCE ${statements.sequence} INCREMENT 1 CACHE 1 NO CYCLE`
}

/** Missing rights and schemas, in words that say what to run. */
async function explained<T>(statements: Statements, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    const code = codeOf(error)
    if (code !== '42501' && code !== '3F000') throw error
    throw new LeaseholdError(
      'SCHEMA',
      `fencing tokens come from the sequence ${statements.sequence}, and this role may not use or create it (${(error as Error).message}). Let its owner run: ${statements.setup}`,
      { cause: error },
    )
  }
}

/**
 * Something between us and PostgreSQL made up our process ID. That is fine as long as it keeps one backend for us.
 * Whether it does is asked before anything is set: a setting would stay behind on a connection that others get.
 */
async function assertSessions(client: PgClient, pid: number, { open, world }: SetupOptions): Promise<void> {
  const bounded = <T>(work: Promise<T>): Promise<T> => within(world, work)
  const other = open()
  other.on('error', () => {})
  try {
    await bounded(other.connect())
    // Some poolers hand out the connection that was returned last, some the first, and others may take one meanwhile.
    for (let round = 0; round < 6; round++) {
      await bounded(ask(client, 'BEGIN'))
      await bounded(ask(other, 'BEGIN'))
      for (const each of round % 2 ? [client, other] : [other, client]) await bounded(ask(each, 'COMMIT'))
      if ((await bounded(backendOf(client))) !== pid) throw pooled()
    }
  } catch (error) {
    if (error instanceof LeaseholdError) throw error
    throw new StoreUnavailableError(
      'postgres-advisory is unavailable: a pooler is in between, and it had no second connection to tell whether it keeps sessions apart',
      { cause: error },
    )
  } finally {
    await end(other, world)
  }
}

async function backendOf(client: PgClient): Promise<number> {
  return Number((await ask(client, 'SELECT pg_backend_pid()'))[0]?.[0])
}

/** A pooler that has no second connection to give lets us wait for one: for no longer than this. */
const SECOND_CONNECTION_MS = 1_000

function within<T>(world: World, work: Promise<T>): Promise<T> {
  let cancel: (() => void) | undefined
  const late = new Promise<never>((_, reject) => {
    cancel = world.after(SECOND_CONNECTION_MS, () => reject(new Error('no second connection')), true)
  })
  return Promise.race([work, late]).finally(() => cancel?.())
}
