-- unlock-many.sql   $1 int[] how   $2 bigint[] keys   → n, t: it was held | f: it was not
-- how: 1 lock, 2 shared; 3 and 4 the same for (int4, int4) pairs.
SELECT n, CASE how
  WHEN 1 THEN pg_advisory_unlock(key)
  WHEN 2 THEN pg_advisory_unlock_shared(key)
  WHEN 3 THEN pg_advisory_unlock((key >> 32)::int, (key << 32 >> 32)::int)
  ELSE pg_advisory_unlock_shared((key >> 32)::int, (key << 32 >> 32)::int)
END
FROM unnest($1::int[], $2::bigint[]) WITH ORDINALITY AS item(how, key, n)
