-- raise.sql   lifts the sequence to the microseconds of the server's clock, never down
-- So tokens go on growing although the sequence itself was lost or set back: by a crash, a failover or a restored backup.
BEGIN;
SELECT pg_advisory_xact_lock({raising});
SELECT setval('{sequence}'::regclass, micros)
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros) AS clock
WHERE micros > coalesce(pg_sequence_last_value('{sequence}'::regclass), 0);
COMMIT
