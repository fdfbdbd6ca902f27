-- acquire.sql

-- leasehold_decide(one claim) → [1, token, ttlMs] granted
--                             | [0, ahead, owner, ttlMs, token, value, newest, whether others were let in] refused
-- The rule: drop what expired; if nobody earlier still waits, and what is held plus weight fits the capacity, grant;
-- otherwise refuse, and keep a queue entry if asked to.
-- A lease that ran out notifies nobody, so whoever asks first also lets in everybody else who fits now: otherwise ten readers
-- behind a dead writer would come in one by one, each when it happens to ask.
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
  -- The usual case in one statement: the name was used before, and nobody has it or waits for it.
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
      perform {schema}.leasehold_clear(p_key, v_now);
      continue;
    end if;
    v_head := {schema}.leasehold_head(p_key, v_now);
    v_first := v_head.owner is null or v_head.owner = p_owner;
    -- Those who came earlier. Not before a steal, which would take it away again at once.
    exit when v_served or v_first or p_steal or s.my_token is not null or s.held >= 2147483647;
    v_served := {schema}.leasehold_serve(p_key, v_now, p_owner);
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
    perform {schema}.leasehold_put(
      p_key, s.free_slot, s.new_slot, p_owner, p_weight, p_capacity, v_token, v_now, p_ttl_ms, p_announce, p_value, p_subscriber);
    if p_announce then
      perform {schema}.leasehold_notify(null, json_build_array('changed', p_key));
    end if;
    if v_head.owner is not null then
      delete from {schema}.leasehold_queue where key = p_key and owner = p_owner;
      if p_weight < p_capacity then
        v_served := {schema}.leasehold_serve(p_key, v_now, null);
      end if;
    end if;
    return json_build_array(1, v_token::text, p_ttl_ms);
  end if;

  if p_queue_ms is not null then
    -- Whoever is in the queue already keeps its place, unless its entry has expired.
    insert into {schema}.leasehold_queue as q
      (key, owner, arrival, weight, capacity, ttl_ms, queue_ms, since, expires_at, announce, value, subscriber)
    select p_key, p_owner, coalesce(
        (select arrival from {schema}.leasehold_queue where key = p_key order by arrival desc limit 1), 0) + 1,
      p_weight, p_capacity, p_ttl_ms, p_queue_ms, v_now, v_now + p_queue_ms * interval '1 millisecond', p_announce, p_value,
      p_subscriber
    on conflict (key, owner) do update set expires_at = excluded.expires_at, subscriber = excluded.subscriber,
      arrival = case when q.expires_at > v_now then q.arrival else excluded.arrival end
    returning arrival into v_arrival;
  elsif not v_first then
    select arrival into v_arrival from {schema}.leasehold_queue where key = p_key and owner = p_owner;
  end if;
  if not v_first then
    select count(*) into v_ahead from (
      select from {schema}.leasehold_queue
      where key = p_key and (v_arrival is null or arrival < v_arrival) and expires_at > v_now limit 100
    ) those;
  end if;
  -- The one whose lease ends first tells how long to wait.
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
  if {schema}.leasehold_lock(array[p_key]) <> '{}' then
    return json_build_array(2);
  end if;
  v_answer := {schema}.leasehold_decide(
    p_key, p_owner, p_weight, p_capacity, p_ttl_ms, p_value, p_queue_ms, p_announce, p_steal, p_subscriber);
  if v_answer ->> 0 = '0' and v_answer ->> 7 = 'false' then
    -- Need not wait for the disk: see leasehold_release_one.
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  -- A fortieth of the claims sweeps a hundred rows: more than all of them together can leave behind.
  if random() < 0.025 then
    perform {schema}.leasehold_sweep();
  end if;
  return v_answer;
end $leasehold$;

-- leasehold_acquire(claims, subscriber) → an answer of leasehold_decide each, in order; [2] where the key could not be locked
create or replace function {schema}.leasehold_acquire(p_claims json, p_subscriber text) returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_blocked integer[] := {schema}.leasehold_lock_all(p_claims);
  v_answers json[] := '{}';
  v_answer json;
  v_granted boolean := false;
  v_setting text;
  c record;
begin
  for c in
    select * from json_to_recordset(p_claims) as (
      key text, owner text, weight integer, capacity integer, ttl double precision, value text, queue double precision,
      announce boolean, steal boolean)
  loop
    if hashtext(c.key) = any (v_blocked) then
      v_answers := v_answers || json_build_array(2);
    else
      v_answer := {schema}.leasehold_decide(
        c.key, c.owner, c.weight, c.capacity, c.ttl, c.value, c.queue, coalesce(c.announce, false), coalesce(c.steal, false),
        p_subscriber);
      v_answers := v_answers || v_answer;
      v_granted := v_granted or v_answer ->> 0 = '1' or v_answer ->> 7 = 'true';
    end if;
  end loop;
  if not v_granted then
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  if random() < 0.025 * json_array_length(p_claims) then
    perform {schema}.leasehold_sweep();
  end if;
  return array_to_json(v_answers);
end $leasehold$;

-- leasehold_acquire_all(claims, subscriber) → the same, but all are granted or none; nobody is put in the queue
-- Asks one after the other and takes everything back if one was refused, so claims of the same key count together.
create or replace function {schema}.leasehold_acquire_all(p_claims json, p_subscriber text) returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_blocked integer[] := {schema}.leasehold_lock_all(p_claims);
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
    perform {schema}.leasehold_sweep();
  end if;
  -- Before all that may be taken back: whoever is let in now stays in.
  for c in select distinct key from json_to_recordset(p_claims) as (key text, steal boolean) where steal is not true loop
    perform {schema}.leasehold_serve(c.key, clock_timestamp(), null);
  end loop;
  begin
    for c in
      select * from json_to_recordset(p_claims) as (
        key text, owner text, weight integer, capacity integer, ttl double precision, value text, announce boolean,
        steal boolean)
    loop
      v_answer := {schema}.leasehold_decide(
        c.key, c.owner, c.weight, c.capacity, c.ttl, c.value, null, coalesce(c.announce, false), coalesce(c.steal, false),
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
