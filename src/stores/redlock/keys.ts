/** What a node keeps for all names together: who it is, its counter, and an entry for each name that is held. */
export const RECORD = 'leasehold:redlock'

/** The version of everything that is kept beside the plain keys. A node with another one is refused, and never misread. */
export const FORMAT = '2'

/** Where every node tells who was cut off by `revoke` or `steal`, of all keys. */
export const REVOKED: string = `${RECORD}:revoked`

/** Where a node tells what happens to one key. */
export function wakeupChannel(key: string): string {
  return `${RECORD}:wakeup:${key}`
}
