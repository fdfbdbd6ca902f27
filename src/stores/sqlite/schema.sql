-- schema.sql   creates everything in an empty file: applied once, inside the transaction that found it empty
--
-- Every time (…_at, since) is milliseconds on the monotonic clock of the boot named in state.boot, never wall time.
-- Long columns come last: a scan then reads the short ones without following them to other pages.

-- One row. last_token is the last fencing token of any key: one counter for all, so nothing is kept per name.
CREATE TABLE state (
  id         INTEGER PRIMARY KEY CHECK (id = 1),
  boot       TEXT    NOT NULL,
  last_token INTEGER NOT NULL,
  swept_to   TEXT    NOT NULL
);

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

-- Every token that is given out is remembered in the same step, whichever statement gave it.
CREATE TRIGGER remember_token AFTER INSERT ON holders BEGIN
  UPDATE state SET last_token = new.token;
END;

-- The line of a key, first come, first served: seq is the order of arrival within the key.
-- bell names the process to tell when this place is served; null: tell everyone who watches the key.
CREATE TABLE places (
  key        TEXT    NOT NULL,
  seq        INTEGER NOT NULL,
  owner      TEXT    NOT NULL,
  weight     INTEGER NOT NULL,
  capacity   INTEGER NOT NULL,
  expires_at REAL    NOT NULL,
  place_ms   REAL    NOT NULL,
  ttl_ms     REAL    NOT NULL,
  since      REAL    NOT NULL,
  announce   INTEGER NOT NULL,
  bell       TEXT,
  value      TEXT,
  PRIMARY KEY (key, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX places_by_owner ON places (key, owner);
CREATE INDEX places_by_expiry ON places (key, expires_at);

-- Who wants to be told about which key. A bell is a file that one process watches; see bell.ts.
CREATE TABLE bells (
  id         TEXT PRIMARY KEY,
  expires_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE watchers (
  key  TEXT NOT NULL,
  bell TEXT NOT NULL,
  PRIMARY KEY (key, bell)
) WITHOUT ROWID;
CREATE INDEX watchers_by_bell ON watchers (bell);

-- Rate limits. meters is JSON: per limit [fullAt, at, cost, at, cost, …]; shape tells whether the limits are still the same.
CREATE TABLE meters (
  key        TEXT PRIMARY KEY,
  idle_at    REAL NOT NULL,
  touched_at REAL NOT NULL,
  shape      TEXT NOT NULL,
  meters     TEXT NOT NULL
) WITHOUT ROWID;
