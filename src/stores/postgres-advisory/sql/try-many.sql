-- try-many.sql   $1 int[] how   $2 bigint[] keys   $3 all or none   → n, token | null: busy | -1: not our backend any more
-- how: 1 lock, 2 shared; 3 and 4 the same for (int4, int4) pairs; 5 and 6 (pairs): one more reader of what this process
-- already holds shared. A session may take its own lock again past everybody who waits, so readers who keep coming would
-- starve a writer: 5 and 6 lock nothing and are refused while anybody waits.
WITH waiting AS MATERIALIZED (
  SELECT classid, objid, objsubid
  FROM pg_locks
  WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
), tried AS MATERIALIZED (
  SELECT n, how, key, CASE
    WHEN pg_backend_pid() <> {pid} THEN false
    WHEN how = 1 THEN pg_try_advisory_lock(key)
    WHEN how = 2 THEN pg_try_advisory_lock_shared(key)
    WHEN how = 3 THEN pg_try_advisory_lock((key >> 32)::int, (key << 32 >> 32)::int)
    WHEN how = 4 THEN pg_try_advisory_lock_shared((key >> 32)::int, (key << 32 >> 32)::int)
    ELSE NOT EXISTS (
      SELECT FROM waiting
      WHERE classid = (key >> 32 & 4294967295)::oid AND objid = (key & 4294967295)::oid AND objsubid = how - 4
    )
  END AS ok
  FROM unnest($1::int[], $2::bigint[]) WITH ORDINALITY AS item(how, key, n)
)
SELECT n, CASE
  WHEN pg_backend_pid() <> {pid} THEN -1
  WHEN CASE WHEN $3::boolean THEN NOT (SELECT bool_and(ok) FROM tried) ELSE false END THEN
    CASE WHEN CASE
      WHEN NOT ok THEN true
      WHEN how = 1 THEN pg_advisory_unlock(key)
      WHEN how = 2 THEN pg_advisory_unlock_shared(key)
      WHEN how = 3 THEN pg_advisory_unlock((key >> 32)::int, (key << 32 >> 32)::int)
      WHEN how = 4 THEN pg_advisory_unlock_shared((key >> 32)::int, (key << 32 >> 32)::int)
      ELSE true
    END THEN NULL::bigint END
  WHEN ok THEN {token}
END
FROM tried
