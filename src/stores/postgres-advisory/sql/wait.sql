-- wait.sql   $1 key   → token | -1: not our backend any more
-- {pid} of this session   {lock} a blocking lock of $1, whose result is void   {token} see token.sql
SELECT CASE
  WHEN pg_backend_pid() <> {pid} THEN -1
  WHEN {lock}::text = '' THEN {token}
END
