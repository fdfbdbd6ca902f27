-- foreign.sql   An object with one of leasehold's names but without its mark (a comment) is the user's: it must not be replaced,
-- read or written by accident. One with the mark, of an owner who could not have migrated, is planted: its owner would keep it, and could
-- change what runs with the rights of everybody who takes a lock.
do $leasehold$
declare
  v_found text;
  v_adoptable boolean;
  v_seeds constant text[] := '{distributed_locks, acquire_lock, release_lock}';
  v_super constant boolean := rolsuper from pg_roles where rolname = current_user;
  v_trusted constant oid[] := array(
    select oid from pg_roles
    where rolsuper or rolname = current_user or (not v_super and pg_has_role(current_user, oid, 'member'))
      or oid in (select nspowner from pg_namespace where nspname = {schemaText})
      or oid in (select datdba from pg_database where datname = current_database()));
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
  select string_agg(what, ', ') into v_found from (
    select format('%I.%I of the role %I', nspname, relname, pg_get_userbyid(relowner)) as what
    from pg_class c join pg_namespace n on n.oid = relnamespace
    where nspname = {schemaText} and relname = any ({relationNames}) and relowner <> all (v_trusted)
    union all
    select format('%I.%I(%s) of the role %I', nspname, proname, pg_get_function_identity_arguments(p.oid), pg_get_userbyid(proowner))
    from pg_proc p join pg_namespace n on n.oid = pronamespace
    where nspname = {schemaText} and proname = any ({functionNames}) and proowner <> all (v_trusted)
  ) planted;
  if v_found is not null then
    raise exception 'these belong to a role that could change them afterwards: %', v_found using errcode = 'LH002',
      hint = 'Migrate as that role if it installed leasehold, or make them yours (alter … owner to). If nobody knows them, drop them.';
  end if;
end $leasehold$;
