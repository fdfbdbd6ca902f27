-- end.sql   Marks what this transaction made, and drops what it no longer makes.
do $leasehold$
declare
  v_name text;
  v_function record;
  v_definer boolean;
begin
  insert into {schema}.leasehold_meta (id, version, serves, script, revision, definer)
  values (1, {version}, {serves}, {scriptText}, {revision}, coalesce({definer}, false))
  on conflict (id) do update set version = excluded.version, serves = excluded.serves, script = excluded.script,
    revision = excluded.revision,
    definer = coalesce({definer}, leasehold_meta.definer)
  returning definer into v_definer;
  foreach v_name in array {relationNames} loop
    if obj_description(to_regclass({schemaPrefix} || v_name), 'pg_class') is distinct from 'leasehold' then
      execute format('comment on %s %s is %L', case v_name when 'distributed_locks' then 'view' else 'table' end,
                     {schemaPrefix} || v_name, 'leasehold');
    end if;
  end loop;
  for v_function in
    select p.oid::regprocedure as signature, proname, p.xmin = pg_current_xact_id()::xid and proname = any ({functionNames}) as made
    from pg_proc p join pg_namespace n on n.oid = pronamespace
    where nspname = {schemaText} and (proname = any ({functionNames}) or obj_description(p.oid, 'pg_proc') = 'leasehold')
  loop
    if not v_function.made then
      execute format('drop function %s', v_function.signature);
    else
      execute format('comment on function %s is %L', v_function.signature, 'leasehold');
      -- Only what callers need. The others run with their owner's rights when these call them; called by themselves they would let
      -- a role write leases past the rule, or send a forged grant.
      if v_definer and v_function.proname = any ({entryNames}) then
        execute format('alter function %s security definer', v_function.signature);
      end if;
    end if;
  end loop;
end $leasehold$;
