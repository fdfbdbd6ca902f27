-- token.sql   an expression: the next token
-- {raising} is held alone by whoever raises the sequence, or a raise could set it back behind tokens drawn meanwhile.
CASE WHEN pg_advisory_xact_lock_shared({raising})::text = '' THEN nextval('{sequence}'::regclass) END
