-- settings.sql   $1 how long one statement may wait in the queue of a lock, in ms   $2 application name
-- Whatever the role, the database or the pool's options say: no statement of ours may be cut short, the ttl of the
-- session is set with the first lock, and nothing in it has to be durable: after a crash the sequence is raised anew.
SELECT set_config(name, value, false)
FROM (VALUES
  ('application_name', $2),
  ('client_min_messages', 'error'),
  ('search_path', 'pg_catalog'),
  ('statement_timeout', '0'),
  ('lock_timeout', $1),
  ('idle_in_transaction_session_timeout', '0'),
  ('idle_session_timeout', '0'),
  ('default_transaction_isolation', 'read committed'),
  ('default_transaction_read_only', 'off'),
  ('synchronous_commit', 'off'),
  ('plan_cache_mode', 'force_generic_plan'),
  ('tcp_keepalives_idle', '3'),
  ('tcp_keepalives_interval', '1'),
  ('tcp_keepalives_count', '3')
) AS setting(name, value)
