-- foreign.sql   What has our names but is not ours must not be replaced by accident.
do $leasehold$
declare
  v_found text;
begin
  select string_agg(what, ', ') into v_found from (
    select format('%s %I.distributed_locks', case relkind when 'v' then 'view' else 'table' end, nspname) as what
    from pg_class c join pg_namespace n on n.oid = relnamespace
    where nspname = {schemaText} and relname = 'distributed_locks'
      and obj_description(c.oid, 'pg_class') is distinct from 'leasehold'
    union all
    select format('function %I.%I(%s)', nspname, proname, pg_get_function_identity_arguments(p.oid))
    from pg_proc p join pg_namespace n on n.oid = pronamespace
    where nspname = {schemaText} and proname in ('acquire_lock', 'release_lock')
      and obj_description(p.oid, 'pg_proc') is distinct from 'leasehold'
  ) found;
  if v_found is not null then
    raise exception 'not made by leasehold, and in the way: %', v_found using errcode = 'LH002',
      hint = 'Adopt them (leasehold migrate --adopt: locks that are held stay held, the old table is kept under another '
             'name, the old functions are replaced), or choose another schema.';
  end if;
end $leasehold$;

