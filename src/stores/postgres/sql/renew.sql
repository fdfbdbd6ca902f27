-- renew.sql

-- leasehold_extend(key, owner, token, ttlMs, value) → whether it is theirs
-- Never creates and never shortens. Takes no lock on the key: heartbeats do not queue up behind whoever asks, and an
-- open transaction that asks in SQL cannot starve them. The row itself settles who came first: after waiting for it, the
-- condition is judged anew.
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
    perform {schema}.leasehold_notify(null, json_build_array('changed', p_key));
  end if;
  return true;
end $leasehold$;

-- leasehold_renew([{key, owner, token, ttl, value, queued}]) → in order, each
--   a lease:       1 ours | 0 gone | 2 somebody is writing to its row: renew it alone
--   a queue entry: [ahead, newest, blockedMs] waits | [token, ttlMs] granted | 0 gone
-- A transaction that renews several leases never waits for a row: it would hold the rows before it meanwhile, and whoever
-- it waits for may want one of those. Only a renewal that is alone waits.
create or replace function {schema}.leasehold_renew(p_renewals json) returns json language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $leasehold$
declare
  v_answers json[] := array_fill(null::json, array[json_array_length(p_renewals)]);
  v_alone boolean := json_array_length(p_renewals) = 1;
  v_leases boolean := false;
  v_queued boolean := false;
  v_setting text;
  r record;
begin
  -- What a standby knows may be old.
  if current_setting('transaction_read_only') = 'on' then
    raise exception 'cannot renew in a read-only transaction' using errcode = 'read_only_sql_transaction';
  end if;
  for r in
    select * from rows from (
      json_to_recordset(p_renewals) as (key text, owner text, token bigint, ttl double precision, value text, queued boolean)
    ) with ordinality as x (key, owner, token, ttl, value, queued, n)
  loop
    if r.queued then
      v_queued := true;
      continue;
    end if;
    v_leases := true;
    if not v_alone then
      perform from {schema}.leasehold_leases where key = r.key and owner = r.owner for update skip locked;
    end if;
    if v_alone or found then
      v_answers[r.n] := to_json({schema}.leasehold_extend(r.key, r.owner, r.token, r.ttl, r.value)::integer);
    else
      v_answers[r.n] := (select to_json(count(*) * 2) from {schema}.leasehold_leases where key = r.key and owner = r.owner);
    end if;
  end loop;
  if v_queued then
    for r in select * from {schema}.leasehold_renew_queued(p_renewals) loop
      v_answers[r.n] := r.answer;
    end loop;
  end if;
  if not v_leases then
    -- An entry that a crash undoes is asked for again.
    v_setting := set_config('synchronous_commit', 'off', true);
  end if;
  return array_to_json(v_answers);
end $leasehold$;

-- leasehold_renew_queued(renewals) → the answers to those that are queue entries
-- All entries in one statement, and each key's head and leases once, however many entries it has. Without the key's lock: an
-- entry that somebody is deciding about right now is skipped, and renewed by the next heartbeat.
create or replace function {schema}.leasehold_renew_queued(p_renewals json) returns table (n bigint, answer json) language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $leasehold$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
begin
  update {schema}.leasehold_queue q set expires_at = greatest(q.expires_at, v_now + mine.ttl * interval '1 millisecond')
  from (
    select e.key, e.owner, i.ttl
    from json_to_recordset(p_renewals) as i (key text, owner text, ttl double precision, queued boolean)
    join {schema}.leasehold_queue e on e.key = i.key and e.owner = i.owner
    where i.queued and e.expires_at > v_now
    for update of e skip locked
  ) mine
  where q.key = mine.key and q.owner = mine.owner;

  return query
  with item as materialized (
    select i.n, i.key, e.owner is not null as waits, e.arrival, e.weight, e.capacity, i.owner
    from rows from (
      json_to_recordset(p_renewals) as (key text, owner text, ttl double precision, queued boolean)
    ) with ordinality as i (key, owner, ttl, queued, n)
    left join {schema}.leasehold_queue e on e.key = i.key and e.owner = i.owner and e.expires_at > v_now
    where i.queued
  ),
  head as materialized (
    select k.key, first.arrival
    from (select distinct key from item where waits) k, lateral (
      select f.arrival from {schema}.leasehold_queue f where f.key = k.key and f.expires_at > v_now order by f.arrival limit 1
    ) first
  )
  select item.n, case
    when not item.waits then coalesce(
      (select json_build_array(l.token::text, date_part('epoch', l.expires_at - v_now) * 1000)
       from {schema}.leasehold_leases l where l.key = item.key and l.owner = item.owner and l.expires_at > v_now limit 1),
      '0'::json)
    when item.arrival > head.arrival then json_build_array(1, null, null)
    else (
      select json_build_array(0, max(l.token)::text, case
        when coalesce(sum(l.weight) filter (where l.owner is not null and l.expires_at > v_now), 0) + item.weight <= item.capacity then 0
        else date_part('epoch', min(l.expires_at) filter (where l.owner is not null and l.expires_at > v_now) - v_now) * 1000 end)
      from {schema}.leasehold_leases l where l.key = item.key)
    end
  from item left join head on head.key = item.key;
end $leasehold$;
