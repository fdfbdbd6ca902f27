/**
 * Why Redis could not serve, in words.
 *
 * @module
 */
import { LeaseholdError, StoreUnavailableError } from '../../errors.js'
import { reasonOf } from '../../util/reason.js'

/** What the first word of a Redis error means for a lock. */
const meanings: Record<string, string> = {
  LOADING: 'is still loading its data',
  READONLY: 'is a read-only replica',
  OOM: 'is out of memory (maxmemory)',
  NOAUTH: 'wants a password',
  WRONGPASS: 'does not accept the password',
  NOPERM: 'does not permit this user what a lock needs',
  MASTERDOWN: 'is a replica without a link to its master',
  CLUSTERDOWN: 'cluster is down',
  TRYAGAIN: 'is moving this slot to another node',
  MISCONF: 'refuses writes because it cannot save them',
  NOREPLICAS: 'refuses writes because it has too few replicas',
  BUSY: 'is busy with a script',
  CROSSSLOT: 'is a cluster, and the client is not a cluster client',
  MOVED: 'is a cluster, and the client is not a cluster client',
  UNBLOCKED: 'changed its role',
}

export function unavailable(error: unknown): LeaseholdError {
  if (error instanceof LeaseholdError) return error
  const message = reasonOf(error)
  const meaning = meanings[/^-?([A-Z]+)\b/.exec(message)?.[1] ?? '']
  const reason = meaning ? `${meaning}: ${message}` : `is unavailable: ${message}`
  return new StoreUnavailableError(`redis ${reason}`, { cause: error })
}
