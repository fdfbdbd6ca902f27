-- queue.sql   Notifications, and what all decisions share. The functions below leasehold_probe expect the key to be locked
-- (leasehold_lock).

-- leasehold_channel(subscriber) → the name of the channel on which this store listens
-- Every role that may connect may NOTIFY on any channel whose name it knows, so a name that can be read off the leases would let
-- every role that may read them forge a grant. The name is derived from the subscriber's and a secret that such roles cannot read.
create or replace function {schema}.leasehold_channel(p_subscriber text) returns text language sql stable
set search_path = pg_catalog, pg_temp as $leasehold$
  select 'leasehold_' || left(encode(sha256(convert_to(secret || p_subscriber, 'UTF8')), 'hex'), 48)
  from {schema}.leasehold_secret where id = 1
$leasehold$;

-- leasehold_notify(subscriber, message, defer)   Called only if a store listens: NOTIFY takes a lock at commit that is one
-- for the whole server, and keeps it while the commit waits for the disk. So a store's releases defer it: the message is kept
-- in a setting of the session, and sent by leasehold_flush in a transaction of its own, which does not wait for the disk.
create or replace function {schema}.leasehold_notify(p_subscriber text, p_message json, p_defer boolean default false)
returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_channel text := {channelText};
begin
  -- NOTIFY carries less than 8000 bytes. A waiter that is not notified finds out by its next heartbeat.
  if octet_length(p_message::text) >= 7900 then
    return;
  end if;
  if p_subscriber is not null then
    -- leasehold_channel, without the price of a call.
    select 'leasehold_' || left(encode(sha256(convert_to(secret || p_subscriber, 'UTF8')), 'hex'), 48) into v_channel
    from {schema}.leasehold_secret where id = 1;
  end if;
  perform {schema}.leasehold_send(v_channel || ' ' || p_message::text || chr(10), p_defer);
end $leasehold$;

-- leasehold_send(messages, defer)   One row of text each: a channel and a message. JSON has no newline outside of strings, and none
-- unescaped inside.
create or replace function {schema}.leasehold_send(p_messages text, p_defer boolean) returns void language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_setting text;
begin
  if p_defer then
    -- What an earlier transaction left could not be sent, and is told by heartbeats. While NOTIFY fails (its queue is full) it
    -- would grow with every release.
    if coalesce(nullif(current_setting('leasehold.deferred_at', true), ''), '0')::double precision >= date_part('epoch', now()) then
      v_setting := current_setting('leasehold.deferred', true);
    end if;
    v_setting := set_config('leasehold.deferred', coalesce(v_setting, '') || p_messages, false);
    v_setting := set_config('leasehold.deferred_at', date_part('epoch', clock_timestamp())::text, false);
  else
    perform pg_notify(split_part(l, ' ', 1), substr(l, strpos(l, ' ') + 1)) from string_to_table(p_messages, chr(10)) l where l <> '';
  end if;
end $leasehold$;

-- leasehold_flush()   Sends what a release before it on the same connection deferred. Behind a pooler these may be the messages of
-- another store, and late: those older than a second are dropped, and the waiter finds out by its heartbeat.
create or replace function {schema}.leasehold_flush() returns void language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_deferred text := current_setting('leasehold.deferred', true);
  v_setting text;
begin
  if v_deferred is null or v_deferred = '' then
    return;
  end if;
  v_setting := set_config('leasehold.deferred', '', false);
  v_setting := set_config('synchronous_commit', 'off', true);
  if current_setting('leasehold.deferred_at', true)::double precision < date_part('epoch', clock_timestamp()) - 1 then
    return;
  end if;
  perform pg_notify(split_part(l, ' ', 1), substr(l, strpos(l, ' ') + 1)) from string_to_table(v_deferred, chr(10)) l where l <> '';
end $leasehold$;

-- leasehold_probe(subscriber, n)   A store sends itself a message, to see whether notifications arrive on its listening connection.
-- Without a subscriber all stores receive it: one message is proof for each of them.
create or replace function {schema}.leasehold_probe(p_subscriber text, p_n integer) returns integer language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_setting text := set_config('synchronous_commit', 'off', true);
begin
  perform pg_notify(coalesce({schema}.leasehold_channel(p_subscriber), {channelText}), 'probe ' || p_n);
  return p_n;
end $leasehold$;

-- leasehold_drop_expired(key, now)   Ends leases that expired. Renewals take no lock on the key, only on their row, so the row
-- decides which of the two comes first: afterwards every lease that has an owner is held.
create or replace function {schema}.leasehold_drop_expired(p_key text, p_now timestamptz) returns void language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_announced boolean;
  v_slot integer;
begin
  with cleared as (
    update {schema}.leasehold_leases set owner = null, value = null
    where key = p_key and owner is not null and expires_at <= p_now
    returning slot, announce
  )
  select bool_or(announce), max(slot) into v_announced, v_slot from cleared;
  if v_announced then
    perform {schema}.leasehold_notify(null::text, json_build_array('changed', p_key), false);
  end if;
  if v_slot >= 8 then
    perform {schema}.leasehold_trim(p_key);
  end if;
end $leasehold$;

