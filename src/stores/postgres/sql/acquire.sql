-- acquire.sql

-- leasehold_ask(one claim) → [1, token, ttlMs] granted | [0, ahead, owner, ttlMs, token, value, whether others were let in]
-- The rule: drop what expired; if nobody earlier still stands in line, and what is held plus weight fits the capacity,
-- grant; otherwise refuse, and remember the place in line if asked to.
-- A lease that ran out rings no bell, so whoever asks first also lets in everybody else who fits now: otherwise ten readers
-- behind a dead writer would come in one by one, each when it happens to ask.
create or replace function {schema}.leasehold_ask(
  p_key text, p_owner text, p_weight integer, p_capacity integer, p_ttl_ms double precision, p_value text,
  p_place_ms double precision, p_announce boolean, p_steal boolean, p_polls smallint, p_ear text
) returns json language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
  v_expires timestamptz;
  v_token bigint;
  v_done boolean;
  v_served boolean := false;
  v_ahead bigint := 0;
  s record;
  b record;
begin
  -- The usual case in one statement: the name was used before, and nobody has it or waits for it.
  if p_weight <= p_capacity and not p_announce then
    update {schema}.leasehold_leases
    set owner = p_owner, waiting = false, polls = 0, arrival = 0, weight = p_weight, capacity = p_capacity,
        token = {schema}.leasehold_token(token, v_now), since = v_now,
        expires_at = v_now + p_ttl_ms * interval '1 millisecond', ttl_ms = p_ttl_ms, place_ms = coalesce(p_place_ms, 0),
        announce = false, value = p_value
    where key = p_key and slot = 0 and owner is null
      and not exists (select from {schema}.leasehold_leases other where other.key = p_key and other.slot > 0)
    returning token into v_token;
    if found then
      return json_build_array(1, v_token::text, p_ttl_ms);
    end if;
  end if;

  v_expires := v_now + p_ttl_ms * interval '1 millisecond';
  loop
    select
      coalesce(sum(weight) filter (where owner is not null and not waiting), 0) as held,
      max(token) as token,
      min(slot) filter (where owner is null) as free_slot,
      coalesce(max(slot) + 1, 0) as new_slot,
      max(token) filter (where owner = p_owner and not waiting) as my_token,
      min(slot) filter (where owner = p_owner and waiting) as my_place,
      min(arrival) filter (where owner = p_owner and waiting) as my_arrival,
      min(arrival) filter (where owner is not null and waiting and polls <> 1) as first_arrival,
      coalesce(max(arrival) filter (where owner is not null and waiting) + 1, 1) as new_arrival,
      count(*) filter (where owner is not null and expires_at <= v_now) as expired
    into s from {schema}.leasehold_leases where key = p_key;
    if s.expired > 0 then
      perform {schema}.leasehold_clear(p_key, v_now);
      continue;
    end if;
    -- Those who came earlier. Not before a theft, which would take it away again at once.
    exit when v_served or p_steal or s.my_token is not null or s.held >= 2147483647
      or s.first_arrival is null or s.my_arrival <= s.first_arrival;
    v_served := {schema}.leasehold_serve(p_key, v_now, p_owner);
    exit when not v_served;
  end loop;

  if s.my_token is not null then
    update {schema}.leasehold_leases set expires_at = greatest(expires_at, v_expires)
    where key = p_key and owner = p_owner and not waiting;
    return json_build_array(1, s.my_token::text, p_ttl_ms);
  end if;

  if p_steal then
    perform {schema}.leasehold_evict(p_key);
  end if;
  if p_steal or ((s.first_arrival is null or s.my_arrival <= s.first_arrival) and s.held + p_weight <= p_capacity) then
    if s.token is null then
      select fence into s.token from {schema}.leasehold_meta where id = 1;
    end if;
    v_token := {schema}.leasehold_token(s.token, v_now);
    v_done := {schema}.leasehold_put(
      p_key, coalesce(s.my_place, s.free_slot), s.new_slot, p_owner, false, 0::smallint, 0, p_weight, p_capacity,
      v_token, v_now, v_expires, p_ttl_ms, coalesce(p_place_ms, 0), p_announce, p_value, null);
    if p_announce then
      perform {schema}.leasehold_ring(p_key, 'changed', null, null, null);
    end if;
    if s.first_arrival is not null and p_weight < p_capacity then
      v_served := {schema}.leasehold_serve(p_key, v_now, null);
    end if;
    return json_build_array(1, v_token::text, p_ttl_ms);
  end if;

  if s.my_place is not null then
    if p_place_ms is not null then
      update {schema}.leasehold_leases
      set expires_at = v_now + p_place_ms * interval '1 millisecond', polls = case polls when 0 then 0 else 2 end
      where key = p_key and slot = s.my_place;
    end if;
  elsif p_place_ms is not null then
    v_done := {schema}.leasehold_put(
      p_key, s.free_slot, s.new_slot, p_owner, true, p_polls, s.new_arrival, p_weight, p_capacity, 0, v_now,
      v_now + p_place_ms * interval '1 millisecond', p_ttl_ms, p_place_ms, p_announce, p_value, p_ear);
  end if;
  if s.first_arrival is not null then
    select count(*) into v_ahead from {schema}.leasehold_leases
    where key = p_key and owner is not null and waiting and polls <> 1 and arrival < coalesce(s.my_arrival, s.new_arrival);
  end if;
  select owner, expires_at, token, value into b from {schema}.leasehold_leases
  where key = p_key and owner is not null and not waiting order by slot limit 1;
  return json_build_array(
    0, v_ahead, b.owner, greatest(date_part('epoch', b.expires_at - v_now) * 1000, 0), b.token::text, b.value, v_served);
