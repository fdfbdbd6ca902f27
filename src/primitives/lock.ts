import type { AcquireRequest } from '../core/request.js'
import type { Engine } from '../core/engine.js'
import { type Lock, leaseOf } from '../core/lock.js'
import { holding, refuseSelfDeadlock } from '../core/nesting.js'
import { InvalidOptionError } from '../errors.js'

/** Inside a callback that holds the same name: refuse at once (the default), or wait all the same. */
export interface NestedOption {
  /** `'wait'`: this is detached work that may wait for the callback around it. */
  nested?: 'wait' | undefined
}

/** Waits, holds, renews, releases: always. Resolves only if the lock was held throughout. */
export async function withLock<T>(
  engine: Engine,
  request: AcquireRequest,
  fn: (lock: Lock) => T | Promise<T>,
  nested?: unknown,
): Promise<T> {
  if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run under the lock')
  if (nested === undefined) refuseSelfDeadlock(engine.store, [request.key], () => request.name)
  else if (nested !== 'wait') throw new InvalidOptionError('nested', nested, "'wait'")
  const lock = await engine.acquire(request)
  return runUnder(lock, () => holding(engine.store, [request.key], () => fn(lock)))
}

/** Releases what was held for a callback that has ended. Throws if one of the locks was not held until now. */
export async function releaseHeld(locks: readonly Lock[]): Promise<void> {
  const leases = locks.map(leaseOf)
  for (const lease of leases) lease.noticeDeadline()
  // `releaseAll` or `close` took it while the callback ran: another may have held it since, whatever the store answers now.
  const takenBack = leases.find((lease) => lease.takenBack)?.takenBack
  await Promise.all(locks.map((lock) => lock.release()))
  const loss = leases.find((lease) => lease.loss)?.loss ?? takenBack
  if (loss) throw loss
}

/** The function's own error wins over any error of the clean-up; its result counts only if the lock was held until the end. */
export async function runUnder<T>(lock: Lock, fn: () => Promise<T>): Promise<T> {
  let result: T
  try {
    result = await fn()
  } catch (error) {
    await lock.release()
    throw error
  }
  await releaseHeld([lock])
  return result
}
