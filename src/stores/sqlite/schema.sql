-- schema.sql creates everything in an empty file. The store applies it once, in the transaction that found the file empty.
--
-- Every time (…_at, since) is in milliseconds on the monotonic clock of the boot named in state.boot, never wall time.
-- Long columns come last: a scan then reads the short ones without following overflow pages.

-- One row. last_token is the newest fencing token of any key: one counter for all keys, so no row is kept per unused key.
-- swept_to is the key at which the last sweep stopped, so that processes which live for a few calls advance it too.
CREATE TABLE state (
  id         INTEGER PRIMARY KEY CHECK (id = 1),
  boot       TEXT    NOT NULL,
  last_token INTEGER NOT NULL,
  swept_to   TEXT    NOT NULL
);

-- One row per live lease. announce: subscribers of the key are told when the lease begins, changes or ends.
CREATE TABLE holders (
  key        TEXT    NOT NULL,
  owner      TEXT    NOT NULL,
  weight     INTEGER NOT NULL,
  capacity   INTEGER NOT NULL,
  expires_at REAL    NOT NULL,
  ttl_ms     REAL    NOT NULL,
  since      REAL    NOT NULL,
  token      INTEGER NOT NULL,
  announce   INTEGER NOT NULL,
  value      TEXT,
  PRIMARY KEY (key, owner)
) WITHOUT ROWID;

-- The trigger records every token in the transaction that grants it: a statement that forgot to would let a token repeat.
CREATE TRIGGER remember_token AFTER INSERT ON holders BEGIN
  UPDATE state SET last_token = new.token;
END;

-- The queue of each key, first come, first served: seq is the order of arrival within the key.
-- subscriber is the process that gets the grant; null: every process that subscribes to the key.
CREATE TABLE waiters (
  key        TEXT    NOT NULL,
  seq        INTEGER NOT NULL,
  owner      TEXT    NOT NULL,
  weight     INTEGER NOT NULL,
  capacity   INTEGER NOT NULL,
  expires_at REAL    NOT NULL,
  queue_ms   REAL    NOT NULL,
  ttl_ms     REAL    NOT NULL,
  since      REAL    NOT NULL,
  announce   INTEGER NOT NULL,
  subscriber TEXT,
  value      TEXT,
  PRIMARY KEY (key, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX waiters_by_owner ON waiters (key, owner);
CREATE INDEX waiters_by_expiry ON waiters (key, expires_at);

-- A subscriber is a process that watches a file named after its id, see wakeup-file.ts. subscriptions: to which keys.
CREATE TABLE subscribers (
  id         TEXT PRIMARY KEY,
  expires_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE subscriptions (
  key        TEXT NOT NULL,
  subscriber TEXT NOT NULL,
  PRIMARY KEY (key, subscriber)
) WITHOUT ROWID;
CREATE INDEX subscriptions_by_subscriber ON subscriptions (subscriber);

-- Rate limits. meters is JSON: per limit [fullAt, at, cost, at, cost, …, since]; shape changes when the limits are configured anew.
CREATE TABLE meters (
  key        TEXT PRIMARY KEY,
  idle_at    REAL NOT NULL,
  touched_at REAL NOT NULL,
  shape      TEXT NOT NULL,
  meters     TEXT NOT NULL
) WITHOUT ROWID;
