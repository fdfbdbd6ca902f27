import { InvalidOptionError } from '../../errors.js'
import { type Duration, milliseconds } from '../../kit/duration.js'
import { type World, realWorld } from '../../kit/world.js'
import { knownOptions } from '../../util/options.js'
import type { PgPool } from './client.js'
import type { AdvisoryId } from './ids.js'
import { LONGEST_IDLE_MS } from './idle-limit.js'
import { MARK } from './setup.js'
import { Statements } from './statements.js'

export interface AdvisoryOptions {
  /**
   * Connections of its own that the store opens at most, and one more for each further class of ttl that is held at the
   * same time. One is enough as long as nobody waits. Who waits while all are taken asks again and again instead of
   * standing in the server's queue.
   */
  maxSessions?: number | undefined
  /** Where the sequence of fencing tokens is. All who share locks must name the same one. */
  schema?: string | undefined
  /** Your own numbers for some names, to share locks with others who use them. Undefined: the hash of the name. */
  key?: (name: string) => AdvisoryId | undefined
  /** How long to wait for an answer of the server before it counts as unavailable. */
  timeout?: Duration | undefined
  /**
   * Leave the server's queue after this long, and enter it again at its end. A statement that waits keeps PostgreSQL
   * from cleaning up what has been deleted since it began.
   */
  queueFor?: Duration | undefined
  /** Time, timers and chance, for tests. */
  world?: World | undefined
}

const OPTIONS = ['maxSessions', 'schema', 'key', 'timeout', 'queueFor', 'world']

export interface Settings {
  maxSessions: number
  world: World
  timeoutMs: number
  queueMs: number
  statements: Statements
  applicationName: string
}

export function settingsOf(pool: PgPool, options: AdvisoryOptions): Settings {
  const {
    maxSessions = 4,
    world = realWorld,
    schema = 'public',
    timeout = '5s',
    queueFor = '1m',
  } = knownOptions(options, OPTIONS)
  if (!Number.isInteger(maxSessions) || maxSessions < 1) {
    throw new InvalidOptionError('maxSessions', maxSessions, 'a whole number of at least 1')
  }
  return {
    maxSessions,
    world,
    timeoutMs: milliseconds('timeout', timeout, { min: 10 }),
    queueMs: milliseconds('queueFor', queueFor, { min: 10, max: LONGEST_IDLE_MS }),
    statements: new Statements(schema),
    applicationName: markedName(pool),
  }
}

/** What monitoring shows, so that everybody sees whose session it is and that it is one of ours. */
function markedName(pool: PgPool): string {
  const { application_name: own } = (pool?.options ?? {}) as { application_name?: unknown }
  const name = typeof own === 'string' && own !== '' ? own : (process.env['PGAPPNAME'] ?? '')
  return `${Buffer.from(name)
    .subarray(0, 50)
    .toString()
    .replace(/\uFFFD+$/, '')} ${MARK}`.trim()
}
