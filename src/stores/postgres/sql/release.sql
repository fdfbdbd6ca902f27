-- release.sql

-- leasehold_end(key, owner) → null: it was not theirs | 1 they held it, 2 they waited for it; + 4: another holds it now
-- Never anybody else's. Then lets the next in.
create or replace function {schema}.leasehold_end(p_key text, p_owner text) returns integer language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
  v_slot integer;
  v_waited boolean;
  v_announced boolean;
  v_others boolean;
begin
  update {schema}.leasehold_leases set owner = null, value = null
  where key = p_key and owner = p_owner and expires_at > v_now
  returning slot, waiting, announce and not waiting,
    exists (select from {schema}.leasehold_leases other where other.key = p_key and other.slot <> leasehold_leases.slot)
  into v_slot, v_waited, v_announced, v_others;
  if not found then
    return null;
  end if;
  if v_announced then
    perform {schema}.leasehold_ring(p_key, 'changed', null, null, null);
  end if;
  if v_slot >= 8 then
    perform {schema}.leasehold_trim(p_key);
  end if;
  if not v_others then
    return 1;
  end if;
  return v_waited::integer + 1 + {schema}.leasehold_serve(p_key, v_now, null)::integer * 4;
end $leasehold$;

-- leasehold_release_one(key, owner) → 1 released | 0 gone | 2 the key could not be locked
create or replace function {schema}.leasehold_release_one(p_key text, p_owner text) returns integer language plpgsql set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $leasehold$
declare
  v_was integer;
  v_setting text;
begin
  if {schema}.leasehold_lock(array[p_key]) <> '{}' then
    return 2;
  end if;
  v_was := {schema}.leasehold_end(p_key, p_owner);
  if coalesce(v_was, 0) < 4 then
    -- Only grants and renewals have to wait for the disk. If a crash undoes anything else, a lock stays busy until its
    -- time has passed or somebody moves to the end of the line, but nobody holds what another holds; and a later grant
    -- waits for the disk, and with it for everything before it.
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  return (v_was is not null)::integer;
end $leasehold$;

-- leasehold_release([{key, owner}]) → [1 released | 0 gone | 2 the key could not be locked], in order
create or replace function {schema}.leasehold_release(p_leases json) returns json language plpgsql set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $leasehold$
declare
  v_blocked integer[] := {schema}.leasehold_lock_all(p_leases);
  v_answers integer[] := array_fill(0, array[json_array_length(p_leases)]);
  v_was integer;
  v_handed boolean := false;
  v_setting text;
  l record;
begin
  for l in
    select * from rows from (
      json_to_recordset(p_leases) as (key text, owner text)
    ) with ordinality as x (key, owner, n)
    -- Rows are written in the order of their keys by everybody who writes several.
    order by key collate "C", n
  loop
    if hashtext(l.key) = any (v_blocked) then
      v_answers[l.n] := 2;
    else
      v_was := {schema}.leasehold_end(l.key, l.owner);
      v_answers[l.n] := (v_was is not null)::integer;
      v_handed := v_handed or coalesce(v_was > 4, false);
    end if;
  end loop;
  if not v_handed then
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  return array_to_json(v_answers);
end $leasehold$;

-- leasehold_revoke(key) → the holders that were cut off, as leasehold_views shows them
create or replace function {schema}.leasehold_revoke(p_key text) returns json language plpgsql set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $leasehold$
declare
  v_now timestamptz;
  v_cut json;
begin
  if {schema}.leasehold_lock(array[p_key]) <> '{}' then
    raise exception 'an open transaction is deciding about "%"', p_key using errcode = 'lock_not_available';
  end if;
  v_now := clock_timestamp();
  perform {schema}.leasehold_clear(p_key, v_now);
  v_cut := {schema}.leasehold_views(p_key, p_key || chr(1), false);
  perform {schema}.leasehold_evict(p_key);
  perform {schema}.leasehold_trim(p_key);
  perform {schema}.leasehold_serve(p_key, v_now, null);
  return v_cut;
end $leasehold$;