-- leasehold_prune_queue(key, now) → the first live queue entry; expired ones before it are deleted
create or replace function {schema}.leasehold_prune_queue(p_key text, p_now timestamptz) returns {schema}.leasehold_queue
language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_head {schema}.leasehold_queue;
begin
  loop
    select * into v_head from {schema}.leasehold_queue where key = p_key order by arrival limit 1;
    if not found or v_head.expires_at > p_now then
      return v_head;
    end if;
    delete from {schema}.leasehold_queue where key = p_key and expires_at <= p_now;
  end loop;
end $leasehold$;

-- leasehold_write_lease(…)   Writes a lease into a free slot if there is one, else into a new one.
create or replace function {schema}.leasehold_write_lease(
  p_key text, p_slot integer, p_new_slot integer, p_owner text, p_weight integer, p_capacity integer, p_token bigint,
  p_since timestamptz, p_ttl_ms double precision, p_announce boolean, p_value text, p_subscriber text
) returns void language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_expires timestamptz := p_since + p_ttl_ms * interval '1 millisecond';
begin
  if p_slot is null then
    insert into {schema}.leasehold_leases
      (key, slot, owner, weight, capacity, token, since, expires_at, announce, value, sweep_at, subscriber)
    values
      (p_key, p_new_slot, p_owner, p_weight, p_capacity, p_token, p_since, v_expires, p_announce, p_value,
       p_since + interval '1 minute', p_subscriber);
  else
    update {schema}.leasehold_leases
    set owner = p_owner, weight = p_weight, capacity = p_capacity, token = p_token, since = p_since, expires_at = v_expires,
        announce = p_announce, value = p_value, subscriber = p_subscriber
    where key = p_key and slot = p_slot;
  end if;
end $leasehold$;

-- leasehold_hand_off(key, now, before, defer) → whether a waiter was granted the lease
-- Grants to the head of the queue while there is room: no second request, no race with newcomers. For as long as an entry
-- lasts: a waiter that died must not block the others for a whole ttl. Stops before the owner `before`, whose claim is being
-- decided and gets its whole ttl; and after a thousand, so that one transaction stays short: the next decision goes on.
create or replace function {schema}.leasehold_hand_off(
  p_key text, p_now timestamptz, p_before text, p_defer boolean default false
) returns boolean language plpgsql set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_head {schema}.leasehold_queue := {schema}.leasehold_prune_queue(p_key, p_now);
  v_ttl_ms double precision;
  v_served integer := 0;
  s record;
begin
  if v_head.owner is null or v_head.owner = p_before then
    return false;
  end if;
  loop
    select coalesce(sum(weight) filter (where owner is not null), 0) as held, max(token) as token,
           min(slot) filter (where owner is null) as free_slot, coalesce(max(slot) + 1, 0) as new_slot,
           count(*) filter (where owner is not null and expires_at <= p_now) as expired
    into s from {schema}.leasehold_leases where key = p_key;
    exit when s.expired = 0;
    perform {schema}.leasehold_drop_expired(p_key, p_now);
  end loop;
  if s.token is null then
    select max(token) into s.token from {schema}.leasehold_fences;
  end if;
  while v_head.owner is not null and v_head.owner is distinct from p_before
    and s.held + v_head.weight <= v_head.capacity and v_served < 1000
  loop
    s.token := {schema}.leasehold_token(s.token, p_now);
    v_ttl_ms := least(v_head.queue_ms, v_head.ttl_ms);
    perform {schema}.leasehold_write_lease(
      p_key, s.free_slot, s.new_slot, v_head.owner, v_head.weight, v_head.capacity, s.token, p_now, v_ttl_ms, v_head.announce,
      v_head.value, v_head.subscriber);
    delete from {schema}.leasehold_queue where key = p_key and arrival = v_head.arrival;
    if v_head.subscriber is not null then
      perform {schema}.leasehold_notify(v_head.subscriber,
        json_build_array('granted', p_key, v_head.owner, s.token::text, v_ttl_ms), p_defer);
    end if;
    if v_head.announce then
      perform {schema}.leasehold_notify(null::text, json_build_array('changed', p_key), p_defer);
    end if;
    s.held := s.held + v_head.weight;
    if s.free_slot is null then
      s.new_slot := s.new_slot + 1;
    else
      select min(slot) into s.free_slot from {schema}.leasehold_leases where key = p_key and slot > s.free_slot and owner is null;
    end if;
    v_served := v_served + 1;
    exit when s.held >= v_head.capacity;
    v_head := {schema}.leasehold_prune_queue(p_key, p_now);
  end loop;
  return v_served > 0;
end $leasehold$;

-- leasehold_evict(key)   Takes the lease away from all of its holders, and notifies them.
create or replace function {schema}.leasehold_evict(p_key text) returns void language plpgsql
set search_path = pg_catalog, pg_temp as $leasehold$
declare
  v_holder record;
begin
  for v_holder in
    update {schema}.leasehold_leases set owner = null, value = null from (
      select slot as cut_slot, owner as cut_owner from {schema}.leasehold_leases
      where key = p_key and owner is not null order by slot for update
    ) cut
    where key = p_key and slot = cut_slot
    returning cut_owner as owner, token, announce, subscriber
  loop
    if v_holder.subscriber is not null then
      perform {schema}.leasehold_notify(v_holder.subscriber,
        json_build_array('revoked', p_key, v_holder.owner, v_holder.token::text), false);
    end if;
    if v_holder.announce then
      perform {schema}.leasehold_notify(null::text, json_build_array('changed', p_key), false);
    end if;
  end loop;
end $leasehold$;
