-- adopt.sql   Takes over a table distributed_locks and its functions. Held locks stay held, by the same holders.
do $leasehold$
declare
  v_function record;
  v_table regclass := to_regclass({locksText});
begin
  for v_function in
    select p.oid::regprocedure as signature, proname,
      (select string_agg(format_type(t, null), ' ' order by n) from unnest(proargtypes) with ordinality as a (t, n)) as arguments
    from pg_proc p join pg_namespace n on n.oid = pronamespace
    where nspname = {schemaText} and proname in ('acquire_lock', 'release_lock')
      and obj_description(p.oid, 'pg_proc') is distinct from 'leasehold'
  loop
    -- A function with other arguments is another one, of which nothing is known.
    if coalesce(v_function.arguments, '') !~ (case v_function.proname
      when 'acquire_lock' then '^(character varying|text) (character varying|text) integer jsonb?$'
      else '^(character varying|text) (character varying|text)$' end) then
      raise exception '% is not a function that can be adopted', v_function.signature using errcode = 'LH002',
        hint = 'Rename it, or choose another schema.';
    end if;
    execute format('drop function %s', v_function.signature);
  end loop;
  if v_table is null or obj_description(v_table, 'pg_class') = 'leasehold' then
    return;
  end if;
  if (select relkind from pg_class where oid = v_table) <> 'r' then
    raise exception '% is not a table', v_table using errcode = 'LH002';
  end if;
  execute format('lock table %s in access exclusive mode', v_table);
  execute $copy$
    insert into {schema}.leasehold_leases
      (key, slot, owner, weight, capacity, token, since, expires_at, announce, value, sweep_at)
    select 'lock:' || lock_name, 0, holder_id, 2147483647, 2147483647,
           (date_part('epoch', clock_timestamp()) * 1000000)::bigint, acquired_at, expires_at, false, metadata::text,
           clock_timestamp() + interval '1 minute'
    from $copy$ || v_table || $copy$ where expires_at > clock_timestamp()
    on conflict do nothing $copy$;
  execute format('alter table %s rename to distributed_locks_before_leasehold', v_table);
end $leasehold$;

