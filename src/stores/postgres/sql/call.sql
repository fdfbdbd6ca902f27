-- call.sql   {timeoutMs} {lockTimeoutMs} {question}
-- Sent as one simple-protocol message, and so as one transaction and one round trip: committed at its end, rolled back
-- by any error, nothing left behind on the user's connection, and the same through PgBouncer in transaction mode.
-- The rule is only sound at READ COMMITTED, whatever the default of the role, the database or the server is.
-- The time limits replace those of the role: work that the caller has given up must end, but not sooner.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCAL statement_timeout = {timeoutMs};
SET LOCAL lock_timeout = {lockTimeoutMs};
SELECT {question}
