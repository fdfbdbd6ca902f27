/**
 * Names that are on the servers: keys, channels, and the owners of attempts.
 *
 * @module
 */

/** What a node keeps for all names together: its identity, its counter, and an entry for each name that is held. */
export const RECORD = 'leasehold:redlock'

/** The version of everything that is kept beside the plain keys. A node with another one is refused, and never misread. */
export const FORMAT = '2'

/** The channel on which every node names the owners that `revoke` or a steal cut off, of all keys. */
export const REVOKED: string = `${RECORD}:revoked`

/**
 * A channel on which nothing is published. A process subscribes to it only after it has asked the server for its `run_id` over the same
 * connection: a subscriber on a server proves that it still is this run, since no connection outlives its server's process.
 */
export function runChannel(run: string): string {
  return `${RECORD}:run:${run}`
}

/** The channel on which a node announces what happens to one key. */
export function wakeupChannel(key: string): string {
  return `${RECORD}:wakeup:${key}`
}

/** Between an owner and the number of its attempt. An owner may contain this character too; the part behind its last one never does. */
const OWNER_SEPARATOR = '#'

/** The owner of one attempt, as the nodes know it. `instance` has eight digits or more, by which `isAttempt` recognises it. */
export function attemptOwner(owner: string, instance: string, attempt: number): string {
  return `${owner}${OWNER_SEPARATOR}${instance}${attempt.toString(36)}`
}

/** Whether leasehold wrote this owner. Other libraries write owners of another form. */
export function isAttempt(owner: string): boolean {
  return /#[0-9a-z]{8,}$/.test(owner)
}
