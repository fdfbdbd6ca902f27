-- line.sql   What the questions share. Everything here expects the key to be locked (leasehold_lock).

-- leasehold_lock(keys) → hashes of keys that could not be locked in time
-- Whoever decides about a key holds its lock until the end of the transaction, and reads only afterwards: each
-- statement of a READ COMMITTED transaction sees what was committed before it, so what was read is still true when it
-- is acted on. At REPEATABLE READ the snapshot would be older than the lock, and two would be let in.
-- Locked in the order of the hashes: two batches with the same keys cannot wait for each other.
create or replace function {schema}.leasehold_lock(p_keys text[]) returns integer[] language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_hash integer;
  v_blocked integer[] := '{}';
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'leasehold decides at READ COMMITTED only; this transaction is %', upper(current_setting('transaction_isolation'))
      using errcode = 'invalid_transaction_state',
      hint = 'At another level the transaction does not see what was decided while it waited for its turn. '
             'Begin it with: BEGIN ISOLATION LEVEL READ COMMITTED';
  end if;
  -- A refusal needs no write, but a standby must not refuse either: what it knows may be old.
  if current_setting('transaction_read_only') = 'on' then
    raise exception 'cannot decide in a read-only transaction' using errcode = 'read_only_sql_transaction';
  end if;
  if cardinality(p_keys) = 1 and pg_try_advisory_xact_lock({lockClass}, hashtext(p_keys[1])) then
    return v_blocked;
  end if;
  for v_hash in select distinct hashtext(k) from unnest(p_keys) k order by 1 loop
    if not pg_try_advisory_xact_lock({lockClass}, v_hash) then
      if v_blocked <> '{}' then
        -- One wait that failed has used up the time of the whole batch.
        v_blocked := v_blocked || v_hash;
      else
        begin
          perform pg_advisory_xact_lock({lockClass}, v_hash);
        exception when lock_not_available or deadlock_detected then
          -- Somebody decides about this key in a transaction that does not end. The other keys need not suffer.
          v_blocked := v_blocked || v_hash;
        end;
      end if;
    end if;
  end loop;
  return v_blocked;
end $leasehold$;

-- leasehold_lock_all([{key}, …]) → the same, for the items of a question
create or replace function {schema}.leasehold_lock_all(p_items json) returns integer[] language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
begin
  -- The usual case without a query: one item.
  if json_array_length(p_items) = 1 then
    return {schema}.leasehold_lock(array[p_items -> 0 ->> 'key']);
  end if;
  return {schema}.leasehold_lock(array(select x ->> 'key' from json_array_elements(p_items) x));
end $leasehold$;

-- leasehold_ring(key, type, owner, token, ttlMs, ear)   Called only if somebody waits or asked to be told: NOTIFY takes a
-- lock at commit that is one for the whole server. Without an ear everybody is told.
create or replace function {schema}.leasehold_ring(
  p_key text, p_type text, p_owner text, p_token bigint, p_ttl_ms double precision, p_ear text default null
) returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_payload text := json_build_array(p_key, p_type, p_owner, p_token::text, p_ttl_ms)::text;
begin
  -- NOTIFY carries less than 8000 bytes. Whoever is not told comes by itself a little later.
  if octet_length(v_payload) < 7900 then
    perform pg_notify(coalesce(p_ear, {channelText}), v_payload);
  end if;
end $leasehold$;

-- leasehold_token(last, now) → the next token: grows also over lost data and clocks that go back
create or replace function {schema}.leasehold_token(p_last bigint, p_now timestamptz) returns bigint language plpgsql immutable set search_path = pg_catalog, pg_temp as $leasehold$
begin
  return greatest(p_last + 1, (date_part('epoch', p_now) * 1000000)::bigint);
end $leasehold$;

-- leasehold_trim(key)   Eight slots of a key are kept for reuse. Those of a longer line are given back.
create or replace function {schema}.leasehold_trim(p_key text) returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_token bigint;
begin
  with trimmed as (
    delete from {schema}.leasehold_leases where key = p_key and slot >= 8 and owner is null returning token
  )
  select max(token) into v_token from trimmed;
  update {schema}.leasehold_leases set token = v_token where key = p_key and slot = 0 and token < v_token;
end $leasehold$;

-- leasehold_clear(key, now)   Drops what expired. Renewals take no lock on the key, only on their row, so this is
-- where the two meet: after it, whatever still has an owner is held.
create or replace function {schema}.leasehold_clear(p_key text, p_now timestamptz) returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_announced boolean;
  v_slot integer;