end $leasehold$;

-- leasehold_put(…)   Into a free slot if there is one, else into a new one.
create or replace function {schema}.leasehold_put(
  p_key text, p_slot integer, p_new_slot integer, p_owner text, p_waiting boolean, p_polls smallint, p_arrival bigint,
  p_weight integer, p_capacity integer, p_token bigint, p_since timestamptz, p_expires timestamptz,
  p_ttl_ms double precision, p_place_ms double precision, p_announce boolean, p_value text, p_ear text
) returns boolean language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
begin
  if p_slot is null then
    insert into {schema}.leasehold_leases
      (key, slot, owner, waiting, polls, ear, arrival, weight, capacity, token, since, expires_at, ttl_ms, place_ms, announce,
       value, look_at)
    values
      (p_key, p_new_slot, p_owner, p_waiting, p_polls, p_ear, p_arrival, p_weight, p_capacity, p_token, p_since, p_expires,
       p_ttl_ms, p_place_ms, p_announce, p_value, p_since + interval '1 minute');
  else
    -- A place in line has no token of its own; what the slot remembers stays.
    update {schema}.leasehold_leases
    set owner = p_owner, waiting = p_waiting, polls = p_polls, ear = p_ear, arrival = p_arrival, weight = p_weight,
        capacity = p_capacity, token = greatest(token, p_token), since = p_since, expires_at = p_expires,
        ttl_ms = p_ttl_ms, place_ms = p_place_ms, announce = p_announce, value = p_value
    where key = p_key and slot = p_slot;
  end if;
  return true;
end $leasehold$;

-- leasehold_acquire_one(one claim, ear) → an answer of leasehold_ask; [2] where the key could not be locked
create or replace function {schema}.leasehold_acquire_one(
  p_key text, p_owner text, p_weight integer, p_capacity integer, p_ttl_ms double precision, p_value text,
  p_place_ms double precision, p_announce boolean, p_steal boolean, p_ear text default null
) returns json language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_answer json;
  v_setting text;
begin
  if {schema}.leasehold_lock(array[p_key]) <> '{}' then
    return json_build_array(2);
  end if;
  v_answer := {schema}.leasehold_ask(
    p_key, p_owner, p_weight, p_capacity, p_ttl_ms, p_value, p_place_ms, p_announce, p_steal, 0::smallint, p_ear);
  if v_answer ->> 0 = '0' and v_answer ->> 6 = 'false' then
    -- Need not wait for the disk: see leasehold_release_one.
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  -- A fortieth of the claims sweeps a hundred rows: more than all of them together can leave behind.
  if random() < 0.025 then
    perform {schema}.leasehold_sweep();
  end if;
  return v_answer;
end $leasehold$;

-- leasehold_acquire(claims, ear) → an answer of leasehold_ask each, in order; [2] where the key could not be locked
create or replace function {schema}.leasehold_acquire(p_claims json, p_ear text default null) returns json language plpgsql set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $leasehold$
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
      key text, owner text, weight integer, capacity integer, ttl double precision, value text, place double precision,
      announce boolean, steal boolean)
  loop
    if hashtext(c.key) = any (v_blocked) then
      v_answers := v_answers || json_build_array(2);
    else
      v_answer := {schema}.leasehold_ask(
        c.key, c.owner, c.weight, c.capacity, c.ttl, c.value, c.place, coalesce(c.announce, false),
        coalesce(c.steal, false), 0::smallint, p_ear);
      v_answers := v_answers || v_answer;
      v_granted := v_granted or v_answer ->> 0 = '1' or v_answer ->> 6 = 'true';
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

-- leasehold_acquire_all(claims) → the same, but all are granted or none; nobody is put in line
-- Asks one after the other and takes everything back if one was refused, so claims of the same key count together.
create or replace function {schema}.leasehold_acquire_all(p_claims json) returns json language plpgsql set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $leasehold$
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
      v_answer := {schema}.leasehold_ask(
        c.key, c.owner, c.weight, c.capacity, c.ttl, c.value, null, coalesce(c.announce, false),
        coalesce(c.steal, false), 0::smallint, null);
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
