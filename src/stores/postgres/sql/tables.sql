-- tables.sql   What is kept, and why so. Everything is made only if it is missing: CREATE INDEX IF NOT EXISTS, for one, asks
-- for its lock before it looks.

do $leasehold$
begin
  -- CREATE SCHEMA IF NOT EXISTS asks for the right to create schemas even if this one exists.
  if not exists (select from pg_namespace where nspname = {schemaText}) then
    create schema {schema};
  end if;
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception 'leasehold needs a database with the encoding UTF8; this one has %', current_setting('server_encoding');
  end if;
end $leasehold$;

-- What an installation of version 1 or 2 has. Leases that are held stay held; waiters ask again and stand in the queue anew.
do $leasehold$
declare
  v_function regprocedure;
  v_fence bigint;
begin
  if not exists (select from pg_attribute where attrelid = to_regclass({metaText}) and attname = 'fence' and not attisdropped) then
    return;
  end if;
  drop view if exists {schema}.distributed_locks;
  for v_function in
    select p.oid from pg_proc p join pg_namespace n on n.oid = pronamespace
    where nspname = {schemaText} and starts_with(proname, 'leasehold_') and obj_description(p.oid, 'pg_proc') = 'leasehold'
  loop
    execute format('drop function %s', v_function);
  end loop;
  select greatest(fence, (select max(token) from {schema}.leasehold_leases)) into v_fence from {schema}.leasehold_meta;
  delete from {schema}.leasehold_leases where waiting and owner is not null;
  alter table {schema}.leasehold_leases drop column waiting, drop column polls, drop column if exists ear, drop column arrival,
    drop column ttl_ms, drop column place_ms, add column subscriber text;
  alter table {schema}.leasehold_meta drop column fence, add column revision integer not null default 0,
    add column definer boolean not null default false;
  create table {schema}.leasehold_fences (id integer primary key, token bigint not null);
  insert into {schema}.leasehold_fences select i, v_fence from generate_series(1, 8) i;
end $leasehold$;

do $leasehold$
begin
  -- One row. `version` is what this schema is; `serves` is the oldest client that still understands it.
  if to_regclass({schemaPrefix} || 'leasehold_meta') is null then
    create table {schema}.leasehold_meta (
      id integer primary key check (id = 1),
      version integer not null,
      serves integer not null,
      script text not null,
      -- Grows with every change of the functions: an older package must not put its older ones back.
      revision integer not null default 0,
      -- Whether the functions run with the rights of their owner. Only `migrate` with that option changes it.
      definer boolean not null default false
    );
  end if;

  -- A row is a slot of a key: somebody holds it, or it is free (`owner` is null) for the next. Rows are kept and overwritten.
  -- `key` and `slot` never change and nothing else that changes is indexed, so taking, renewing and releasing are heap-only
  -- updates: no index grows, and each page cleans itself without vacuum.
  if to_regclass({schemaPrefix} || 'leasehold_leases') is null then
    create table {schema}.leasehold_leases (
      key text collate "C" not null,
      slot integer not null,
      owner text,
      weight integer not null,
      capacity integer not null,
      -- The last token that was granted in this slot, also while it is free: the key's fence.
      token bigint not null,
      since timestamptz not null,
      expires_at timestamptz not null,
      announce boolean not null,
      value text,
      -- When to see whether the key can be forgotten. Written when the row is made and by the sweep, by nobody else.
      look_at timestamptz not null,
      -- Whose store it is, to tell it that the lease was taken away; null: nobody listens. See leasehold_channel.
      subscriber text,
      primary key (key, slot)
    ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
  end if;
  if to_regclass({schemaPrefix} || 'leasehold_leases_look_at') is null then
    create index leasehold_leases_look_at on {schema}.leasehold_leases (look_at);
  end if;

  -- Who waits for a key, in order of arrival. Apart from the leases: whoever decides about a key reads its holders and the head
  -- of the queue, however long the queue is.
  if to_regclass({schemaPrefix} || 'leasehold_queue') is null then
    create table {schema}.leasehold_queue (
      key text collate "C" not null,
      owner text collate "C" not null,
      arrival bigint not null,
      weight integer not null,
      capacity integer not null,
      ttl_ms double precision not null,
      queue_ms double precision not null,
      since timestamptz not null,
      -- An entry that is not renewed is nobody's: its owner died or went away.
      expires_at timestamptz not null,
      announce boolean not null,
      value text,
      -- Who is told that it was let in; null: nobody listens.
      subscriber text,
      primary key (key, owner)
    ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
    create unique index leasehold_queue_arrival on {schema}.leasehold_queue (key, arrival);
  end if;

  -- The largest token of all rows that were forgotten: a clock that goes back must not repeat a token. Several rows, of which
  -- the largest counts: whoever forgets something in a transaction that stays open locks one, and the others go on.
  if to_regclass({schemaPrefix} || 'leasehold_fences') is null then
    create table {schema}.leasehold_fences (id integer primary key, token bigint not null);
    insert into {schema}.leasehold_fences select i, 0 from generate_series(1, 8) i;
  end if;

  -- What the names of channels are made of, see leasehold_channel. Not to be read by roles that only look.
  if to_regclass({schemaPrefix} || 'leasehold_secret') is null then
    create table {schema}.leasehold_secret (id integer primary key check (id = 1), secret text not null);
    insert into {schema}.leasehold_secret values (1, gen_random_uuid()::text || gen_random_uuid()::text);
    revoke all on {schema}.leasehold_secret from public;
  end if;

  -- Rate limits: one row per key. `full_at` is, for each limit, when its bucket is full again (epoch milliseconds).
  if to_regclass({schemaPrefix} || 'leasehold_meters') is null then
    create table {schema}.leasehold_meters (
      key text collate "C" primary key,
      shape text not null,
      full_at double precision[] not null,
      idle_at double precision not null,
      look_at timestamptz not null
    ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
  end if;
  if to_regclass({schemaPrefix} || 'leasehold_meters_look_at') is null then
    create index leasehold_meters_look_at on {schema}.leasehold_meters (look_at);
  end if;

  -- What sliding windows have to remember, in the order in which it was taken.
  if to_regclass({schemaPrefix} || 'leasehold_takes') is null then
    create table {schema}.leasehold_takes (
      key text collate "C" not null,
      meter integer not null,
      n bigint not null,
      at double precision not null,
      cost double precision not null,
      primary key (key, meter, n)
    ) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
  end if;

  -- The newest token that has written to a resource. Never forgotten by itself: only you know when nobody can be late any more.
  if to_regclass({schemaPrefix} || 'leasehold_guards') is null then
    create table {schema}.leasehold_guards (
      resource text collate "C" primary key,
      token bigint not null,
      seen_at timestamptz not null
    ) with (fillfactor = 70);
  end if;
end $leasehold$;
