/**
 * Every SQL statement of a session. `$1::bigint` is a lock's number; a pair of 32-bit numbers travels in one, its first
 * number in the upper half.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'
import { idOfName, type LockId } from './keys.js'

/** A prepared statement of a session, or one to be used once, which has no name. */
export interface NamedStatement {
  readonly name: string
  readonly text: string
}

/** Which lock function is called: 1 exclusive, 2 shared; 3 and 4 the same for (int4, int4) pairs. */
export type LockMode = 1 | 2 | 3 | 4

/**
 * 5 and 6 (pairs) lock nothing: one more reader of what its session already holds shared. A session may take its own lock
 * again past everybody who waits, so readers who keep coming would starve a writer: 5 and 6 are refused while anybody waits.
 */
export type TryMode = LockMode | 5 | 6

export function lockMode(id: LockId, shared: boolean): LockMode {
  return (1 + (shared ? 1 : 0) + (id.pair ? 2 : 0)) as LockMode
}

/** Held exclusively while the sequence is created or raised, and shared while a token is drawn. */
const RAISING: LockId = idOfName('\0leasehold advisory raising')

/** Whether this lock is leasehold's own, which holders and waiters do not show. */
export function isInternal(id: LockId): boolean {
  return id.text === RAISING.text
}

/** The statements that name the sequence of one store. */
export class AdvisoryStatements {
  /** As SQL writes it, quoted: `"public"."leasehold_advisory_token"`. */
  readonly sequence: string
  /** The only thing that has to exist. CACHE 1: a session that had drawn several tokens ahead would hand out old ones. */
  readonly createSequence: string
  /**
   * Lifts the sequence to the microseconds of the server's clock, never down, so that tokens go on growing although the
   * sequence itself was lost or set back: by a crash, a failover or a restored backup.
   */
  readonly raiseSequence: string
  /** An expression. Without the shared lock, a raise could set the sequence back behind tokens drawn meanwhile. */
  readonly #nextToken: string

  constructor(schema: string) {
    if (typeof schema !== 'string' || schema === '' || schema.includes('\0')) {
      throw new InvalidOptionError('schema', schema, 'the name of a schema')
    }
    this.sequence = `"${schema.replaceAll('"', '""')}"."leasehold_advisory_token"`
    const literal = this.sequence.replaceAll("'", "''")
    this.createSequence = `CREATE SEQUENCE IF NOT EXISTS ${this.sequence} AS bigint MINVALUE 1 CACHE 1 NO CYCLE`
    this.raiseSequence = `BEGIN;
      SELECT pg_advisory_xact_lock(${RAISING.bits});
      SELECT setval('${literal}'::regclass, micros)
      FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros) AS clock
      WHERE micros > coalesce(pg_sequence_last_value('${literal}'::regclass), 0);
      COMMIT`
    this.#nextToken = `CASE WHEN pg_advisory_xact_lock_shared(${RAISING.bits})::text = '' THEN nextval('${literal}'::regclass) END`
  }

  /** What the owner of the schema runs for a role that may not create the sequence itself. */
  get grants(): string {
    return `${this.createSequence}; GRANT USAGE, SELECT, UPDATE ON SEQUENCE ${this.sequence} TO <role>`
  }

  /** Under the lock that keeps other sessions from creating the sequence at the same moment. */
  get createSequenceAlone(): string {
    return `BEGIN; SELECT pg_advisory_xact_lock(${RAISING.bits}); ${this.createSequence}; COMMIT`
  }

  /**
   * `pid`: the session's backend. A statement that a pooler sends to another backend answers -1 and locks nothing there:
   * CASE evaluates in order.
   */
  forSession(pid: number): SessionStatements {
    const token = this.#nextToken
    const perMode = (name: string, text: (mode: LockMode) => string): NamedStatement[] =>
      ([1, 2, 3, 4] as const).map((mode) => ({ name: `${name}${mode}`, text: text(mode) }))
    return {
      tryOne: perMode('try', (mode) => tryOne(pid, call('pg_try_advisory_lock', mode), token)),
      wait: perMode('wait', (mode) => tryOne(pid, `${call('pg_advisory_lock', mode)}::text = ''`, token)),
      unlockOne: perMode('unlock', (mode) => `SELECT ${call('pg_advisory_unlock', mode)}`),
      tryMany: { name: 'tries', text: tryMany(pid, token) },
      unlockMany: { name: 'unlocks', text: UNLOCK_MANY },
      held: { name: 'held', text: HELD },
      token: { name: 'token', text: `SELECT ${token}` },
      ping: { name: 'ping', text: `SELECT set_config('idle_session_timeout', $1, false), pg_backend_pid()` },
    }
  }
}

