-- acquire.sql

-- leasehold_decide(one claim) → [1, token, ttlMs] granted
--                             | [0, ahead, owner, ttlMs, token, value, newest, whether others were let in] refused
-- The rule: drop what expired; if no live queue entry is ahead, and what is held plus weight fits the capacity, grant;
-- otherwise refuse, and keep a queue entry if asked to.
-- A lease that expires sends no notification, so the first claim after it also grants to every waiter that fits now: otherwise
-- ten readers behind a dead writer would be granted one by one, each when it happens to ask.
create or replace function {schema}.leasehold_decide(
  p_key text, p_owner text, p_weight integer, p_capacity integer, p_ttl_ms double precision, p_value text,
  p_queue_ms double precision, p_announce boolean, p_steal boolean, p_subscriber text
) returns json language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
  v_token bigint;
  v_head {schema}.leasehold_queue;
  v_first boolean;
  v_served boolean := false;
  v_arrival bigint;
  v_ahead bigint := 0;
  s record;
  b record;
begin
  -- Fast path, in one statement: the key was used before, and has neither a holder nor a queue.
  if p_weight <= p_capacity and not p_announce then
    update {schema}.leasehold_leases
    set owner = p_owner, weight = p_weight, capacity = p_capacity, token = {schema}.leasehold_token(token, v_now), since = v_now,
        expires_at = v_now + p_ttl_ms * interval '1 millisecond', announce = false, value = p_value, subscriber = p_subscriber
    where key = p_key and slot = 0 and owner is null
      and not exists (select from {schema}.leasehold_leases other where other.key = p_key and other.slot > 0)
      and not exists (select from {schema}.leasehold_queue q where q.key = p_key)
    returning token into v_token;
    if found then
      return json_build_array(1, v_token::text, p_ttl_ms);
    end if;
  end if;

  loop
    select
      coalesce(sum(weight) filter (where owner is not null), 0) as held,
      max(token) as token,
      min(slot) filter (where owner is null) as free_slot,
      coalesce(max(slot) + 1, 0) as new_slot,
      max(token) filter (where owner = p_owner) as my_token,
      count(*) filter (where owner is not null and expires_at <= v_now) as expired
    into s from {schema}.leasehold_leases where key = p_key;
    if s.expired > 0 then
      perform {schema}.leasehold_drop_expired(p_key, v_now);
      continue;
    end if;
    v_head := {schema}.leasehold_prune_queue(p_key, v_now);
    v_first := v_head.owner is null or v_head.owner = p_owner;
    -- Earlier waiters come first. Not before a steal, which would take the lease away from them again at once.
    exit when v_served or v_first or p_steal or s.my_token is not null or s.held >= 2147483647;
    v_served := {schema}.leasehold_hand_off(p_key, v_now, p_owner, false);
    exit when not v_served;
  end loop;

  if s.my_token is not null then
    update {schema}.leasehold_leases
    set expires_at = greatest(expires_at, v_now + p_ttl_ms * interval '1 millisecond'), subscriber = p_subscriber
    where key = p_key and owner = p_owner;
    return json_build_array(1, s.my_token::text, p_ttl_ms);
  end if;

  if s.token is null then
    select max(token) into s.token from {schema}.leasehold_fences;
  end if;
  if p_steal then
    perform {schema}.leasehold_evict(p_key);
    select min(slot) into s.free_slot from {schema}.leasehold_leases where key = p_key and owner is null;
  end if;
  if p_steal or (v_first and s.held + p_weight <= p_capacity) then
    v_token := {schema}.leasehold_token(s.token, v_now);
    perform {schema}.leasehold_write_lease(
      p_key, s.free_slot, s.new_slot, p_owner, p_weight, p_capacity, v_token, v_now, p_ttl_ms, p_announce, p_value, p_subscriber);
    if p_announce then
      perform {schema}.leasehold_notify(null::text, json_build_array('changed', p_key), false);
    end if;
    if v_head.owner is not null then
      delete from {schema}.leasehold_queue where owner = p_owner and key || '' = p_key;
      if p_weight < p_capacity then
        v_served := {schema}.leasehold_hand_off(p_key, v_now, null::text, false);
      end if;
    end if;
    return json_build_array(1, v_token::text, p_ttl_ms);
  end if;

  if p_queue_ms is not null then
    -- A waiter that has an entry keeps its position, unless the entry has expired.
    insert into {schema}.leasehold_queue as q
      (key, owner, arrival, weight, capacity, ttl_ms, queue_ms, since, expires_at, announce, value, subscriber)
    select p_key, p_owner, coalesce(
        (select arrival from {schema}.leasehold_queue where key = p_key order by arrival desc limit 1), 0) + 1,
      p_weight, p_capacity, p_ttl_ms, p_queue_ms, v_now, v_now + p_queue_ms * interval '1 millisecond', p_announce, p_value,
      p_subscriber
    on conflict (owner, key) do update set expires_at = excluded.expires_at, subscriber = excluded.subscriber,
      arrival = case when q.expires_at > v_now then q.arrival else excluded.arrival end
    returning arrival into v_arrival;
  elsif not v_first then
    select arrival into v_arrival from {schema}.leasehold_queue where owner = p_owner and key || '' = p_key;
  end if;
  if not v_first then
    select count(*) into v_ahead from (
      select from {schema}.leasehold_queue
      where key = p_key and (v_arrival is null or arrival < v_arrival) and expires_at > v_now limit 100
    ) those;
  end if;
  -- The lease that ends first bounds how long the waiter has to wait.
  select owner, expires_at, token, value into b from {schema}.leasehold_leases
  where key = p_key and owner is not null order by expires_at limit 1;
  return json_build_array(
    0, v_ahead, b.owner, greatest(date_part('epoch', b.expires_at - v_now) * 1000, 0), b.token::text, b.value, s.token::text, v_served);
