-- tables.sql   Tables and their reasons. Each is created only if it is missing, by a check of its own: CREATE INDEX IF NOT EXISTS
-- asks for its lock before it looks.

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

  -- A row is a slot of a key: held, or free (`owner` is null) for the next holder. Rows are kept and overwritten.
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
      -- When leasehold_sweep sees whether the key can be deleted. Written only when the row is made and by the sweep: the column
      -- is indexed, and another writer would end the heap-only updates.
      sweep_at timestamptz not null,
      -- The store of the holder, which is notified of a revocation; null: it does not listen. See leasehold_channel.
      subscriber text,
      primary key (key, slot)
    ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
  end if;
  if to_regclass({schemaPrefix} || 'leasehold_leases_sweep_at') is null then
    create index leasehold_leases_sweep_at on {schema}.leasehold_leases (sweep_at);
  end if;

  -- The waiters of a key, in order of arrival. Apart from the leases: a decision about a key reads its holders and the head of
  -- the queue, however long the queue is.
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
      -- An entry that is not renewed is dead: its owner crashed or gave up.
      expires_at timestamptz not null,
      announce boolean not null,
      value text,
      -- The store of the waiter, which is notified of the grant; null: it does not listen.
      subscriber text,
      -- The owner first, and the entry of an owner is asked for with `key || ''` and without a join: with the index of arrivals as
      -- a choice, and statistics of a moment when few waited, the planner reads the whole queue of the key instead.
      primary key (owner, key)
    ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
    create unique index leasehold_queue_arrival on {schema}.leasehold_queue (key, arrival);
  end if;

  -- The largest token of all rows that were forgotten: a clock that goes back must not repeat a token. Several rows, of which
  -- the largest counts: a sweep in a transaction that stays open locks one, and other sweeps take the next.
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
      sweep_at timestamptz not null
    ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
  end if;
  if to_regclass({schemaPrefix} || 'leasehold_meters_sweep_at') is null then
    create index leasehold_meters_sweep_at on {schema}.leasehold_meters (sweep_at);
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

  -- The newest token that has written to a resource. Never deleted by leasehold: only the user knows when no
  -- late write is possible any more.
  if to_regclass({schemaPrefix} || 'leasehold_guards') is null then
    create table {schema}.leasehold_guards (
      resource text collate "C" primary key,
      token bigint not null,
      seen_at timestamptz not null
    ) with (fillfactor = 70);
  end if;
end $leasehold$;
