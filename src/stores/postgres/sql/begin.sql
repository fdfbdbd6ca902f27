-- begin.sql   Many processes may migrate at once: one does, the others wait and find it done.
set transaction isolation level read committed;
set local statement_timeout = 0;
set local lock_timeout = 0;
select pg_advisory_xact_lock({migrateKey});

do $leasehold$
declare
  v_version integer;
begin
  if to_regclass({metaText}) is not null then
    execute 'select version from ' || {metaText} || ' where id = 1' into v_version;
    if v_version > {version} then
      raise exception 'the schema is of version %, newer than this leasehold, which knows %', v_version, {version}
        using hint = 'Update the leasehold package.';
    end if;
  end if;
end $leasehold$;

