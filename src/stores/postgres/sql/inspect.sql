-- inspect.sql   To look, never to decide.

-- leasehold_holders(from, to) → [[key, owner, weight, capacity, token, ttlMs, heldMs, value, waiters], …]
-- Holders of all keys from ≤ key < to in byte order: a range of the index, whatever the keys contain.
create or replace function {schema}.leasehold_holders(p_from text, p_to text) returns json language sql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
  with clock as materialized (select clock_timestamp() as now)
  select coalesce(json_agg(json_build_array(
    key, owner, weight, capacity, token::text, date_part('epoch', expires_at - now) * 1000,
    date_part('epoch', now - since) * 1000, value,
    (select count(*) from {schema}.leasehold_queue q where q.key = l.key and q.expires_at > now)) order by key, token), '[]')
  from {schema}.leasehold_leases l, clock
  where key >= p_from collate "C" and key < p_to collate "C" and owner is not null and expires_at > now
$leasehold$;

-- leasehold_inspect(key) → [holders as leasehold_holders shows them, [[key, owner, weight, capacity, waitedMs, value], …] in order]
create or replace function {schema}.leasehold_inspect(p_key text) returns json language sql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
  select json_build_array({schema}.leasehold_holders(p_key, p_key || chr(1)), coalesce((
    select json_agg(json_build_array(
      key, owner, weight, capacity, date_part('epoch', clock_timestamp() - since) * 1000, value) order by arrival)
    from {schema}.leasehold_queue where key = p_key and expires_at > clock_timestamp()), '[]'))
$leasehold$;

-- leasehold_installed() → what this schema is: leasehold_meta as JSON
create or replace function {schema}.leasehold_installed() returns json language sql
set search_path = pg_catalog, pg_temp as $leasehold$
  select row_to_json(m) from {schema}.leasehold_meta m where id = 1
$leasehold$;

-- leasehold_now() → the server's time in epoch milliseconds
create or replace function {schema}.leasehold_now() returns double precision language sql
set search_path = pg_catalog, pg_temp as $leasehold$
  select date_part('epoch', clock_timestamp()) * 1000
$leasehold$;
