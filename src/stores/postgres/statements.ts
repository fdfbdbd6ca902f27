/**
 * Statements that are sent as they are, completed by `SchemaNames.fill`. Functions and tables are in sql/.
 *
 * @module
 */

/**
 * What goes before each call, in the same simple-protocol message, and so in one transaction and one round trip: committed
 * at its end, rolled back by any error, nothing left behind on the user's connection, and the same through PgBouncer in
 * transaction mode.
 *
 * The rule is only sound at READ COMMITTED, whatever the default of the role, the database or the server is. The time limits
 * replace those of the role: work that the caller has given up must end, but not sooner.
 */
export const call = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCAL statement_timeout = {timeoutMs};
SET LOCAL lock_timeout = {lockTimeoutMs};
SELECT `

/** Which schema is installed, as JSON. */
export const installed = 'select {schema}.leasehold_installed()::pg_catalog.text'
