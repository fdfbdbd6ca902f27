-- surface.sql   Locks for SQL callers in any language, over the same leases: SQL callers and stores exclude each other.
-- Call them with autocommit, at READ COMMITTED: until the transaction ends, every other claim for the name waits.

-- acquire_lock(name, holder, ttl_seconds, metadata) → true: held. Asking again as the same holder extends.
-- One attempt: it keeps no queue entry, and is refused while the queue has a live one.
create or replace function {schema}.acquire_lock(
  p_lock_name character varying, p_holder_id character varying, p_ttl_seconds integer default 30, p_metadata jsonb default '{}'
) returns boolean language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
begin
  if p_lock_name is null or p_lock_name = '' or p_holder_id is null or p_holder_id = '' then
    raise exception 'acquire_lock takes a name and a holder' using errcode = 'invalid_parameter_value';
  end if;
  if char_length(p_lock_name) > 255 or char_length(p_holder_id) > 255 then
    raise exception 'acquire_lock takes a name and a holder of at most 255 characters; they had % and %',
      char_length(p_lock_name), char_length(p_holder_id) using errcode = 'string_data_right_truncation';
  end if;
  if p_ttl_seconds is null or p_ttl_seconds < 1 then
    raise exception 'acquire_lock takes a ttl of at least 1 second; it was %', coalesce(p_ttl_seconds::text, 'null')
      using errcode = 'invalid_parameter_value';
  end if;
  if {schema}.leasehold_lock(array['lock:' || p_lock_name]) <> '{}' then
    raise exception 'an open transaction is deciding about "%"', p_lock_name using errcode = 'lock_not_available';
  end if;
  -- On the average two names for each call, which leaves one behind; few at a time, see leasehold_sweep.
  if random() < 0.25 then
    perform {schema}.leasehold_sweep(8);
  end if;
  return {schema}.leasehold_decide(
    'lock:' || p_lock_name, p_holder_id::text, 2147483647, 2147483647, p_ttl_seconds * 1000::double precision, p_metadata::text,
    null::double precision, false, false, null::text) ->> 0 = '1';
end $leasehold$;

-- release_lock(name, holder) → true: it was held until now. The lease of a store is thereby revoked, and the store is notified.
create or replace function {schema}.release_lock(p_lock_name character varying, p_holder_id character varying)
returns boolean language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_key text := 'lock:' || p_lock_name;
  v_holder record;
begin
  if {schema}.leasehold_lock(array[v_key]) <> '{}' then
    raise exception 'an open transaction is deciding about "%"', p_lock_name using errcode = 'lock_not_available';
  end if;
  select subscriber, token into v_holder from {schema}.leasehold_leases where key = v_key and owner = p_holder_id;
  if not coalesce({schema}.leasehold_end_lease(v_key, p_holder_id::text, null::bigint, false) in (1, 5), false) then
    return false;
  end if;
  if v_holder.subscriber is not null then
    perform {schema}.leasehold_notify(v_holder.subscriber, json_build_array('revoked', v_key, p_holder_id, v_holder.token::text), false);
  end if;
  return true;
end $leasehold$;

-- leasehold_metadata(value) → the same as JSONB; what JSONB cannot hold (a NUL character) as a string of its text
create or replace function {schema}.leasehold_metadata(p_value text) returns jsonb language plpgsql immutable
set search_path = pg_catalog, pg_temp as $leasehold$
begin
  return coalesce(p_value::jsonb, '{}');
exception when others then
  return to_jsonb(p_value);
end $leasehold$;

-- Writing past the functions would bypass the queue and notify no waiter.
create or replace function {schema}.leasehold_locks_write() returns trigger language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
begin
  if tg_op = 'DELETE' then
    perform {schema}.release_lock(old.lock_name::varchar, old.holder_id::varchar);
    return old;
  end if;
  raise exception 'distributed_locks is a view: use acquire_lock() and release_lock()' using errcode = 'feature_not_supported';
end $leasehold$;

-- Exclusive locks of stores and SQL callers. A view that exists is left alone: to replace it needs a lock on it.
do $leasehold$ begin if to_regclass({locksText}) is null then
create view {schema}.distributed_locks as
select substr(key, 6) as lock_name, owner as holder_id, since as acquired_at, expires_at,
       {schema}.leasehold_metadata(value) as metadata
from {schema}.leasehold_leases
where key >= 'lock:' and key < 'lock;' and owner is not null and weight = 2147483647 and expires_at > clock_timestamp();
create trigger leasehold_locks_write instead of insert or update or delete on {schema}.distributed_locks
for each row execute function {schema}.leasehold_locks_write();
end if; end $leasehold$;
