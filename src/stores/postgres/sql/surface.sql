-- surface.sql   Locks for SQL callers in any language, over the same state: they exclude us and we exclude them.
-- Call them with autocommit, at READ COMMITTED: until the transaction ends, everybody else who asks for the name waits.

-- acquire_lock(name, holder, ttl_seconds, metadata) → true: held. Asking again as the same holder extends.
-- Refused, and asking again within five seconds: the holder stands in line, and is not passed by those who came later.
create or replace function {schema}.acquire_lock(
  p_lock_name character varying, p_holder_id character varying, p_ttl_seconds integer default 30, p_metadata jsonb default '{}'
) returns boolean language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
begin
  if p_lock_name is null or p_lock_name = '' or p_holder_id is null or p_holder_id = '' then
    raise exception 'acquire_lock takes a name and a holder' using errcode = 'invalid_parameter_value';
  end if;
  if p_ttl_seconds is null or p_ttl_seconds < 1 then
    raise exception 'acquire_lock takes a ttl of at least 1 second; it was %', coalesce(p_ttl_seconds::text, 'null')
      using errcode = 'invalid_parameter_value';
  end if;
  if {schema}.leasehold_lock(array['lock:' || p_lock_name]) <> '{}' then
    raise exception 'an open transaction is deciding about "%"', p_lock_name using errcode = 'lock_not_available';
  end if;
  return {schema}.leasehold_ask(
    'lock:' || p_lock_name, p_holder_id, 2147483647, 2147483647, p_ttl_seconds * 1000::double precision,
    p_metadata::text, 5000, false, false, 1::smallint, null) ->> 0 = '1';
end $leasehold$;

-- release_lock(name, holder) → true: it was held until now. A place in line is given up as well.
create or replace function {schema}.release_lock(p_lock_name character varying, p_holder_id character varying)
returns boolean language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
begin
  if {schema}.leasehold_lock(array['lock:' || p_lock_name]) <> '{}' then
    raise exception 'an open transaction is deciding about "%"', p_lock_name using errcode = 'lock_not_available';
  end if;
  return coalesce({schema}.leasehold_end('lock:' || p_lock_name, p_holder_id) in (1, 5), false);
end $leasehold$;

-- leasehold_metadata(value) → the same as JSONB; what JSONB cannot hold (a NUL character) as a string of its text
create or replace function {schema}.leasehold_metadata(p_value text) returns jsonb language plpgsql immutable set search_path = pg_catalog, pg_temp as $leasehold$
begin
  return coalesce(p_value::jsonb, '{}');
exception when others then
  return to_jsonb(p_value);
end $leasehold$;

-- Exclusive locks, whoever holds them.
create or replace view {schema}.distributed_locks as
select substr(key, 6) as lock_name, owner as holder_id, since as acquired_at, expires_at,
       {schema}.leasehold_metadata(value) as metadata
from {schema}.leasehold_leases
where key >= 'lock:' and key < 'lock;' and owner is not null and not waiting and weight = 2147483647
  and expires_at > clock_timestamp();

-- Writing past the functions would bypass the line and tell nobody.
create or replace function {schema}.leasehold_locks_write() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
begin
  if tg_op = 'DELETE' then
    perform {schema}.release_lock(old.lock_name::varchar, old.holder_id::varchar);
    return old;
  end if;
  raise exception 'distributed_locks is a view: use acquire_lock() and release_lock()' using errcode = 'feature_not_supported';
end $leasehold$;

drop trigger if exists leasehold_locks_write on {schema}.distributed_locks;
create trigger leasehold_locks_write instead of insert or update or delete on {schema}.distributed_locks
for each row execute function {schema}.leasehold_locks_write();
