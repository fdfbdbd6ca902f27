-- begin.sql   Many processes may migrate at once: one does, the others wait and find it done.
set transaction isolation level read committed;
set local statement_timeout = 0;
set local lock_timeout = 0;
-- Whoever may create in a schema of the caller's path could otherwise have its operators run with the caller's rights.
set local search_path = pg_catalog, pg_temp;
select pg_advisory_xact_lock({migrateKey});
-- While a request for a table lock waits behind somebody's open transaction, everybody else's waits behind the request. So it
-- gives up soon (55P03), and the whole script is run again a little later.
set local lock_timeout = '{lockTimeoutMs}ms';

do $leasehold$
declare
  v_version integer;
  v_revision integer := 0;
begin
  if to_regclass({metaText}) is not null then
    execute 'select version from ' || {metaText} || ' where id = 1' into v_version;
    if exists (select from pg_attribute where attrelid = to_regclass({metaText}) and attname = 'revision') then
      execute 'select revision from ' || {metaText} || ' where id = 1' into v_revision;
    end if;
    if (v_version, v_revision) > ({version}, {revision}) then
      raise exception 'the schema is of version %.%, newer than this leasehold, which knows %.%',
        v_version, v_revision, {version}, {revision} using errcode = 'LH003', hint = 'Update the leasehold package.';
    end if;
  end if;
  if {definer} is true and {schemaText} = 'public' then
    raise exception 'functions that run with the rights of their owner need a schema of its own: everybody may use "public"'
      using errcode = 'LH002', hint = 'Name another with --schema.';
  end if;
end $leasehold$;

-- What an installation has that was made before objects were marked.
do $leasehold$
declare
  v_name text;
begin
  if obj_description(to_regclass({metaText}), 'pg_class') is not null
    or 4 <> (select count(*) from pg_attribute where attrelid = to_regclass({metaText}) and not attisdropped
             and attname in ('version', 'serves', 'fence', 'script')) then
    return;
  end if;
  foreach v_name in array {relationNames} loop
    if (select relkind from pg_class where oid = to_regclass({schemaPrefix} || v_name)) = 'r' then
      execute format('comment on table %s is %L', {schemaPrefix} || v_name, 'leasehold');
    end if;
  end loop;
  foreach v_name in array array[
    'leasehold_ask(text,text,int,int,float8,text,float8,bool,bool,int2,text)', 'leasehold_serve(text,timestamptz,text)',
    'leasehold_evict(text)', 'leasehold_views(text,text,bool)', 'leasehold_inspect(text)', 'leasehold_lock(text[])',
    'leasehold_lock_all(json)', 'leasehold_ring(text,text,text,bigint,float8,text)', 'leasehold_token(bigint,timestamptz)',
    'leasehold_trim(text)', 'leasehold_clear(text,timestamptz)', 'leasehold_sweep()',
    'leasehold_put(text,int,int,text,bool,int2,bigint,int,int,bigint,timestamptz,timestamptz,float8,float8,bool,text,text)',
    'leasehold_acquire_one(text,text,int,int,float8,text,float8,bool,bool,text)', 'leasehold_acquire(json,text)',
    'leasehold_acquire_all(json)', 'leasehold_extend(text,text,float8,text)', 'leasehold_renew(json)',
    'leasehold_end(text,text)', 'leasehold_release_one(text,text)', 'leasehold_release(json)', 'leasehold_revoke(text)',
    'leasehold_take(json,float8)', 'leasehold_take_one(text,float8,json,float8)', 'leasehold_limits(json)',
    'leasehold_judge(text,int,text,float8,float8,float8,float8,float8,float8)', 'leasehold_sweep_meters()',
    'leasehold_guard(text,bigint)', 'leasehold_metadata(text)', 'leasehold_locks_write()'
  ] loop
    if to_regprocedure({schemaPrefix} || v_name) is not null then
      execute format('comment on function %s is %L', {schemaPrefix} || v_name, 'leasehold');
    end if;
  end loop;
end $leasehold$;
