-- sequence.sql   the only thing that has to exist: where fencing tokens come from
-- CACHE 1: a session that had drawn several tokens ahead would hand out old ones.
CREATE SEQUENCE IF NOT EXISTS {sequence} AS bigint MINVALUE 1 CACHE 1 NO CYCLE
