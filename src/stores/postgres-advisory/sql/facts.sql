-- facts.sql   $1 name of the sequence
-- → backend pid, its start, server version, whether a standby, whether the sequence exists and hands out one by one
SELECT pg_backend_pid(),
  (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()),
  current_setting('server_version_num')::int,
  pg_is_in_recovery(),
  found.oid IS NOT NULL,
  seqcache = 1 AND seqincrement = 1 AND NOT seqcycle
FROM (SELECT to_regclass($1)::oid AS oid) AS found
LEFT JOIN pg_sequence ON seqrelid = found.oid