begin
  with cleared as (
    update {schema}.leasehold_leases set owner = null, value = null
    where key = p_key and owner is not null and expires_at <= p_now
    returning slot, announce and not waiting as announced
  )
  select bool_or(announced), max(slot) into v_announced, v_slot from cleared;
  if v_announced then
    perform {schema}.leasehold_ring(p_key, 'changed', null, null, null);
  end if;
  if v_slot >= 8 then
    perform {schema}.leasehold_trim(p_key);
  end if;
end $leasehold$;

-- leasehold_serve(key, now, before) → whether anybody got it
-- Hands the lease to the head of the line while there is room: no second question, no race with newcomers. For as long
-- as a place lasts: a waiter that died must not block the others for a whole ttl. Stops before `before`, who is asking
-- right now and gets more than a hand-over.
create or replace function {schema}.leasehold_serve(p_key text, p_now timestamptz, p_before text) returns boolean language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_head {schema}.leasehold_leases;
  v_held bigint;
  v_last bigint;
  v_token bigint;
  v_ttl_ms double precision;
  v_served boolean := false;
begin
  loop
    select * into v_head from {schema}.leasehold_leases
    where key = p_key and owner is not null and waiting and polls <> 1 and expires_at > p_now
    order by arrival limit 1;
    exit when not found or v_head.owner = p_before;
    perform {schema}.leasehold_clear(p_key, p_now);
    select coalesce(sum(weight) filter (where owner is not null and not waiting), 0), max(token) into v_held, v_last
    from {schema}.leasehold_leases where key = p_key;
    exit when v_held + v_head.weight > v_head.capacity;
    v_token := {schema}.leasehold_token(v_last, p_now);
    v_ttl_ms := least(v_head.place_ms, v_head.ttl_ms);
    update {schema}.leasehold_leases
    set waiting = false, polls = 0, token = v_token, since = p_now, expires_at = p_now + v_ttl_ms * interval '1 millisecond'
    where key = p_key and slot = v_head.slot;
    if v_head.polls = 0 then
      perform {schema}.leasehold_ring(p_key, 'granted', v_head.owner, v_token, v_ttl_ms, v_head.ear);
    end if;
    if v_head.announce then
      perform {schema}.leasehold_ring(p_key, 'changed', null, null, null);
    end if;
    v_served := true;
  end loop;
  return v_served;
end $leasehold$;

-- leasehold_evict(key)   Takes the lease away from everybody who holds it, and tells them.
create or replace function {schema}.leasehold_evict(p_key text) returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_holder record;
begin
  for v_holder in
    with cut as (
      select slot, owner, announce from {schema}.leasehold_leases
      where key = p_key and owner is not null and not waiting order by slot for update
    )
    update {schema}.leasehold_leases l set owner = null, value = null
    from cut where l.key = p_key and l.slot = cut.slot
    returning cut.owner, cut.announce
  loop
    perform {schema}.leasehold_ring(p_key, 'revoked', v_holder.owner, null, null);
    if v_holder.announce then
      perform {schema}.leasehold_ring(p_key, 'changed', null, null, null);
    end if;
  end loop;
end $leasehold$;

-- leasehold_sweep()   Forgets keys that nobody holds or waits for, oldest first, as part of normal work. Never waits:
-- a key that is being decided about is not idle. One sweep at a time, or they would queue up for the fence.
create or replace function {schema}.leasehold_sweep() returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
  v_key text;
  v_until timestamptz;
  v_fence bigint := 0;
  v_gone bigint;
begin
  if not pg_try_advisory_xact_lock({sweepClass}, 0) then
    return;
  end if;
  for v_key in
    select distinct key from (
      select key from {schema}.leasehold_leases where look_at <= v_now order by look_at limit 100
    ) due
  loop
    continue when not pg_try_advisory_xact_lock({lockClass}, hashtext(v_key));
    select max(expires_at) into v_until from {schema}.leasehold_leases where key = v_key and owner is not null;
    if v_until > v_now then
      update {schema}.leasehold_leases set look_at = v_until + interval '1 minute' where key = v_key and look_at <= v_now;
    else
      with gone as (delete from {schema}.leasehold_leases where key = v_key returning token)
      select max(token) into v_gone from gone;
      v_fence := greatest(v_fence, v_gone);
    end if;
  end loop;
  if v_fence > 0 then
    update {schema}.leasehold_meta set fence = v_fence where id = 1 and fence < v_fence;
  end if;
end $leasehold$;
