-- release.sql

-- leasehold_end_lease(key, owner, token, defer) → null: the owner has neither | 1 it held the lease | 2 it waited for it;
-- + 4: a waiter was granted the lease
-- Never ends another owner's, and with a token no other grant of the same owner and no queue entry. Then hands the lease off.
create or replace function {schema}.leasehold_end_lease(p_key text, p_owner text, p_token bigint, p_defer boolean) returns integer
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
    delete from {schema}.leasehold_queue where owner = p_owner and key || '' = p_key and expires_at > v_now;
    if not found then
      return null;
    end if;
    v_was := 2;
  end if;
  if v_announced then
    perform {schema}.leasehold_notify(null::text, json_build_array('changed', p_key), p_defer);
  end if;
  if v_slot >= 8 then
    perform {schema}.leasehold_trim(p_key);
  end if;
  if exists (select from {schema}.leasehold_queue where key = p_key) and {schema}.leasehold_hand_off(p_key, v_now, null::text, p_defer) then
    return v_was + 4;
  end if;
  return v_was;
end $leasehold$;

-- leasehold_release_one(key, owner, token, defer) → 1 released | 0 gone | 2 the key could not be locked
create or replace function {schema}.leasehold_release_one(p_key text, p_owner text, p_token bigint, p_defer boolean) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_fast constant boolean := true;
  v_now timestamptz;
  v_was integer;
  v_setting text;
  d record;
begin
  -- leasehold_lock, without the price of a call where it has nothing to refuse and nothing to wait for.
  if current_setting('transaction_isolation') <> 'read committed' or current_setting('transaction_read_only') = 'on'
    or not pg_try_advisory_xact_lock({lockClass}, hashtext(p_key))
  then
    if {schema}.leasehold_lock(array[p_key]) <> '{}' then
      return 2;
    end if;
  end if;
  if v_fast then
    -- Fast path, in one statement: what leasehold_end_lease does to a lease without a queue, or to an exclusive one whose first
    -- waiter is alive and wants it exclusively. Waiters wait for every further statement.
    v_now := clock_timestamp();
    update {schema}.leasehold_leases l
    set owner = h.owner, weight = coalesce(h.weight, l.weight), capacity = coalesce(h.capacity, l.capacity),
        token = case when h.owner is null then l.token else {schema}.leasehold_token(l.token, v_now) end,
        since = case when h.owner is null then l.since else v_now end,
        expires_at = case when h.owner is null then l.expires_at
                          else v_now + least(h.queue_ms, h.ttl_ms) * interval '1 millisecond' end,
        value = h.value, subscriber = h.subscriber
    from (select) one left join lateral (
      select q.* from {schema}.leasehold_queue q where q.key = p_key order by q.arrival limit 1
    ) h on true
    where l.key = p_key and l.owner = p_owner and l.expires_at > v_now and (p_token is null or l.token = p_token)
      and l.slot < 8 and not l.announce
      and (h.owner is null
           or (l.weight = 2147483647 and h.weight = 2147483647 and h.expires_at > v_now and not h.announce))
    returning l.owner, l.token, l.subscriber, least(h.queue_ms, h.ttl_ms) as ttl_ms, h.arrival into d;
    if found then
      if d.owner is null then
        v_setting := set_config('synchronous_commit', 'off', true);
        return 1;
      end if;
      delete from {schema}.leasehold_queue where key = p_key and arrival = d.arrival;
      if d.subscriber is not null then
        perform {schema}.leasehold_notify(
          d.subscriber, json_build_array('granted', p_key, d.owner, d.token::text, d.ttl_ms), p_defer);
      end if;
      return 1;
    end if;
  end if;
  v_was := {schema}.leasehold_end_lease(p_key, p_owner, p_token, p_defer);
  if coalesce(v_was, 0) < 4 then
    -- Only grants and renewals have to wait for the disk. If a crash undoes anything else, a lock stays busy until its
    -- time has passed, or a waiter moves to the end of the queue, but there are never two holders; and a later grant waits
    -- for the disk, and with it for everything before it.
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  return (v_was is not null)::integer;
end $leasehold$;

-- leasehold_release([{key, owner, token}], defer) → [1 released | 0 gone | 2 the key could not be locked], in order
create or replace function {schema}.leasehold_release(p_leases json, p_defer boolean) returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $leasehold$
declare
  v_blocked integer[] := {schema}.leasehold_lock_items(p_leases);
  v_answers integer[] := array_fill(null::integer, array[json_array_length(p_leases)]);
  v_was integer;
  v_handed_off boolean := false;
  v_setting text;
  f record;
  l record;
begin
  if v_blocked = '{}' then
    for f in select * from {schema}.leasehold_release_fast(p_leases, p_defer) loop
      v_answers[f.n] := 1;
      v_handed_off := v_handed_off or f.handed;
    end loop;
  end if;
  for l in
    select * from rows from (
      json_to_recordset(p_leases) as (key text, owner text, token bigint)
    ) with ordinality as x (key, owner, token, n)
    where v_answers[n] is null
    -- Every transaction that writes several rows writes them in the order of their keys, so that two cannot deadlock.
    order by key collate "C", n
  loop
    if hashtext(l.key) = any (v_blocked) then
      v_answers[l.n] := 2;
    else
      v_was := {schema}.leasehold_end_lease(l.key, l.owner, l.token, p_defer);
      v_answers[l.n] := (v_was is not null)::integer;
      v_handed_off := v_handed_off or coalesce(v_was > 4, false);
    end if;
  end loop;
  if not v_handed_off then
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  return array_to_json(v_answers);
end $leasehold$;

