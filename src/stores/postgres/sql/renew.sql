-- renew.sql

-- leasehold_extend(key, owner, token, ttlMs, value) → whether the owner holds it
-- Never creates and never shortens. Takes no lock on the key: heartbeats do not queue up behind claims, and an open transaction
-- of an SQL caller cannot starve them. The row decides which came first: after waiting for it, the server evaluates the
-- condition again.
create or replace function {schema}.leasehold_extend(
  p_key text, p_owner text, p_token bigint, p_ttl_ms double precision, p_value text
) returns boolean language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
begin
  update {schema}.leasehold_leases
  set expires_at = greatest(expires_at, clock_timestamp() + p_ttl_ms * interval '1 millisecond'), value = coalesce(p_value, value)
  where key = p_key and owner = p_owner and expires_at > clock_timestamp() and (p_token is null or token = p_token);
  if not found then
    return false;
  end if;
  if p_value is not null then
    perform {schema}.leasehold_notify(null::text, json_build_array('changed', p_key), false);
  end if;
  return true;
end $leasehold$;

-- leasehold_renew([{key, owner, token, ttl, value}]) → [1 ours | 0 gone | 2 another transaction is writing to its row: renew it
-- alone], in order
-- A transaction that renews several leases never waits for a row: it would hold the rows before it meanwhile, and the
-- transaction that it waits for may want one of those. Only a renewal that is alone waits.
create or replace function {schema}.leasehold_renew(p_renewals json) returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $leasehold$
declare
  v_fast constant boolean := true;
  v_answers integer[] := array_fill(null::integer, array[json_array_length(p_renewals)]);
  v_alone boolean := json_array_length(p_renewals) = 1;
  r record;
begin
  -- What a standby knows may be old.
  if current_setting('transaction_read_only') = 'on' then
    raise exception 'cannot renew in a read-only transaction' using errcode = 'read_only_sql_transaction';
  end if;
  -- With fewer, the statement costs more than the loop.
  if v_fast and json_array_length(p_renewals) >= 5 then
    for r in select * from {schema}.leasehold_renew_fast(p_renewals) n loop
      v_answers[r.n] := 1;
    end loop;
  end if;
  for r in
    select * from rows from (
      json_to_recordset(p_renewals) as (key text, owner text, token bigint, ttl double precision, value text)
    ) with ordinality as x (key, owner, token, ttl, value, n)
    where v_answers[n] is null order by n
  loop
    if not v_alone then
      perform from {schema}.leasehold_leases where key = r.key and owner = r.owner for update skip locked;
    end if;
    if v_alone or found then
      v_answers[r.n] := {schema}.leasehold_extend(r.key, r.owner, r.token, r.ttl, r.value)::integer;
    else
      v_answers[r.n] := (select count(*)::integer * 2 from {schema}.leasehold_leases where key = r.key and owner = r.owner);
    end if;
  end loop;
  return array_to_json(v_answers);
end $leasehold$;

-- leasehold_renew_fast(renewals) → the numbers of those that it has renewed
-- The fast path of leasehold_renew, all leases in one statement: leasehold_extend for those whose rows nobody else is writing to.
-- Only what was written counts: a row that changed after the statement had begun is locked, but not found by its new address.
-- Every other renewal, one with a value, and a lease that occurs twice, is left to the loop.
create or replace function {schema}.leasehold_renew_fast(p_renewals json) returns setof bigint language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
begin
  return query
  with item as materialized (
    select i.*, count(*) over (partition by i.key, i.owner) as times
    from rows from (
      json_to_recordset(p_renewals) as (key text, owner text, token bigint, ttl double precision, value text)
    ) with ordinality as i (key, owner, token, ttl, value, n)
  ),
  locked as materialized (
    select i.n, i.ttl, l.ctid as address
    from item i join {schema}.leasehold_leases l on l.key = i.key and l.owner = i.owner
    where i.times = 1 and i.value is null and l.expires_at > v_now and (i.token is null or l.token = i.token)
    for update of l skip locked
  )
  update {schema}.leasehold_leases l set expires_at = greatest(l.expires_at, v_now + k.ttl * interval '1 millisecond')
  from locked k where l.ctid = k.address
  returning k.n;
end $leasehold$;

