-- tables.sql   What is kept, and why so.

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

-- One row. `version` is what this schema is; `serves` is the oldest client that still understands it.
-- `fence` is the largest token of all rows that were forgotten: a clock that goes back must not repeat a token.
create table if not exists {schema}.leasehold_meta (
  id integer primary key check (id = 1),
  version integer not null,
  serves integer not null,
  fence bigint not null,
  script text not null,
  -- Whether the functions run with the rights of their owner. Only `migrate` with that option changes it.
  definer boolean not null default false
) with (fillfactor = 10);

-- A row is a slot of a key: somebody holds it, somebody waits in it, or it is free (`owner` is null) for the next.
-- Rows are kept and overwritten. `key` and `slot` never change and nothing else that changes is indexed, so taking,
-- renewing and releasing are heap-only updates: no index grows, and each page cleans itself without vacuum.
create table if not exists {schema}.leasehold_leases (
  key text collate "C" not null,
  slot integer not null,
  owner text,
  waiting boolean not null,
  -- 0: told by NOTIFY. SQL callers poll: 1 = asked once (a mere try: blocks nobody), 2 = came back (a waiter in line).
  polls smallint not null,
  -- The channel on which whoever waits here is told that it was let in, and nobody else wakes up for it.
  ear text,
  arrival bigint not null,
  weight integer not null,
  capacity integer not null,
  -- The last token that was granted in this slot, also while it is free: the key's fence.
  token bigint not null,
  since timestamptz not null,
  expires_at timestamptz not null,
  ttl_ms double precision not null,
  place_ms double precision not null,
  announce boolean not null,
  value text,
  -- When to see whether the key can be forgotten. Written when the row is made and by the sweep, by nobody else.
  look_at timestamptz not null,
  primary key (key, slot)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

do $leasehold$
begin
  -- Added in version 2. ADD COLUMN IF NOT EXISTS would lock everybody out for a moment even if it is there.
  if not exists (select from pg_attribute where attrelid = {leasesText}::regclass and attname = 'ear') then
    alter table {schema}.leasehold_leases add column ear text;
  end if;
  -- Added in version 3.
  if not exists (select from pg_attribute where attrelid = {metaText}::regclass and attname = 'definer') then
    alter table {schema}.leasehold_meta add column definer boolean not null default false;
  end if;
end $leasehold$;

create index if not exists leasehold_leases_look_at on {schema}.leasehold_leases (look_at);

-- Rate limits: one row per key. `full_at` is, for each limit, when its bucket is full again (epoch milliseconds).
create table if not exists {schema}.leasehold_meters (
  key text collate "C" primary key,
  shape text not null,
  full_at double precision[] not null,
  idle_at double precision not null,
  look_at timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

create index if not exists leasehold_meters_look_at on {schema}.leasehold_meters (look_at);

-- What sliding windows have to remember, in the order in which it was taken.
create table if not exists {schema}.leasehold_takes (
  key text collate "C" not null,
  meter integer not null,
  n bigint not null,
  at double precision not null,
  cost double precision not null,
  primary key (key, meter, n)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

-- The newest token that has written to a resource. Never forgotten by itself: only you know when nobody can be late any more.
create table if not exists {schema}.leasehold_guards (
  resource text collate "C" primary key,
  token bigint not null,
  seen_at timestamptz not null
) with (fillfactor = 70);

-- Functions of an earlier version may have had other arguments or results, which CREATE OR REPLACE does not change. They are
-- kept if they have not: whoever is inside one of them right now calls the others by number.
do $leasehold$
declare
  v_function regprocedure;
begin
  if not exists (select from {schema}.leasehold_meta where version < 3) then
    return;
  end if;
  drop view if exists {schema}.distributed_locks;
  for v_function in
    select p.oid from pg_proc p join pg_namespace n on n.oid = pronamespace
    where nspname = {schemaText} and starts_with(proname, 'leasehold_') and obj_description(p.oid, 'pg_proc') = 'leasehold'
  loop
    execute format('drop function %s', v_function);
  end loop;
end $leasehold$;
