/**
 * Everything that `leasehold/http` uses of the rest of the library beyond public types.
 *
 * @module
 */
import { type Lock, worldOf } from '../core/lock.js'
import type { Duration } from '../util/duration.js'
import { realWorld, type World } from '../util/world.js'
import type { Locks } from '../locks.js'
import { takeUnder } from '../primitives/limiter/limiter.js'
import type { TakeAnswer, TakeRequest } from '../store.js'

export { knownOptions } from '../util/options.js'

/** Options of one recorded run. */
export interface RecordedRunOptions {
  retain?: Duration
  ttl?: Duration
  wait: Duration
}

/** At most one recorded run per key. A `fn` that rejects releases the key and records nothing. */
export function runRecorded<T>(
  locks: Locks,
  key: string,
  fn: (lock: Lock) => Promise<T>,
  terms: RecordedRunOptions,
): Promise<T> {
  return locks.runOnce<T>(key, fn, terms)
}

/** The timers of a lock: what depends on its lease must not end by another clock. */
export function timersOf(lock: Lock): World['after'] {
  return (worldOf(lock) ?? realWorld).after
}

export function isLocks(value: unknown): value is Locks {
  return typeof (value as Locks | undefined)?.runOnce === 'function'
}

/** Takes from the counter of one key, with limits that each call names. */
export type LimiterTake = (key: string, terms: Omit<TakeRequest, 'key'>) => Promise<TakeAnswer>

/** `name` sets these counters apart from others. Throws `UnsupportedError` on a store without rate limits. */
export function limiterTake(locks: Locks, name: string): LimiterTake {
  const limiter = locks.limiter(name, { limit: 1, per: 1_000 })
  return (key, terms) => takeUnder(limiter, key, terms)
}
