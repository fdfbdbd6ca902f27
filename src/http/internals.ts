/**
 * Everything that `leasehold/http` uses of the rest beyond public types, in one place.
 *
 * @module
 */
import type { Lock } from '../core/lock.js'
import type { Duration } from '../kit/duration.js'
import type { Locks } from '../locks.js'
import { takeUnder } from '../primitives/limiter.js'
import type { TakeAnswer, TakeRequest } from '../store.js'

export { knownOptions } from '../util/options.js'

/** Terms of one recorded run. */
export interface RunTerms {
  retain?: Duration
  ttl?: Duration
  wait: Duration
}

/** At most one recorded run per key. A `fn` that rejects releases the key and records nothing. */
export function runRecorded<T>(locks: Locks, key: string, fn: (lock: Lock) => Promise<T>, terms: RunTerms): Promise<T> {
  return locks.runOnce<T>(key, fn, terms)
}

export function isLocks(value: unknown): value is Locks {
  return typeof (value as Locks | undefined)?.runOnce === 'function'
}

/** Counts for one rate limit of another library. */
export type Take = (key: string, terms: Omit<TakeRequest, 'key'>) => Promise<TakeAnswer>

/** `name` keeps these counts apart from others. Throws `UnsupportedError` on a store that cannot count. */
export function takesOf(locks: Locks, name: string): Take {
  const limiter = locks.limiter(name, { limit: 1, per: 1_000 })
  return (key, terms) => takeUnder(limiter, key, terms)
}
