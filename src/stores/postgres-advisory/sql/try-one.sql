-- try-one.sql   $1 key   → token | null: busy | -1: not our backend any more
-- {pid} of this session   {lock} a try-lock of $1   {token} see token.sql
-- CASE evaluates in order: nothing is locked on another backend, and the token is drawn while the lock is held, so that
-- tokens grow with the grants of a key.
SELECT CASE
  WHEN pg_backend_pid() <> {pid} THEN -1
  WHEN {lock} THEN {token}
END
