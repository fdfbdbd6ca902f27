-- foreign.sql   An object with one of leasehold's names but without its mark (a comment) is the user's: it must not be replaced,
-- read or written by accident.
do $leasehold$
declare
  v_found text;
  v_adoptable boolean;
  v_seeds constant text[] := '{distributed_locks, acquire_lock, release_lock}';
begin
  select string_agg(what, ', '), bool_and(name = any (v_seeds)) into v_found, v_adoptable from (
    select format('%s %I.%I', case relkind when 'v' then 'view' when 'r' then 'table' else 'relation' end, nspname, relname) as what,
           relname as name
    from pg_class c join pg_namespace n on n.oid = relnamespace
    where nspname = {schemaText} and relname = any ({relationNames})
      and obj_description(c.oid, 'pg_class') is distinct from 'leasehold'
    union all
    select format('function %I.%I(%s)', nspname, proname, pg_get_function_identity_arguments(p.oid)), proname
    from pg_proc p join pg_namespace n on n.oid = pronamespace
    where nspname = {schemaText} and proname = any ({functionNames})
      and obj_description(p.oid, 'pg_proc') is distinct from 'leasehold'
  ) found
  where not ({adopt} and name = any (v_seeds));
  if v_found is not null then
    raise exception 'not made by leasehold, and in the way: %', v_found using errcode = 'LH002',
      hint = case when v_adoptable then
        'Adopt them (leasehold migrate --adopt: locks that are held stay held, the old table is kept under another '
        'name, the old functions are replaced), or choose another schema.' else 'Rename them, or choose another schema.' end;
  end if;
end $leasehold$;