/** The prepared statements of one session. Arrays are indexed by mode − 1. */
export interface SessionStatements {
  /** $1 key → token | null: busy | -1: another backend */
  readonly tryOne: readonly NamedStatement[]
  /** $1 key → token | -1: another backend */
  readonly wait: readonly NamedStatement[]
  /** $1 key → t: it was held | f: it was not */
  readonly unlockOne: readonly NamedStatement[]
  /** $1 int[] modes   $2 bigint[] keys   $3 all or none → n, token | null: busy | -1: another backend */
  readonly tryMany: NamedStatement
  /** $1 int[] modes   $2 bigint[] keys → n, t: it was held | f: it was not */
  readonly unlockMany: NamedStatement
  /** → mode, key of every advisory lock that the session holds beyond its transaction */
  readonly held: NamedStatement
  readonly token: NamedStatement
  /** $1 idle limit in ms → its value, backend pid */
  readonly ping: NamedStatement
}

/** The call of a lock function for $1. */
function call(name: string, mode: LockMode): string {
  const shared = mode % 2 === 0 ? '_shared' : ''
  return mode > 2
    ? `${name}${shared}(($1::bigint >> 32)::int, ($1::bigint << 32 >> 32)::int)`
    : `${name}${shared}($1::bigint)`
}

/** The token is drawn while the lock is held, so that tokens grow with the grants of a key. */
function tryOne(pid: number, granted: string, token: string): string {
  return `SELECT CASE
    WHEN pg_backend_pid() <> ${pid} THEN -1
    WHEN ${granted} THEN ${token}
  END`
}

function tryMany(pid: number, token: string): string {
  return `WITH waiting AS MATERIALIZED (
    SELECT classid, objid, objsubid
    FROM pg_locks
    WHERE locktype = 'advisory' AND NOT granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  ), tried AS MATERIALIZED (
    SELECT n, mode, key, CASE
      WHEN pg_backend_pid() <> ${pid} THEN false
      WHEN mode = 1 THEN pg_try_advisory_lock(key)
      WHEN mode = 2 THEN pg_try_advisory_lock_shared(key)
      WHEN mode = 3 THEN pg_try_advisory_lock((key >> 32)::int, (key << 32 >> 32)::int)
      WHEN mode = 4 THEN pg_try_advisory_lock_shared((key >> 32)::int, (key << 32 >> 32)::int)
      ELSE NOT EXISTS (
        SELECT FROM waiting
        WHERE classid = (key >> 32 & 4294967295)::oid AND objid = (key & 4294967295)::oid AND objsubid = mode - 4
      )
    END AS ok
    FROM unnest($1::int[], $2::bigint[]) WITH ORDINALITY AS item(mode, key, n)
  )
  SELECT n, CASE
    WHEN pg_backend_pid() <> ${pid} THEN -1
    WHEN CASE WHEN $3::boolean THEN NOT (SELECT bool_and(ok) FROM tried) ELSE false END THEN
      CASE WHEN CASE
        WHEN NOT ok THEN true
        WHEN mode = 1 THEN pg_advisory_unlock(key)
        WHEN mode = 2 THEN pg_advisory_unlock_shared(key)
        WHEN mode = 3 THEN pg_advisory_unlock((key >> 32)::int, (key << 32 >> 32)::int)
        WHEN mode = 4 THEN pg_advisory_unlock_shared((key >> 32)::int, (key << 32 >> 32)::int)
        ELSE true
      END THEN NULL::bigint END
    WHEN ok THEN ${token}
  END
  FROM tried`
}

