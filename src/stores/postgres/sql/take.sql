-- take.sql

-- leasehold_take([{key, cost, reset, limits: [{algorithm, limit, perMs, burst, blockMs, blockGrowth}]}], nowMs)
-- → [[allowed, remaining, retryAfterMs, resetMs, [[remaining, nextMs], …]], …] in order, of the limit that binds most and of
-- each limit; retryAfterMs null: never; [2] where the key could not be locked
-- All limits of a request are charged, or none. nowMs: for tests; null is the database's own time.
create or replace function {schema}.leasehold_take(p_requests json, p_now double precision) returns json language plpgsql set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $leasehold$
declare
  v_blocked integer[] := {schema}.leasehold_lock_items(p_requests);
  v_answers json[] := '{}';
  v_setting text;
  r record;
begin
  for r in select * from json_to_recordset(p_requests) as (key text, cost double precision, reset boolean, limits json) loop
    if hashtext(r.key) = any (v_blocked) then
      v_answers := v_answers || json_build_array(2);
    else
      v_answers := v_answers || {schema}.leasehold_take_one(
        r.key, r.cost, coalesce(r.reset, false), r.limits, coalesce(p_now, date_part('epoch', clock_timestamp()) * 1000));
    end if;
  end loop;
  -- A crash may forget what was taken in its last moments; waiting for the disk would make every request pay for that.
  v_setting := set_config('synchronous_commit', 'off', true);
  if random() < 0.025 * json_array_length(p_requests) then
    perform {schema}.leasehold_sweep_meters();
  end if;
  return array_to_json(v_answers);
end $leasehold$;

create or replace function {schema}.leasehold_take_one(
  p_key text, p_asked double precision, p_reset boolean, p_limits json, p_now double precision
) returns json language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_shape text := (select string_agg((l ->> 'algorithm') || '/' || (l ->> 'perMs'), ',') from json_array_elements(p_limits) l);
  v_count integer := json_array_length(p_limits);
  v_meter {schema}.leasehold_meters;
  v_new boolean;
  v_allowed boolean := true;
  v_remaining double precision := 'infinity';
  v_retry double precision := 0;
  v_reset double precision := 0;
  v_idle double precision := 0;
  v_cost double precision := case when p_reset then 0 else p_asked end;
  v_blocked boolean := false;
  v_states json[] := '{}';
  l record;
  j record;
begin
  select * into v_meter from {schema}.leasehold_meters where key = p_key;
  v_new := not found;
  -- Limits that were configured anew begin anew, and so does what is forgotten.
  if p_reset or v_meter.shape is distinct from v_shape then
    v_meter.full_at := array_fill(0::double precision, array[v_count]);
    if not v_new then
      delete from {schema}.leasehold_takes where key = p_key;
    end if;
  end if;

  if p_limits -> 0 ->> 'algorithm' = 'fixed-window' then
    j := {schema}.leasehold_fixed_window(p_limits -> 0, v_meter.full_at, v_cost, p_now);
    v_meter.full_at := j.full_at;
    v_allowed := j.allowed;
    v_remaining := j.remaining;
    v_retry := case when j.allowed then 0 else j.full_at[1] - p_now end;
    v_reset := j.full_at[1] - p_now;
    v_blocked := true;
    v_states := array[json_build_array(greatest(v_remaining, 0), v_reset)];
  else
    for l in select * from {schema}.leasehold_limits(p_limits) loop
      j := {schema}.leasehold_refresh_limit(p_key, l.n, l.algorithm, l.lim, l.per, l.burst, v_meter.full_at[l.n], v_cost, p_now);
      v_retry := greatest(v_retry, j.retry);
    end loop;
    v_allowed := v_cost < 0 or v_retry = 0;
    v_retry := 0;

    for l in select * from {schema}.leasehold_limits(p_limits) loop
      if not v_allowed then
        if l.block is not null and v_cost <= l.lim then
          v_blocked := {schema}.leasehold_block(p_key, l.n, l.lim, l.per, l.block, v_cost, p_now) or v_blocked;
        end if;
      elsif l.algorithm = 'token-bucket' then
        if l.lim > 0 then
          v_meter.full_at[l.n] := greatest(v_meter.full_at[l.n], p_now) + v_cost * l.per / l.lim;
        end if;
      elsif v_cost > 0 then
        insert into {schema}.leasehold_takes (key, meter, n, at, cost)
        select p_key, l.n, coalesce(max(n), 0) + 1, p_now, v_cost from {schema}.leasehold_takes where key = p_key and meter = l.n;
      elsif v_cost < 0 then
        perform {schema}.leasehold_give_back(p_key, l.n, l.lim, -v_cost);
      end if;
      j := {schema}.leasehold_refresh_limit(p_key, l.n, l.algorithm, l.lim, l.per, l.burst, v_meter.full_at[l.n],
                                    case when v_allowed then 0 else v_cost end, p_now);
      v_remaining := least(v_remaining, j.remaining);
      v_reset := greatest(v_reset, j.reset);
      v_states := v_states || json_build_array(j.remaining, j.next);
      if not v_allowed then
        v_retry := greatest(v_retry, j.retry);
      end if;
    end loop;
  end if;

  v_idle := p_now + v_reset;
  if v_new then
    insert into {schema}.leasehold_meters (key, shape, full_at, idle_at, sweep_at)
    values (p_key, v_shape, v_meter.full_at, v_idle, clock_timestamp() + interval '1 minute');
  elsif v_allowed or v_blocked or v_meter.shape <> v_shape then
    update {schema}.leasehold_meters set shape = v_shape, full_at = v_meter.full_at, idle_at = v_idle where key = p_key;
  end if;
  return json_build_array(v_allowed::integer, v_remaining, case when v_retry < 'infinity' then v_retry end, v_reset,
                          array_to_json(v_states));
