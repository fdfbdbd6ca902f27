-- begin.sql   Many processes may migrate at once: one does, the others wait and find the work done.
set transaction isolation level read committed;
set local statement_timeout = 0;
set local lock_timeout = 0;
-- A role that may create in a schema of the caller's path could otherwise have its operators run with the caller's rights.
set local search_path = pg_catalog, pg_temp;
select pg_advisory_xact_lock({migrateKey});
-- While a request for a table lock waits behind an open transaction, every later request waits behind it. So it gives up soon
-- (55P03), and the whole script is run again a little later.
set local lock_timeout = '{lockTimeoutMs}ms';

do $leasehold$
declare
  v_version integer;
  v_revision integer;
begin
  -- A table of this name without leasehold's mark is not leasehold's: foreign.sql refuses it.
  if obj_description(to_regclass({metaText}), 'pg_class') = 'leasehold' then
    execute 'select version, revision from ' || {metaText} || ' where id = 1' into v_version, v_revision;
    if (v_version, v_revision) > ({version}, {revision}) then
      raise exception 'the schema is of version %.%, newer than this leasehold, which knows %.%',
        v_version, v_revision, {version}, {revision} using errcode = 'LH003', hint = 'Update the leasehold package.';
    end if;
  end if;
  if {definer} is true and {schemaText} = 'public' then
    raise exception 'functions that run with the rights of their owner need a schema of its own: every role may use "public"'
      using errcode = 'LH002', hint = 'Name another with --schema.';
  end if;
end $leasehold$;
