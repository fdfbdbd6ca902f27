/** What version 2 left in a database, as far as an update meets it. */
export const versionTwoSql = `
create table leasehold_meta (id integer primary key, version integer not null, serves integer not null, fence bigint not null, script text not null);
insert into leasehold_meta values (1, 2, 1, 0, 'old');
create table leasehold_leases (
  key text collate "C" not null, slot integer not null, owner text, waiting boolean not null, polls smallint not null, ear text,
  arrival bigint not null, weight integer not null, capacity integer not null, token bigint not null, since timestamptz not null,
  expires_at timestamptz not null, ttl_ms double precision not null, place_ms double precision not null, announce boolean not null,
  value text, look_at timestamptz not null, primary key (key, slot));
create index leasehold_leases_look_at on leasehold_leases (look_at);
create table leasehold_guards (resource text collate "C" primary key, token bigint not null, seen_at timestamptz not null);
create function leasehold_renew(p_renewals json) returns json language sql as 'select p_renewals';
create function leasehold_lock(p_keys text[]) returns integer[] language sql as 'select array[1]';
create function leasehold_metadata(p_value text) returns jsonb language sql as 'select p_value::jsonb';
create function acquire_lock(p_lock_name varchar, p_holder_id varchar, p_ttl_seconds integer default 30, p_metadata jsonb default '{}')
returns boolean language sql as 'select true';
comment on function acquire_lock is 'leasehold';
create view distributed_locks as select key as lock_name, leasehold_metadata(value) as metadata from leasehold_leases;
comment on view distributed_locks is 'leasehold';
create function leasehold_ground_rent(years int) returns int language sql as 'select years * 250';
`