end $leasehold$;

-- leasehold_fixed_window(limit, [end, count], cost, nowMs) → a fixed window, which counts what it refuses too
create or replace function {schema}.leasehold_fixed_window(
  p_limit json, p_full_at double precision[], p_cost double precision, p_now double precision,
  out full_at double precision[], out allowed boolean, out remaining double precision
) language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  -- Longest block that growth leads to: a year.
  v_longest constant double precision := 31536000000;
  v_limit double precision := (p_limit ->> 'limit')::double precision;
  v_block double precision := (p_limit ->> 'blockMs')::double precision;
  v_growth double precision := (p_limit ->> 'blockGrowth')::double precision;
  v_over boolean := p_full_at[1] <= p_now;
  v_before double precision := case when v_over then 0 else coalesce(p_full_at[2], 0) end;
  v_count double precision := greatest(v_before + p_cost, 0);
  v_end double precision := case when not v_over then p_full_at[1]
                                 when p_cost > 0 then p_now + (p_limit ->> 'perMs')::double precision else p_now end;
begin
  if p_cost > 0 and v_count > v_limit and v_block is not null then
    if v_growth is not null then
      -- The exponent is bounded, since a power that is too large is an error here.
      v_end := p_now + least(v_block * v_growth ^ least(ceil(v_count - v_limit) - 1, 60), v_longest);
    elsif v_before <= v_limit then
      v_end := p_now + v_block;
    end if;
  end if;
  full_at := array[v_end, v_count];
  allowed := p_cost < 0 or v_count <= v_limit;
  remaining := v_limit - v_count;
end $leasehold$;

-- leasehold_give_back(…)   The latest first: what counts for longest. A block is not given back.
create or replace function {schema}.leasehold_give_back(
  p_key text, p_meter integer, p_limit double precision, p_amount double precision
) returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_left double precision := p_amount;
  t record;
begin
  for t in select n, cost from {schema}.leasehold_takes where key = p_key and meter = p_meter order by n desc loop
    exit when v_left <= 0 or t.cost > p_limit;
    if t.cost - v_left > 1e-6 then
      update {schema}.leasehold_takes set cost = cost - v_left where key = p_key and meter = p_meter and n = t.n;
    else
      delete from {schema}.leasehold_takes where key = p_key and meter = p_meter and n = t.n;
    end if;
    v_left := v_left - t.cost;
  end loop;
end $leasehold$;

-- leasehold_block(…) → whether a refusal began a block: one entry of more than the limit, in place of all others. Until it
-- ends nothing passes, and after it everything is free.
create or replace function {schema}.leasehold_block(
  p_key text, p_meter integer, p_limit double precision, p_per double precision, p_block double precision,
  p_cost double precision, p_now double precision
) returns boolean language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_taken double precision;
begin
  select coalesce(sum(cost), 0) into v_taken from {schema}.leasehold_takes where key = p_key and meter = p_meter;
  -- Another limit has refused, or the block has begun already.
  if p_cost <= p_limit - v_taken + 1e-6 or v_taken > p_limit + 1e-6 then
    return false;
  end if;
  delete from {schema}.leasehold_takes where key = p_key and meter = p_meter;
  insert into {schema}.leasehold_takes (key, meter, n, at, cost) values (p_key, p_meter, 1, p_now + p_block - p_per, p_limit + 1);
  return true;
