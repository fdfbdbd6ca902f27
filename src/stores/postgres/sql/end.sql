-- end.sql
insert into {schema}.leasehold_meta (id, version, serves, fence, script) values (1, {version}, {serves}, 0, {scriptText})
on conflict (id) do update set version = excluded.version, serves = excluded.serves, script = excluded.script;
