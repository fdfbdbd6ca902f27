-- cancel.sql   $1 pid   $2 when that backend started, or the pid may be somebody else's by now
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1::int AND backend_start = $2::timestamptz