end $leasehold$;

-- leasehold_acquire_one(one claim) → an answer of leasehold_decide; [2] where the key could not be locked
create or replace function {schema}.leasehold_acquire_one(
  p_key text, p_owner text, p_weight integer, p_capacity integer, p_ttl_ms double precision, p_value text,
  p_queue_ms double precision, p_announce boolean, p_steal boolean, p_subscriber text
) returns json language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_answer json;
  v_setting text;
begin
  -- leasehold_lock, without the price of a call where it has nothing to refuse and nothing to wait for.
  if current_setting('transaction_isolation') <> 'read committed' or current_setting('transaction_read_only') = 'on'
    or not pg_try_advisory_xact_lock({lockClass}, hashtext(p_key))
  then
    if {schema}.leasehold_lock(array[p_key]) <> '{}' then
      return json_build_array(2);
    end if;
  end if;
  v_answer := {schema}.leasehold_decide(
    p_key, p_owner, p_weight, p_capacity, p_ttl_ms, p_value, p_queue_ms, p_announce, p_steal, p_subscriber);
  if v_answer ->> 0 = '0' and v_answer ->> 7 = 'false' then
    -- Need not wait for the disk: see leasehold_release_one.
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  -- A fortieth of the claims sweeps a hundred rows: more than all of them together can leave behind.
  if random() < 0.025 then
    perform {schema}.leasehold_sweep(100);
  end if;
  return v_answer;
end $leasehold$;

-- leasehold_acquire(claims, subscriber) → an answer of leasehold_decide each, in order; [2] where the key could not be locked
create or replace function {schema}.leasehold_acquire(p_claims json, p_subscriber text) returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $leasehold$
declare
  v_blocked integer[] := {schema}.leasehold_lock_items(p_claims);
  v_answers json[] := array_fill(null::json, array[json_array_length(p_claims)]);
  v_answer json;
  v_granted boolean := false;
  v_setting text;
  f record;
  c record;
begin
  if v_blocked = '{}' then
    for f in select * from {schema}.leasehold_acquire_fast(p_claims, p_subscriber) loop
      v_answers[f.n] := f.answer;
      v_granted := v_granted or f.granted;
    end loop;
  end if;
  for c in
    select * from rows from (json_to_recordset(p_claims) as (
      key text, owner text, weight integer, capacity integer, ttl double precision, value text, queue double precision,
      announce boolean, steal boolean)
    ) with ordinality as x (key, owner, weight, capacity, ttl, value, queue, announce, steal, n)
    where v_answers[n] is null
    order by n
  loop
    if hashtext(c.key) = any (v_blocked) then
      v_answers[c.n] := json_build_array(2);
    else
      v_answer := {schema}.leasehold_decide(
        c.key, c.owner, c.weight, c.capacity, c.ttl, c.value, c.queue, coalesce(c.announce, false), coalesce(c.steal, false),
        p_subscriber);
      v_answers[c.n] := v_answer;
      v_granted := v_granted or v_answer ->> 0 = '1' or v_answer ->> 7 = 'true';
    end if;
  end loop;
  if not v_granted then
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  if random() < 0.025 * json_array_length(p_claims) then
    perform {schema}.leasehold_sweep(100);
  end if;
  return array_to_json(v_answers);
end $leasehold$;

-- leasehold_acquire_fast(claims, subscriber) → the answers to the claims that it has decided
-- The fast path of leasehold_acquire, all keys at once: leasehold_decide for a key that was used before and has neither a holder
-- nor a queue, and for a queue entry behind an exclusive holder, which blocks every other decision about the key. Every other
-- claim, and a key that occurs twice, is left to the loop.
create or replace function {schema}.leasehold_acquire_fast(p_claims json, p_subscriber text)
returns table (n bigint, granted boolean, answer json) language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
  v_micros bigint := date_part('epoch', v_now) * 1000000;
