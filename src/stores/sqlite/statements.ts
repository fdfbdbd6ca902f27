/**
 * Every statement the store runs, prepared once per connection. `?1` is the key wherever there is one.
 *
 * Statements that run often have no RETURNING: SQLite makes a table for its rows each time (8 µs of the 60 that a pair of
 * acquire and release took). Inserts use OR FAIL, because otherwise an insert with a trigger keeps a statement journal, to
 * undo itself alone; an error here ends the whole transaction anyway.
 *
 * @module
 */
import type { SqliteDatabase, SqliteStatement } from './driver.js'

const texts = {
  begin: 'BEGIN IMMEDIATE',
  beginReading: 'BEGIN',
  commit: 'COMMIT',
  rollback: 'ROLLBACK',
  beginAtomic: 'SAVEPOINT atomic',
  undoAtomic: 'ROLLBACK TO atomic',

  // Whole milliseconds since the beginning of 1970, which is Julian day 2440587.5.
  wallTime: "SELECT round((julianday('now') - 2440587.5) * 86400000.0) AS ms",

  state: 'SELECT boot, swept_to AS sweptTo FROM state',

  // Everything that most calls need, in one statement. min() of no rows is null: no holder, no waiter.
  overview: `SELECT count(*) AS holding, total(weight) AS held, min(expires_at) AS firstEnd,
      (SELECT min(expires_at) FROM waiters WHERE key = ?1) AS firstWaiterEnd,
      (SELECT boot FROM state) AS boot, (SELECT last_token FROM state) AS lastToken
    FROM holders WHERE key = ?1`,
  // An uncontended acquire in one statement, which is a transaction by itself. It changes nothing if the key has a holder or
  // a waiter, if a token of at least ?8 was granted meanwhile, or if the file is of another boot than ?10.
  acquireFree: `INSERT OR FAIL INTO holders (key, owner, weight, capacity, expires_at, ttl_ms, since, token, announce, value)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, ?9 FROM state WHERE boot = ?10 AND last_token < ?8
      AND NOT EXISTS (SELECT 1 FROM holders WHERE key = ?1) AND NOT EXISTS (SELECT 1 FROM waiters WHERE key = ?1)`,
  // An uncontended release, likewise. ?3 now ?4 boot ?5 token, null: not known
  releaseUncontended: `DELETE FROM holders WHERE key = ?1 AND owner = ?2 AND expires_at > ?3 AND announce = 0
    AND (?5 IS NULL OR token = ?5) AND NOT EXISTS (SELECT 1 FROM waiters WHERE key = ?1) AND (SELECT boot FROM state) = ?4`,

  addHolder: `INSERT OR FAIL INTO holders (key, owner, weight, capacity, expires_at, ttl_ms, since, token, announce, value)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`,
  reserveTokens: 'UPDATE state SET last_token = ?1',
  findHolder: 'SELECT weight, token, announce, expires_at AS expiresAt FROM holders WHERE key = ?1 AND owner = ?2',
  // max() never shortens a lease: a renewal that arrives late must not take away what a later one gave.
  // ?2 owner ?3 now ?4 ttl ?5 token, null: not known ?6 value
  extend: `UPDATE holders SET expires_at = max(expires_at, ?3 + ?4), ttl_ms = max(expires_at, ?3 + ?4) - ?3
    WHERE key = ?1 AND owner = ?2 AND expires_at > ?3 AND (?5 IS NULL OR token = ?5)`,
  extendAndSetValue: `UPDATE holders
    SET expires_at = max(expires_at, ?3 + ?4), ttl_ms = max(expires_at, ?3 + ?4) - ?3, value = ?6
    WHERE key = ?1 AND owner = ?2 AND expires_at > ?3 AND (?5 IS NULL OR token = ?5)`,
  endHolder: 'DELETE FROM holders WHERE key = ?1 AND owner = ?2',
  endHolders: 'DELETE FROM holders WHERE key = ?1 RETURNING owner, announce, token',
  expireHolders: 'DELETE FROM holders WHERE key = ?1 AND expires_at <= ?2 RETURNING announce',
  // The holder whose lease ends first determines how long a waiter may have to wait.
  firstToEnd: `SELECT owner, token, value, expires_at AS expiresAt FROM holders
    WHERE key = ?1 ORDER BY expires_at, token LIMIT 1`,

  head: `SELECT owner, weight, capacity, queue_ms AS queueMs, ttl_ms AS ttlMs, announce, subscriber, value FROM waiters
    WHERE key = ?1 ORDER BY seq LIMIT 1`,
  findWaiter: 'SELECT seq FROM waiters WHERE key = ?1 AND owner = ?2',
  nextSeq: 'SELECT coalesce(max(seq), 0) + 1 AS seq FROM waiters WHERE key = ?1',
  keepWaiter: 'UPDATE waiters SET expires_at = ?3, subscriber = ?4 WHERE key = ?1 AND seq = ?2',
  // One step in an index, however long the queue is. ?2 owner ?3 now ?4 ttl ?5 subscriber
  renewWaiter: `UPDATE waiters SET expires_at = max(expires_at, ?3 + ?4), subscriber = ?5
    WHERE key = ?1 AND owner = ?2 AND expires_at > ?3`,
  addWaiter: `INSERT INTO waiters
      (key, seq, owner, weight, capacity, expires_at, queue_ms, ttl_ms, since, announce, subscriber, value)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)`,
  endWaiter: 'DELETE FROM waiters WHERE key = ?1 AND owner = ?2',
  expireWaiters: 'DELETE FROM waiters WHERE key = ?1 AND expires_at <= ?2',
  countWaiters: 'SELECT count(*) AS n FROM waiters WHERE key = ?1 AND seq >= ?2 AND seq < ?3',

  holdersOf: `SELECT key, owner, weight, capacity, token, value, expires_at AS expiresAt, since,
      (SELECT count(*) FROM waiters WHERE key = ?1 AND expires_at > ?2) AS waiting
    FROM holders WHERE key = ?1 AND expires_at > ?2 ORDER BY token`,
  // No valid text contains the byte FF, so the prefix with FF sorts after all keys with that prefix, whatever follows it.
  holdersUnder: `SELECT key, owner, weight, capacity, token, value, expires_at AS expiresAt, since,
      (SELECT count(*) FROM waiters WHERE key = holders.key AND expires_at > ?2) AS waiting
    FROM holders WHERE key >= ?1 AND key < ?1 || CAST(x'ff' AS TEXT) AND expires_at > ?2 ORDER BY key, token`,
  waitersOf: `SELECT owner, weight, capacity, since, value FROM waiters
    WHERE key = ?1 AND expires_at > ?2 ORDER BY seq`,

  refreshSubscriber: 'UPDATE subscribers SET expires_at = ?2 WHERE id = ?1',
  addSubscriber: 'INSERT OR REPLACE INTO subscribers (id, expires_at) VALUES (?1, ?2)',
  endSubscriber: 'DELETE FROM subscribers WHERE id = ?1',
  expireSubscribers: 'DELETE FROM subscribers WHERE expires_at <= ?1 RETURNING id',
  allSubscribers: 'SELECT id FROM subscribers',
  subscribe: 'INSERT OR IGNORE INTO subscriptions (key, subscriber) VALUES (?1, ?2)',
  unsubscribe: 'DELETE FROM subscriptions WHERE key = ?1 AND subscriber = ?2',
  unsubscribeAll: 'DELETE FROM subscriptions WHERE subscriber = ?1',
  subscribersOf: 'SELECT subscriber FROM subscriptions WHERE key = ?1',

  findMeters: 'SELECT shape, meters FROM meters WHERE key = ?1',
  setMeters: `INSERT OR REPLACE INTO meters (key, idle_at, touched_at, shape, meters) VALUES (?1, ?2, ?3, ?4, ?5)`,

  // The key at which a sweep that starts after key ?1 stops, at most ?2 rows of a table later; null: at the end of all tables.
  sweepEnd: `SELECT min(key) AS key FROM (
    SELECT (SELECT key FROM holders WHERE key > ?1 ORDER BY key LIMIT 1 OFFSET ?2) AS key UNION ALL
    SELECT (SELECT key FROM waiters WHERE key > ?1 ORDER BY key LIMIT 1 OFFSET ?2) UNION ALL
    SELECT (SELECT key FROM meters WHERE key > ?1 ORDER BY key LIMIT 1 OFFSET ?2))`,
  sweepHolders: 'DELETE FROM holders WHERE key > ?1 AND key <= ?2 AND expires_at <= ?3 RETURNING key, announce',
  sweepWaiters: 'DELETE FROM waiters WHERE key > ?1 AND key <= ?2 AND expires_at <= ?3',
  sweepMeters: 'DELETE FROM meters WHERE key > ?1 AND key <= ?2 AND idle_at <= ?3',
  setSweptTo: 'UPDATE state SET swept_to = ?1',
} as const

export type SqliteStatements = Record<keyof typeof texts, SqliteStatement>

export function prepareStatements(db: SqliteDatabase): SqliteStatements {
  const entries = Object.entries(texts).map(([name, text]) => [name, db.prepare(text)])
  return Object.fromEntries(entries) as SqliteStatements
}
