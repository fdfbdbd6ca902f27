/**
 * Every statement the store runs, prepared once per connection. `?1` is the key wherever there is one.
 *
 * No RETURNING in those that run often: SQLite makes a table for its rows each time (8 µs of the 60 that a pair of
 * acquire and release took). OR FAIL, because otherwise an insert with a trigger keeps a journal of its own, to undo
 * itself alone; an error ends the whole transaction here anyway.
 *
 * @module
 */
import type { Database, Statement } from './driver.js'

const texts = {
  begin: 'BEGIN IMMEDIATE',
  beginReading: 'BEGIN',
  commit: 'COMMIT',
  rollback: 'ROLLBACK',
  mark: 'SAVEPOINT mark',
  backToMark: 'ROLLBACK TO mark',

  // Whole milliseconds since the beginning of 1970, which is day 2440587.5.
  wallTime: "SELECT round((julianday('now') - 2440587.5) * 86400000.0) AS ms",

  state: 'SELECT boot, swept_to AS sweptTo FROM state',

  // All that most questions need, in one step. min() of no rows is null: nobody holds, nobody waits.
  overview: `SELECT count(*) AS holding, total(weight) AS held, min(expires_at) AS firstEnd,
      (SELECT min(expires_at) FROM places WHERE key = ?1) AS firstPlaceEnd,
      (SELECT boot FROM state) AS boot, (SELECT last_token FROM state) AS lastToken
    FROM holders WHERE key = ?1`,
  // What concerns nobody else, in one statement, which is a transaction by itself. Changes nothing if anything is unusual:
  // somebody holds or waits, the token ?8 has been overtaken, or the boot ?10 is another's.
  takeVacant: `INSERT OR FAIL INTO holders (key, owner, weight, capacity, expires_at, ttl_ms, since, token, announce, value)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, ?9 FROM state WHERE boot = ?10 AND last_token < ?8
      AND NOT EXISTS (SELECT 1 FROM holders WHERE key = ?1) AND NOT EXISTS (SELECT 1 FROM places WHERE key = ?1)`,
  // ?3 now ?4 boot ?5 token, null: not known
  letGo: `DELETE FROM holders WHERE key = ?1 AND owner = ?2 AND expires_at > ?3 AND announce = 0
    AND (?5 IS NULL OR token = ?5) AND NOT EXISTS (SELECT 1 FROM places WHERE key = ?1) AND (SELECT boot FROM state) = ?4`,

  addHolder: `INSERT OR FAIL INTO holders (key, owner, weight, capacity, expires_at, ttl_ms, since, token, announce, value)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`,
  findHolder: 'SELECT token, announce, expires_at AS expiresAt FROM holders WHERE key = ?1 AND owner = ?2',
  // Never shortens: a renewal that arrives late must not take away what a later one gave.
  // ?2 owner ?3 now ?4 ttl ?5 token, null: not known ?6 value
  extend: `UPDATE holders SET expires_at = max(expires_at, ?3 + ?4), ttl_ms = max(expires_at, ?3 + ?4) - ?3
    WHERE key = ?1 AND owner = ?2 AND expires_at > ?3 AND (?5 IS NULL OR token = ?5)`,
  extendAndTell: `UPDATE holders
    SET expires_at = max(expires_at, ?3 + ?4), ttl_ms = max(expires_at, ?3 + ?4) - ?3, value = ?6
    WHERE key = ?1 AND owner = ?2 AND expires_at > ?3 AND (?5 IS NULL OR token = ?5)`,
  endHolder: 'DELETE FROM holders WHERE key = ?1 AND owner = ?2',
  endHolders: 'DELETE FROM holders WHERE key = ?1 RETURNING owner, announce, token',
  expireHolders: 'DELETE FROM holders WHERE key = ?1 AND expires_at <= ?2 RETURNING announce',
  // The one whose lease ends first tells how long to wait.
  firstToEnd: `SELECT owner, token, value, expires_at AS expiresAt FROM holders
    WHERE key = ?1 ORDER BY expires_at, token LIMIT 1`,

  head: `SELECT owner, weight, capacity, place_ms AS placeMs, ttl_ms AS ttlMs, announce, bell, value FROM places
    WHERE key = ?1 ORDER BY seq LIMIT 1`,
  findPlace: 'SELECT seq FROM places WHERE key = ?1 AND owner = ?2',
  nextPlace: 'SELECT coalesce(max(seq), 0) + 1 AS seq FROM places WHERE key = ?1',
  keepPlace: 'UPDATE places SET expires_at = ?3, bell = ?4 WHERE key = ?1 AND seq = ?2',
  // A renewal: one step in an index, however long the queue is. ?2 owner ?3 now ?4 ttl ?5 bell
  renewPlace: `UPDATE places SET expires_at = max(expires_at, ?3 + ?4), bell = ?5
    WHERE key = ?1 AND owner = ?2 AND expires_at > ?3`,
  addPlace: `INSERT INTO places
      (key, seq, owner, weight, capacity, expires_at, place_ms, ttl_ms, since, announce, bell, value)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)`,
  endPlace: 'DELETE FROM places WHERE key = ?1 AND owner = ?2',
  expirePlaces: 'DELETE FROM places WHERE key = ?1 AND expires_at <= ?2',
  countPlaces: 'SELECT count(*) AS n FROM places WHERE key = ?1 AND seq >= ?2 AND seq < ?3',

  holdersOf: `SELECT key, owner, weight, capacity, token, value, expires_at AS expiresAt, since,
      (SELECT count(*) FROM places WHERE key = ?1 AND expires_at > ?2) AS waiting
    FROM holders WHERE key = ?1 AND expires_at > ?2 ORDER BY token`,
  // No valid text holds the byte FF, so this is the end of all keys with that prefix, whatever follows it.
  holdersUnder: `SELECT key, owner, weight, capacity, token, value, expires_at AS expiresAt, since,
      (SELECT count(*) FROM places WHERE key = holders.key AND expires_at > ?2) AS waiting
    FROM holders WHERE key >= ?1 AND key < ?1 || CAST(x'ff' AS TEXT) AND expires_at > ?2 ORDER BY key, token`,
  placesOf: `SELECT owner, weight, capacity, since, value FROM places
    WHERE key = ?1 AND expires_at > ?2 ORDER BY seq`,

  refreshBell: 'UPDATE bells SET expires_at = ?2 WHERE id = ?1',
  addBell: 'INSERT OR REPLACE INTO bells (id, expires_at) VALUES (?1, ?2)',
  endBell: 'DELETE FROM bells WHERE id = ?1',
  expireBells: 'DELETE FROM bells WHERE expires_at <= ?1 RETURNING id',
  liveBells: 'SELECT id FROM bells',
  addWatcher: 'INSERT OR IGNORE INTO watchers (key, bell) VALUES (?1, ?2)',
  endWatcher: 'DELETE FROM watchers WHERE key = ?1 AND bell = ?2',
  endWatchersOf: 'DELETE FROM watchers WHERE bell = ?1',
  watchersOf: 'SELECT bell FROM watchers WHERE key = ?1',

  findMeters: 'SELECT shape, meters FROM meters WHERE key = ?1',
  setMeters: `INSERT OR REPLACE INTO meters (key, idle_at, touched_at, shape, meters) VALUES (?1, ?2, ?3, ?4, ?5)`,

  // Where the sweep that begins after key ?1 ends, at most ?2 rows of a table further on; null: at the end of all tables.
  sweepEnd: `SELECT min(key) AS key FROM (
    SELECT (SELECT key FROM holders WHERE key > ?1 ORDER BY key LIMIT 1 OFFSET ?2) AS key UNION ALL
    SELECT (SELECT key FROM places WHERE key > ?1 ORDER BY key LIMIT 1 OFFSET ?2) UNION ALL
    SELECT (SELECT key FROM meters WHERE key > ?1 ORDER BY key LIMIT 1 OFFSET ?2))`,
  sweepHolders: 'DELETE FROM holders WHERE key > ?1 AND key <= ?2 AND expires_at <= ?3 RETURNING key, announce',
  sweepPlaces: 'DELETE FROM places WHERE key > ?1 AND key <= ?2 AND expires_at <= ?3',
  sweepMeters: 'DELETE FROM meters WHERE key > ?1 AND key <= ?2 AND idle_at <= ?3',
  setSweptTo: 'UPDATE state SET swept_to = ?1',
} as const

export type Statements = Record<keyof typeof texts, Statement>

export function prepareStatements(db: Database): Statements {
  const entries = Object.entries(texts).map(([name, text]) => [name, db.prepare(text)])
  return Object.fromEntries(entries) as Statements
}
