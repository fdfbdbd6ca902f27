/**
 * Fencing by etcd itself: a comparison for the caller's own transaction, which fails once the lock is gone.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'
import type { Tracked } from './entry.js'

/** A lock as `acquire` returns it. */
export interface GuardedLock {
  readonly holder: string
  readonly fencingToken: bigint
}

/** The condition under which a lock is held. Renewals do not change it. */
export interface EtcdGuard {
  /** The key in etcd that exists while the lock is held. */
  key: string
  /** The revision at which that very key was created. */
  createRevision: number
  /** For the JSON API: one item of `compare`. */
  compare: { key: string; target: 'CREATE'; result: 'EQUAL'; create_revision: string }
  /** For `etcdctl txn`: one line of its conditions. */
  etcdctl: string
}

/** Finds what a store object holds. */
type Lookup = (lock: GuardedLock) => Tracked | undefined

const stores = new Set<Lookup>()

/** A store object that may be asked for guards. Returns how to end that. */
export function register(lookup: Lookup): () => void {
  stores.add(lookup)
  return () => void stores.delete(lookup)
}

/**
 * The comparison to put into your own etcd transaction, so that a write is refused once the lock is gone, however late it arrives.
 * Throws `InvalidOptionError` if the lock is not held through an etcd store of this process (any more).
 *
 * @example
 * ```ts
 * const { key, createRevision } = guard(lock)
 * await client.if(key, 'Create', '==', createRevision).then(client.put('balance:7').value('90')).commit() // etcd3
 * ```
 */
export function guard(lock: GuardedLock): EtcdGuard {
  for (const lookup of stores) {
    const entry = lookup(lock)
    if (!entry) continue
    const { etcdKey, createRevision } = entry
    const key = etcdKey.toString()
    return {
      key,
      createRevision,
      compare: {
        key: etcdKey.toString('base64'),
        target: 'CREATE',
        result: 'EQUAL',
        create_revision: String(createRevision),
      },
      etcdctl: `create(${JSON.stringify(key)}) = "${createRevision}"`,
    }
  }
  throw new InvalidOptionError('lock', lock, 'a lock that is held through an etcd store of this process')
}