end $leasehold$;

create or replace function {schema}.leasehold_limits(p_limits json)
returns table (n integer, algorithm text, lim double precision, per double precision, burst double precision, block double precision)
language sql immutable set search_path = pg_catalog, pg_temp as $leasehold$
  select n::integer, x ->> 'algorithm', (x ->> 'limit')::double precision, (x ->> 'perMs')::double precision,
         (x ->> 'burst')::double precision, (x ->> 'blockMs')::double precision
  from json_array_elements(p_limits) with ordinality as e (x, n)
$leasehold$;

-- leasehold_refresh_limit(…) → what one limit says to a cost, before anything is charged. The arithmetic of util/rate.ts.
create or replace function {schema}.leasehold_refresh_limit(
  p_key text, p_meter integer, p_algorithm text, p_limit double precision, p_per double precision,
  p_burst double precision, p_full_at double precision, p_cost double precision, p_now double precision,
  out remaining double precision, out retry double precision, out reset double precision, out next double precision
) language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  -- Below this two times are the same: fractions of tokens must not be refused for a rounding error.
  v_hair constant double precision := 1e-6;
  v_per_token double precision;
  v_missing double precision;
  v_free double precision;
  v_last double precision;
  t record;
begin
  if p_algorithm = 'token-bucket' then
    v_missing := greatest(p_full_at - p_now, 0);
    if p_limit = 0 then
      remaining := greatest(floor(p_burst + v_hair), 0);
      retry := 'infinity';
      reset := v_missing;
      next := 0;
      return;
    end if;
    v_per_token := p_per / p_limit;
    v_free := p_burst - v_missing / v_per_token;
    remaining := greatest(floor(v_free + v_hair), 0);
    retry := case when p_cost > p_burst then 'infinity' when (p_cost - v_free) * v_per_token > v_hair
             then (p_cost - v_free) * v_per_token else 0 end;
    reset := v_missing;
    next := least(greatest((floor(v_free + v_hair) + 1 - v_free) * v_per_token, 0), v_missing);
    return;
  end if;

  delete from {schema}.leasehold_takes where key = p_key and meter = p_meter and at + p_per <= p_now;
  select p_limit - coalesce(sum(cost), 0), (array_agg(at order by n desc))[1] into v_free, v_last
  from {schema}.leasehold_takes where key = p_key and meter = p_meter;
  remaining := greatest(floor(v_free + v_hair), 0);
  reset := coalesce(v_last + p_per - p_now, 0);
  retry := case when p_cost > p_limit then double precision 'infinity' else 0 end;
  next := 0;
  for t in select at, cost from {schema}.leasehold_takes where key = p_key and meter = p_meter order by n loop
    exit when greatest(case when p_cost > p_limit then 0 else p_cost end, remaining + 1) <= v_free + v_hair;
    if p_cost <= p_limit and p_cost > v_free + v_hair then
      retry := t.at + p_per - p_now;
    end if;
    if remaining + 1 > v_free + v_hair then
      next := t.at + p_per - p_now;
    end if;
    v_free := v_free + t.cost;
  end loop;
end $leasehold$;

-- leasehold_sweep_meters()   Forgets limits that are whole again. Never waits.
create or replace function {schema}.leasehold_sweep_meters() returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
  v_idle double precision;
  v_key text;
begin
  if not pg_try_advisory_xact_lock({sweepClass}, 1) then
    return;
  end if;
  for v_key in select key from {schema}.leasehold_meters where sweep_at <= v_now order by sweep_at limit 100 loop
    continue when not pg_try_advisory_xact_lock({lockClass}, hashtext(v_key));
    select idle_at into v_idle from {schema}.leasehold_meters where key = v_key;
    if v_idle > date_part('epoch', v_now) * 1000 then
      update {schema}.leasehold_meters set sweep_at = to_timestamp(v_idle / 1000) + interval '1 minute' where key = v_key;
    else
      delete from {schema}.leasehold_meters where key = v_key;
      delete from {schema}.leasehold_takes where key = v_key;
    end if;
  end loop;
end $leasehold$;
