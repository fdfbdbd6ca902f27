-- release.sql

-- leasehold_end(key, owner, token, defer) → null: it was not theirs | 1 they held it, 2 they waited for it; + 4: another
-- holds it now
-- Never anybody else's, and with a token no other grant of the same owner and no queue entry. Then lets the next in.
create or replace function {schema}.leasehold_end(p_key text, p_owner text, p_token bigint, p_defer boolean) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
  v_slot integer;
  v_announced boolean;
  v_was integer := 1;
begin
  update {schema}.leasehold_leases set owner = null, value = null
  where key = p_key and owner = p_owner and expires_at > v_now and (p_token is null or token = p_token)
  returning slot, announce into v_slot, v_announced;
  if not found then
    if p_token is not null then
      return null;
    end if;
    delete from {schema}.leasehold_queue where key = p_key and owner = p_owner and expires_at > v_now;
    if not found then
      return null;
    end if;
    v_was := 2;
  end if;
  if v_announced then
    perform {schema}.leasehold_notify(null, json_build_array('changed', p_key), p_defer);
  end if;
  if v_slot >= 8 then
    perform {schema}.leasehold_trim(p_key);
  end if;
  if exists (select from {schema}.leasehold_queue where key = p_key) and {schema}.leasehold_serve(p_key, v_now, null, p_defer) then
    return v_was + 4;
  end if;
  return v_was;
end $leasehold$;

-- leasehold_release_one(key, owner, token, defer) → 1 released | 0 gone | 2 the key could not be locked
create or replace function {schema}.leasehold_release_one(p_key text, p_owner text, p_token bigint, p_defer boolean) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_was integer;
  v_setting text;
begin
  if {schema}.leasehold_lock(array[p_key]) <> '{}' then
    return 2;
  end if;
  v_was := {schema}.leasehold_end(p_key, p_owner, p_token, p_defer);
  if coalesce(v_was, 0) < 4 then
    -- Only grants and renewals have to wait for the disk. If a crash undoes anything else, a lock stays busy until its
    -- time has passed or somebody moves to the end of the queue, but nobody holds what another holds; and a later grant
    -- waits for the disk, and with it for everything before it.
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  return (v_was is not null)::integer;
end $leasehold$;

-- leasehold_release([{key, owner, token}], defer) → [1 released | 0 gone | 2 the key could not be locked], in order
create or replace function {schema}.leasehold_release(p_leases json, p_defer boolean) returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
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
      json_to_recordset(p_leases) as (key text, owner text, token bigint)
    ) with ordinality as x (key, owner, token, n)
    -- Rows are written in the order of their keys by everybody who writes several.
    order by key collate "C", n
  loop
    if hashtext(l.key) = any (v_blocked) then
      v_answers[l.n] := 2;
    else
      v_was := {schema}.leasehold_end(l.key, l.owner, l.token, p_defer);
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
create or replace function {schema}.leasehold_revoke(p_key text) returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_now timestamptz;
  v_cut json;
begin
  if {schema}.leasehold_lock(array[p_key]) <> '{}' then
    raise exception 'an open transaction is deciding about "%"', p_key using errcode = 'lock_not_available';
  end if;
  v_now := clock_timestamp();
  perform {schema}.leasehold_clear(p_key, v_now);
  v_cut := {schema}.leasehold_views(p_key, p_key || chr(1));
  perform {schema}.leasehold_evict(p_key);
  perform {schema}.leasehold_trim(p_key);
  perform {schema}.leasehold_serve(p_key, v_now, null);
  return v_cut;
end $leasehold$;

-- Somebody deleted a row by hand. Whoever held it is told, the next is let in if nobody decides about the key right now, and
-- the token is not forgotten.
create or replace function {schema}.leasehold_deleted() returns trigger language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
begin
  if old.subscriber is not null and old.expires_at > v_now then
    perform {schema}.leasehold_notify(old.subscriber, json_build_array('revoked', old.key, old.owner, old.token::text));
  end if;
  if old.announce then
    perform {schema}.leasehold_notify(null, json_build_array('changed', old.key));
  end if;
  update {schema}.leasehold_fences set token = old.token where id = (
    select id from {schema}.leasehold_fences order by id limit 1 for update skip locked) and token < old.token;
  -- Waiting for the key's lock while holding the row could deadlock with whoever has it and wants the row.
  if current_setting('transaction_isolation') = 'read committed' and pg_try_advisory_xact_lock({lockClass}, hashtext(old.key)) then
    perform {schema}.leasehold_serve(old.key, v_now, null);
  end if;
  return null;
end $leasehold$;

do $leasehold$ begin
  if not exists (select from pg_trigger where tgrelid = {leasesText}::regclass and tgname = 'leasehold_deleted') then
    create trigger leasehold_deleted after delete on {schema}.leasehold_leases for each row when (old.owner is not null)
    execute function {schema}.leasehold_deleted();
  end if;
end $leasehold$;