-- leasehold_release_fast(leases, defer) → the leases that it has ended, and whether each was handed off
-- The fast path of leasehold_release, all keys in one statement: leasehold_end_lease for a lease without a queue, or an
-- exclusive one whose first waiter is alive and wants it exclusively: an exclusive holder is the only one, so the key is free
-- after it. Every other lease, and a key that occurs twice, is left to the loop.
create or replace function {schema}.leasehold_release_fast(p_leases json, p_defer boolean) returns table (n bigint, handed boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
  v_micros bigint := date_part('epoch', v_now) * 1000000;
  v_messages text;
  v_numbers bigint[];
  v_handed_off boolean[];
begin
  with item as materialized (
    select i.key, i.owner, i.token, i.n, count(*) over (partition by i.key) as times
    from rows from (
      json_to_recordset(p_leases) as (key text, owner text, token bigint)
    ) with ordinality as i (key, owner, token, n)
    order by i.key collate "C"
  ),
  done as (
    update {schema}.leasehold_leases l
    set owner = h.owner, weight = coalesce(h.weight, l.weight), capacity = coalesce(h.capacity, l.capacity),
        token = case when h.owner is null then l.token else greatest(l.token + 32, v_micros) end,
        since = case when h.owner is null then l.since else v_now end,
        expires_at = case when h.owner is null then l.expires_at
                          else v_now + least(h.queue_ms, h.ttl_ms) * interval '1 millisecond' end,
        value = h.value, subscriber = h.subscriber
    from item i left join lateral (
      select q.* from {schema}.leasehold_queue q where q.key = i.key order by q.arrival limit 1
    ) h on true
    where l.key = i.key and l.owner = i.owner and l.expires_at > v_now and (i.token is null or l.token = i.token)
      and i.times = 1 and l.slot < 8 and not l.announce
      and (h.owner is null
           or (l.weight = 2147483647 and h.weight = 2147483647 and h.expires_at > v_now and not h.announce))
    returning i.n, l.key, l.owner, l.token, l.subscriber, least(h.queue_ms, h.ttl_ms) as ttl_ms, h.arrival
  ),
  served as (
    -- Without a join: see the table's primary key.
    delete from {schema}.leasehold_queue q where q.owner = any (array(select d.owner from done d where d.owner is not null))
      and ((q.key, q.arrival) in (select d.key, d.arrival from done d)) is true
  ),
  message as (
    select d.n, d.owner is not null as handed, d.subscriber,
      case when d.subscriber is not null then json_build_array('granted', d.key, d.owner, d.token::text, d.ttl_ms)::text end as text
    from done d
  )
  select array_agg(m.n), array_agg(m.handed), string_agg(
    -- leasehold_channel, without the price of a call.
    'leasehold_' || left(encode(sha256(convert_to(s.secret || m.subscriber, 'UTF8')), 'hex'), 48) || ' ' || m.text || chr(10), '')
    filter (where m.handed and octet_length(m.text) < 7900)
  into v_numbers, v_handed_off, v_messages
  from message m, {schema}.leasehold_secret s where s.id = 1;
  if v_messages is not null then
    perform {schema}.leasehold_send(v_messages, p_defer);
  end if;
  return query select * from unnest(v_numbers, v_handed_off);
end $leasehold$;

-- leasehold_revoke(key) → the holders that were cut off, as leasehold_holders shows them
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
  perform {schema}.leasehold_drop_expired(p_key, v_now);
  v_cut := {schema}.leasehold_holders(p_key, p_key || chr(1));
  perform {schema}.leasehold_evict(p_key);
  perform {schema}.leasehold_trim(p_key);
  perform {schema}.leasehold_hand_off(p_key, v_now, null::text, false);
  return v_cut;
end $leasehold$;

-- A row was deleted by hand. Its holder is notified, the next waiter is granted the lease unless another transaction decides about
-- the key right now, and the token is kept.
create or replace function {schema}.leasehold_on_delete() returns trigger language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
begin
  if old.subscriber is not null and old.expires_at > v_now then
    perform {schema}.leasehold_notify(old.subscriber, json_build_array('revoked', old.key, old.owner, old.token::text), false);
  end if;
  if old.announce then
    perform {schema}.leasehold_notify(null::text, json_build_array('changed', old.key), false);
  end if;
  update {schema}.leasehold_fences set token = old.token where id = (
    select id from {schema}.leasehold_fences order by id limit 1 for update skip locked) and token < old.token;
  -- Waiting for the key's lock while holding the row could deadlock with a transaction that has it and wants the row.
  if current_setting('transaction_isolation') = 'read committed' and pg_try_advisory_xact_lock({lockClass}, hashtext(old.key)) then
    perform {schema}.leasehold_hand_off(old.key, v_now, null::text, false);
  end if;
  return null;
end $leasehold$;

do $leasehold$ begin
  if not exists (select from pg_trigger where tgrelid = {leasesText}::regclass and tgname = 'leasehold_on_delete') then
    create trigger leasehold_on_delete after delete on {schema}.leasehold_leases for each row when (old.owner is not null)
    execute function {schema}.leasehold_on_delete();
  end if;
end $leasehold$;
