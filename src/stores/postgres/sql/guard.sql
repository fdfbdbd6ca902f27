-- guard.sql

-- leasehold_guard(resource, token)   Call it in the transaction that writes to the resource, before the write. Raises
-- LH001 if a newer token has written: an earlier holder that wakes up late is refused, and its transaction with it. The row stays locked until the end, so of two writers the second waits and then meets the first's token.
create or replace function {schema}.leasehold_guard(p_resource text, p_token bigint) returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_seen bigint;
begin
  -- One forged token of the far future would lock every later holder out for ever.
  if p_token > date_part('epoch', clock_timestamp() + interval '1 day') * 1000000 then
    raise exception 'the token % for "%" is more than a day ahead of the clock', p_token, p_resource
      using errcode = 'LH004', hint = 'It was forged, or the clock of the server that granted it is wrong.';
  end if;
  insert into {schema}.leasehold_guards as g (resource, token, seen_at) values (p_resource, p_token, clock_timestamp())
  on conflict (resource) do update set token = excluded.token, seen_at = excluded.seen_at where g.token <= excluded.token;
  if not found then
    select token into v_seen from {schema}.leasehold_guards where resource = p_resource;
    raise exception 'a newer token has written to "%": % is older than %', p_resource, p_token, v_seen
      using errcode = 'LH001', detail = v_seen::text;
  end if;
end $leasehold$;
