-- keys.sql   The lock that serialises decisions about a key, its next token, and the removal of idle keys.

-- leasehold_lock(keys) → hashes of keys that could not be locked in time
-- A transaction that decides about a key holds its lock until it ends, and reads only afterwards: each
-- statement of a READ COMMITTED transaction sees what was committed before it, so what was read is still true when it
-- is acted on. At REPEATABLE READ the snapshot would be older than the lock, and two would be let in.
-- Locked in the order of the hashes: two batches with the same keys cannot wait for each other.
create or replace function {schema}.leasehold_lock(p_keys text[]) returns integer[] language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_hashes integer[];
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
  v_hashes := array(select distinct hashtext(k) from unnest(p_keys) k order by 1);
  loop
    -- All that are free, up to the first that is not, in one statement: the array is in order, and LIMIT stops at the first row.
    select h into v_hash from unnest(v_hashes) h
    where case when v_hash is null or h > v_hash then not pg_try_advisory_xact_lock({lockClass}, h) else false end limit 1;
    exit when not found;
    if v_blocked <> '{}' then
      -- One wait that failed has used up the time of the whole batch.
      v_blocked := v_blocked || v_hash;
    else
      begin
        perform pg_advisory_xact_lock({lockClass}, v_hash);
      exception when lock_not_available or deadlock_detected then
        -- Another transaction decides about this key and does not end. The other keys of the batch are decided all the same.
        v_blocked := v_blocked || v_hash;
      end;
    end if;
  end loop;
  return v_blocked;
end $leasehold$;

-- leasehold_lock_items([{key}, …]) → the same, for the items of a call
create or replace function {schema}.leasehold_lock_items(p_items json) returns integer[] language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
begin
  -- The usual case without a query: one item.
  if json_array_length(p_items) = 1 then
    return {schema}.leasehold_lock(array[p_items -> 0 ->> 'key']);
  end if;
  return {schema}.leasehold_lock(array(select x ->> 'key' from json_array_elements(p_items) x));
end $leasehold$;

-- leasehold_token(last, now) → the next token: grows also over lost data and clocks that go back. Every grant has 32 tokens, its own
-- and those behind it, for locks that are passed on inside a process: the next one begins behind them. One grant of a key takes
-- longer than 32 microseconds, so that tokens do not overtake the clock.
create or replace function {schema}.leasehold_token(p_last bigint, p_now timestamptz) returns bigint language plpgsql immutable
set search_path = pg_catalog, pg_temp as $leasehold$
begin
  return greatest(p_last + 32, (date_part('epoch', p_now) * 1000000)::bigint);
end $leasehold$;

-- leasehold_trim(key)   Keeps eight free slots of a key for reuse and deletes the others: a key that once had many holders must
-- not be read with all of their rows for ever. The newest token of the key stays where it is: written to the slot of another holder,
-- it would take the place of that holder's own, whose renewals and release would then find nothing.
create or replace function {schema}.leasehold_trim(p_key text) returns void language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
begin
  delete from {schema}.leasehold_leases where key = p_key and slot >= 8 and owner is null
    and token < (select max(token) from {schema}.leasehold_leases where key = p_key);
end $leasehold$;

-- leasehold_sweep(most)   Deletes keys without holder and queue, oldest first, as part of normal work. Never waits: a key that is
-- being decided about is not idle. Deleted keys stay locked until the transaction ends, so callers that may leave theirs open
-- (SQL callers) sweep few at a time.
create or replace function {schema}.leasehold_sweep(p_most integer default 100) returns void language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off as $leasehold$
declare
  v_now timestamptz := clock_timestamp();
  v_key text;
  v_until timestamptz;
  v_id integer;
  v_fence bigint := 0;
  v_gone bigint;
begin
  select id into v_id from {schema}.leasehold_fences order by id limit 1 for update skip locked;
  if v_id is null then
    return;
  end if;
  for v_key in
    select distinct key from (
      select key from {schema}.leasehold_leases where sweep_at <= v_now order by sweep_at limit p_most
    ) due
  loop
    continue when not pg_try_advisory_xact_lock({lockClass}, hashtext(v_key));
    select greatest(
      (select max(expires_at) from {schema}.leasehold_leases where key = v_key and owner is not null),
      (select max(expires_at) from {schema}.leasehold_queue where key = v_key)) into v_until;
    if v_until > v_now then
      update {schema}.leasehold_leases set sweep_at = v_until + interval '1 minute' where key = v_key and sweep_at <= v_now;
    else
      -- Free first: the trigger on deletion is for holders that are cut off.
      update {schema}.leasehold_leases set owner = null where key = v_key and owner is not null;
      with gone as (delete from {schema}.leasehold_leases where key = v_key returning token)
      select max(token) into v_gone from gone;
      delete from {schema}.leasehold_queue where key = v_key;
      v_fence := greatest(v_fence, v_gone);
    end if;
  end loop;
  update {schema}.leasehold_fences set token = v_fence where id = v_id and token < v_fence;
end $leasehold$;
