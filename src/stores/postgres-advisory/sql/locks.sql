-- locks.sql   $1 key or null: all   $2 objsubid: 1, or 2 for pairs
-- → one row per advisory lock held or waited for in this database, those who wait in the order of their arrival
SELECT lock.pid, lock.objsubid, (lock.classid::bigint << 32) | lock.objid::bigint, lock.mode = 'ShareLock', lock.granted,
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
ORDER BY lock.granted DESC, lock.waitstart, lock.pid
