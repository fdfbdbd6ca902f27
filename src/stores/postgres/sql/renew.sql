-- renew.sql

-- leasehold_extend(key, owner, ttlMs, value) → whether it is theirs
-- Never creates and never shortens. Takes no lock on the key: heartbeats do not queue up behind whoever asks, and an
-- open transaction that asks in SQL cannot starve them. The row itself settles who came first: after waiting for it, the
-- condition is judged anew.
create or replace function {schema}.leasehold_extend(p_key text, p_owner text, p_ttl_ms double precision, p_value text)
returns boolean language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
begin
  update {schema}.leasehold_leases
  set expires_at = greatest(expires_at, clock_timestamp() + p_ttl_ms * interval '1 millisecond'), value = coalesce(p_value, value)
  where key = p_key and owner = p_owner and not waiting and expires_at > clock_timestamp();
  if not found then
    return false;
  end if;
  if p_value is not null then
    perform {schema}.leasehold_ring(p_key, 'changed', null, null, null);
  end if;
  return true;
end $leasehold$;

-- leasehold_renew([{key, owner, ttl, value}]) → [1 ours | 0 gone | 2 somebody is writing to its row: renew it alone], in order
-- A transaction that renews several leases never waits for a row: it would hold the rows before it meanwhile, and whoever
-- it waits for may want one of those. Only a renewal that is alone waits.
create or replace function {schema}.leasehold_renew(p_renewals json) returns json language plpgsql set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $leasehold$
declare
  v_answers integer[] := '{}';
  v_alone boolean := json_array_length(p_renewals) = 1;
  r record;
begin
  for r in select * from json_to_recordset(p_renewals) as (key text, owner text, ttl double precision, value text) loop
    if not v_alone then
      perform from {schema}.leasehold_leases where key = r.key and owner = r.owner and not waiting for update skip locked;
    end if;
    if v_alone or found then
      v_answers := v_answers || {schema}.leasehold_extend(r.key, r.owner, r.ttl, r.value)::integer;
    else
      v_answers := v_answers || (select count(*)::integer * 2 from {schema}.leasehold_leases
                                 where key = r.key and owner = r.owner and not waiting);
    end if;
  end loop;
  return array_to_json(v_answers);
end $leasehold$;
