/**
 * Everything that `leasehold/http` uses of the rest beyond public types, in one place.
 *
 * @module
 */
import { known } from '../core/options.js'
import type { Lock } from '../core/lock.js'
import type { Duration } from '../kit/duration.js'
import type { Locks } from '../locks.js'
import { takeUnder } from '../primitives/limiter.js'
import type { TakeAnswer, TakeRequest } from '../store.js'

/** Terms of one recorded run. */
export interface RunTerms {
  retain?: Duration
  ttl?: Duration
  wait: Duration
}

/** At most one recorded run per key. A `fn` that rejects releases the key and records nothing. */
export function runRecorded<T>(locks: Locks, key: string, fn: (lock: Lock) => Promise<T>, terms: RunTerms): Promise<T> {
  return locks.once<T>(key, fn, terms)
}

export function isLocks(value: unknown): value is Locks {
  return typeof (value as Locks | undefined)?.once === 'function'
}

/** Refuses options that would be overlooked. */
export function knownOptions<T extends object>(options: T, names: readonly string[]): T {
  return known(options, new Set(names))
}

/** Counts for one rate limit of another library. */
export type Take = (key: string, terms: Omit<TakeRequest, 'key'>) => Promise<TakeAnswer>

/** `name` keeps these counts apart from others. Throws `UnsupportedError` on a store that cannot count. */
export function takesOf(locks: Locks, name: string): Take {
  const limiter = locks.limiter(name, { limit: 1, per: 1_000 })
  return (key, terms) => takeUnder(limiter, key, terms)
}