begin
  return query
  with item as materialized (
    select i.*, count(*) over (partition by i.key) as times
    from rows from (json_to_recordset(p_claims) as (
      key text, owner text, weight integer, capacity integer, ttl double precision, value text, queue double precision,
      announce boolean, steal boolean)
    ) with ordinality as i (key, owner, weight, capacity, ttl, value, queue, announce, steal, n)
    order by i.key collate "C"
  ),
  taken as (
    update {schema}.leasehold_leases l
    set owner = i.owner, weight = i.weight, capacity = i.capacity, token = greatest(l.token + 32, v_micros), since = v_now,
        expires_at = v_now + i.ttl * interval '1 millisecond', announce = false, value = i.value, subscriber = p_subscriber
    from item i
    where l.key = i.key and l.slot = 0 and l.owner is null and i.times = 1 and i.weight <= i.capacity and i.announce is not true
      and not exists (select from {schema}.leasehold_leases other where other.key = i.key and other.slot > 0)
      and (select q.arrival from {schema}.leasehold_queue q where q.key = i.key limit 1) is null
    returning i.n, l.token, i.ttl
  ),
  behind as materialized (
    select i.*, l.owner as holder, l.token, l.value as held_value, l.expires_at
    from item i join {schema}.leasehold_leases l on l.key = i.key
    where i.times = 1 and i.queue is not null and i.steal is not true
      and l.weight = 2147483647 and l.owner is not null and l.owner <> i.owner and l.expires_at > v_now
      and ((select e.expires_at from {schema}.leasehold_queue e where e.owner = i.owner and e.key || '' = i.key) <= v_now) is not true
  ),
  queued as (
    -- A waiter that has an entry keeps its position, unless the entry has expired.
    insert into {schema}.leasehold_queue as q
      (key, owner, arrival, weight, capacity, ttl_ms, queue_ms, since, expires_at, announce, value, subscriber)
    select b.key, b.owner, coalesce(
        (select p.arrival from {schema}.leasehold_queue p where p.key = b.key order by p.arrival desc limit 1), 0) + 1,
      b.weight, b.capacity, b.ttl, b.queue, v_now, v_now + b.queue * interval '1 millisecond', coalesce(b.announce, false),
      b.value, p_subscriber
    from behind b
    on conflict (owner, key) do update set expires_at = excluded.expires_at, subscriber = excluded.subscriber,
      arrival = case when q.expires_at > v_now then q.arrival else excluded.arrival end
    returning key, (
      select count(*) from (
        select from {schema}.leasehold_queue w where w.key = q.key and w.arrival < q.arrival and w.expires_at > v_now limit 100
      ) those) as ahead
  )
  select t.n, true, json_build_array(1, t.token::text, t.ttl) from taken t
  union all
  select b.n, false, json_build_array(0, q.ahead, b.holder, greatest(date_part('epoch', b.expires_at - v_now) * 1000, 0), b.token::text,
    b.held_value, b.token::text, false)
  from behind b join queued q on q.key = b.key;
end $leasehold$;

-- leasehold_acquire_all(claims, subscriber) → the same, but all are granted or none, and no queue entry is kept
-- Asks one after the other and takes everything back if one was refused, so claims of the same key count together.
create or replace function {schema}.leasehold_acquire_all(p_claims json, p_subscriber text) returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_blocked integer[] := {schema}.leasehold_lock_items(p_claims);
  v_answers json[] := '{}';
  v_refusals json[] := '{}';
  v_answer json;
  v_refused boolean := false;
  c record;
begin
  if v_blocked <> '{}' then
    return (select json_agg(json_build_array(2)) from json_array_elements(p_claims));
  end if;
  if random() < 0.025 * json_array_length(p_claims) then
    perform {schema}.leasehold_sweep(100);
  end if;
  -- Waiters are granted before the part that may be rolled back: their grants stay.
  for c in select distinct key from json_to_recordset(p_claims) as (key text, steal boolean) where steal is not true loop
    perform {schema}.leasehold_hand_off(c.key, clock_timestamp(), null::text, false);
  end loop;
  begin
    for c in
      select * from json_to_recordset(p_claims) as (
        key text, owner text, weight integer, capacity integer, ttl double precision, value text, announce boolean,
        steal boolean)
    loop
      v_answer := {schema}.leasehold_decide(
        c.key, c.owner, c.weight, c.capacity, c.ttl, c.value, null::double precision, coalesce(c.announce, false), coalesce(c.steal, false),
        p_subscriber);
      v_answers := v_answers || v_answer;
      if v_answer ->> 0 = '0' then
        v_refused := true;
        v_refusals := v_refusals || v_answer;
      else
        v_refusals := v_refusals || json_build_array(0, 0);
      end if;
    end loop;
    if v_refused then
      raise exception 'refused' using errcode = 'LH000';
    end if;
    return array_to_json(v_answers);
  exception when sqlstate 'LH000' then
    return array_to_json(v_refusals);
  end;
end $leasehold$;