-- leasehold_renew_entries(keys, owners, ttlMs) → [[n, an answer of leasehold_entry_state], …] of the queue entries that do not wait
-- behind another, numbered from 1; all others do
-- The heartbeat of all waiters of a process, each second: one statement that parses its arguments once (arrays are several
-- times cheaper than JSON), writes each row once, asks each key for its head once, and answers only what waiters act on. One key
-- may stand for all; no owner occurs twice. By the owner alone, without a join: only one index has it, so that no statistics
-- about a table that was small a moment ago make the planner read whole queues.
-- Without the key's lock. If a row is met that another transaction is writing to, the whole is done once more without those
-- that are locked: they are renewed by the next heartbeat.
create or replace function {schema}.leasehold_renew_entries(p_keys text[], p_owners text[], p_ttl_ms double precision)
returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan set lock_timeout = '1ms'
as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
  v_until timestamptz := v_now + p_ttl_ms * interval '1 millisecond';
  -- An entry that a crash undoes is asked for again.
  v_setting text := set_config('synchronous_commit', 'off', true);
  v_owners text[] := p_owners;
  v_renewed bigint;
  v_answers json;
begin
  -- What a standby knows may be old.
  if current_setting('transaction_read_only') = 'on' then
    raise exception 'cannot renew in a read-only transaction' using errcode = 'read_only_sql_transaction';
  end if;
  -- Twice at most: the rows that are free are locked before the second time.
  for v_attempt in 1..2 loop
    begin
      with renewed as (
        update {schema}.leasehold_queue q set expires_at = greatest(q.expires_at, v_until)
        where q.owner = any (v_owners) and q.expires_at > v_now
          and q.key = p_keys[case when cardinality(p_keys) = 1 then 1 else array_position(p_owners, q.owner) end]
        returning q.key, q.arrival
      ),
      earliest as (
        select key, min(arrival) as arrival, count(*) as entries from renewed group by key
      )
      select sum(e.entries), json_agg(json_build_array(
          array_position(p_owners, h.owner), {schema}.leasehold_entry_state(h.key, h.owner, v_now))) filter (where h.arrival = e.arrival)
      into v_renewed, v_answers
      from earliest e left join lateral (
        select q.key, q.owner, q.arrival from {schema}.leasehold_queue q
        where q.key = e.key and q.expires_at > v_now order by q.arrival limit 1
      ) h on true;
      exit;
    exception when lock_not_available then
      if v_attempt = 2 then
        raise;
      end if;
      v_owners := array(select q.owner from {schema}.leasehold_queue q where q.owner = any (p_owners) for update skip locked);
    end;
  end loop;
  if v_renewed = cardinality(p_owners) then
    return coalesce(v_answers, '[]');
  end if;
  -- One by one: an entry that was not renewed is gone, was granted the lease, or is locked.
  return (
    select coalesce(json_agg(json_build_array(n, state)), '[]') from (
      select i.n, {schema}.leasehold_entry_state(coalesce(i.key, p_keys[1]), i.owner, v_now) as state
      from unnest(p_keys, p_owners) with ordinality as i (key, owner, n) offset 0
    ) each where state::text <> '1');
end $leasehold$;

-- leasehold_entry_state(key, owner, now) → 0 gone | 1 waits behind another | [newest, blockedMs, 0] is the first
--                                        | [token, ttlMs] was granted the lease
create or replace function {schema}.leasehold_entry_state(p_key text, p_owner text, p_now timestamptz) returns json language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
declare
  e record;
begin
  select arrival, weight, capacity into e from {schema}.leasehold_queue
  where owner = p_owner and key || '' = p_key and expires_at > p_now;
  if not found then
    return coalesce(
      (select json_build_array(token::text, date_part('epoch', expires_at - p_now) * 1000)
       from {schema}.leasehold_leases where key = p_key and owner = p_owner and expires_at > p_now limit 1),
      '0');
  end if;
  if e.arrival > (select arrival from {schema}.leasehold_queue where key = p_key and expires_at > p_now order by arrival limit 1) then
    return '1';
  end if;
  return (
    select json_build_array(max(token)::text, case
      when coalesce(sum(weight) filter (where owner is not null and expires_at > p_now), 0) + e.weight <= e.capacity then 0
      else date_part('epoch', min(expires_at) filter (where owner is not null and expires_at > p_now) - p_now) * 1000 end, 0)
    from {schema}.leasehold_leases where key = p_key);
end $leasehold$;
