-- blocked.sql   $1 pid of a session of ours that waits   → whether it really does; who is in its way: pid, name, address
SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1::int AND locktype = 'advisory' AND NOT granted),
  blocker.pid, activity.application_name, host(activity.client_addr)
FROM (SELECT 1) AS one
LEFT JOIN LATERAL (SELECT pid FROM unnest(pg_blocking_pids($1::int)) AS by(pid) LIMIT 1) AS blocker ON true
LEFT JOIN pg_stat_activity AS activity ON activity.pid = blocker.pid