const UNLOCK_MANY = `SELECT n, CASE mode
    WHEN 1 THEN pg_advisory_unlock(key)
    WHEN 2 THEN pg_advisory_unlock_shared(key)
    WHEN 3 THEN pg_advisory_unlock((key >> 32)::int, (key << 32 >> 32)::int)
    ELSE pg_advisory_unlock_shared((key >> 32)::int, (key << 32 >> 32)::int)
  END
  FROM unnest($1::int[], $2::bigint[]) WITH ORDINALITY AS item(mode, key, n)`

const HELD = `SELECT CASE mode WHEN 'ExclusiveLock' THEN 1 ELSE 2 END + CASE objsubid WHEN 2 THEN 2 ELSE 0 END,
    (classid::bigint << 32) | objid::bigint
  FROM pg_locks
  WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()`

/**
 * $1 name of the sequence → backend pid, its start, server version, whether a standby, whether the sequence exists and
 * hands out its numbers one by one
 */
export const FACTS = `SELECT pg_backend_pid(),
    (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()),
    current_setting('server_version_num')::int,
    pg_is_in_recovery(),
    found.oid IS NOT NULL,
    seqcache = 1 AND seqincrement = 1 AND NOT seqcycle
  FROM (SELECT to_regclass($1)::oid AS oid) AS found
  LEFT JOIN pg_sequence ON seqrelid = found.oid`

/**
 * $1 how long one statement may wait in the queue of a lock, in ms   $2 application name. Overrides what the role, the
 * database or the pool's options say: no statement of ours may be cut short, the ttl of the session is set with the first
 * lock, and nothing in it has to be durable, because the sequence is raised anew after a crash.
 */
export const SETTINGS = `SELECT set_config(name, value, false)
  FROM (VALUES
    ('application_name', $2),
    ('client_min_messages', 'error'),
    ('search_path', 'pg_catalog'),
    ('statement_timeout', '0'),
    ('lock_timeout', $1),
    ('idle_in_transaction_session_timeout', '0'),
    ('idle_session_timeout', '0'),
    ('default_transaction_isolation', 'read committed'),
    ('default_transaction_read_only', 'off'),
    ('synchronous_commit', 'off'),
    ('plan_cache_mode', 'force_generic_plan'),
    ('tcp_keepalives_idle', '3'),
    ('tcp_keepalives_interval', '1'),
    ('tcp_keepalives_count', '3')
  ) AS setting(name, value)`

/** $1 pid   $2 when that backend started. Without the start, a backend that got the same pid later would be cancelled. */
export const CANCEL =
  'SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1::int AND backend_start = $2::timestamptz'

/** $1 pid of a session of ours that waits → whether it really does; the backend that blocks it: pid, name, address */
export const BLOCKER = `SELECT
    EXISTS (SELECT FROM pg_locks WHERE pid = $1::int AND locktype = 'advisory' AND NOT granted),
    blocker.pid, activity.application_name, host(activity.client_addr)
  FROM (SELECT 1) AS one
  LEFT JOIN LATERAL (SELECT pid FROM unnest(pg_blocking_pids($1::int)) AS by(pid) LIMIT 1) AS blocker ON true
  LEFT JOIN pg_stat_activity AS activity ON activity.pid = blocker.pid`

/**
 * $1 key or null: all   $2 objsubid: 1, or 2 for pairs → one row per advisory lock that is held or waited for in this
 * database, the waiting ones in the order of their arrival
 */
export const LOCKS = `SELECT lock.pid, lock.objsubid, (lock.classid::bigint << 32) | lock.objid::bigint,
    lock.mode = 'ShareLock', lock.granted,
    extract(epoch FROM clock_timestamp() - lock.waitstart) * 1000,
    CASE WHEN lock.granted THEN NULL ELSE array_to_string(pg_blocking_pids(lock.pid), ' ') END,
    activity.application_name, activity.usename, host(activity.client_addr), activity.state,
    extract(epoch FROM clock_timestamp() - activity.xact_start) * 1000
  FROM pg_locks AS lock
  LEFT JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
  WHERE lock.locktype = 'advisory'
    AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ($1::bigint IS NULL OR (
      lock.classid = ($1::bigint >> 32 & 4294967295)::oid AND lock.objid = ($1::bigint & 4294967295)::oid
      AND lock.objsubid = $2::int
    ))
  ORDER BY lock.granted DESC, lock.waitstart, lock.pid`
