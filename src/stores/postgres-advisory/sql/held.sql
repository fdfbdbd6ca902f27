-- held.sql   → how, key of every advisory lock that this session holds beyond its transaction; how as in unlock-many.sql
SELECT CASE mode WHEN 'ExclusiveLock' THEN 1 ELSE 2 END + CASE objsubid WHEN 2 THEN 2 ELSE 0 END,
  (classid::bigint << 32) | objid::bigint
FROM pg_locks
WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
