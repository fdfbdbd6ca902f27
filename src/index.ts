/**
 * leasehold: distributed locks with fencing tokens, on what you already run.
 *
 * @module
 */
export type { LockEvents, LockFacts } from './core/events.js'
export type { Lock } from './core/lock.js'
export type { AcquireOptions, LocksOptions } from './core/options.js'
export {
  ClosedError,
  InvalidOptionError,
  LeaseholdError,
  LockLostError,
  LockTimeoutError,
  type LossReason,
  SelfDeadlockError,
  StoreUnavailableError,
  UnsupportedError,
} from './errors.js'
export type { Duration } from './kit/duration.js'
export { createLocks, type Locks } from './locks.js'
export { openStore } from './open-store.js'
export {
  DistributedLock,
  getDistributedLock,
  type LockInfo,
  type LockOptions,
  type LockResult,
} from './primitives/distributed-lock.js'
export type { Election, ElectionHealth, ElectionOptions, LeaderInfo } from './primitives/election.js'
export type { Leadership } from './primitives/election-term.js'
export type { LockGroup } from './primitives/all.js'
export type { Limiter, RateLimitResult } from './primitives/limiter.js'
export type { LimiterOptions, RateLimit, StoreErrorOption } from './primitives/limiter-options.js'
export type { NestedOption } from './primitives/lock.js'
export { locked } from './primitives/locked.js'
export type { HolderInfo, LockState, LookOptions, WaiterInfo } from './primitives/lookout.js'
export type { OnceOptions } from './primitives/once.js'
export type { ReadWriteCall, ReadWriteLock, ReadWriteOptions } from './primitives/read-write.js'
export type { Schedule } from './primitives/schedule.js'
export type { RunFacts, ScheduleEvents, TickFacts } from './primitives/schedule-events.js'
export type { ScheduleOptions } from './primitives/schedule-options.js'
export type { ScheduledRun } from './primitives/schedule-run.js'
export type { Semaphore, SemaphoreCall } from './primitives/semaphore.js'
export type { NameOf } from './primitives/wrap.js'
export type {
  WebLock,
  WebLockCallback,
  WebLockInfo,
  WebLockOptions,
  WebLockSnapshot,
} from './primitives/web-locks.js'
export {
  ALL,
  type Answer,
  type Awaitable,
  type Blocker,
  type Claim,
  type Failure,
  type Features,
  type Grant,
  type HolderView,
  type Lease,
  type Limit,
  type LimitState,
  type Refusal,
  type Released,
  type Renewal,
  type Renewed,
  type Store,
  type StoreEvent,
  type TakeAnswer,
  type TakeRequest,
  type WaiterView,
  type Watch,
} from './store.js'
export { type MemoryStore, memory } from './stores/memory/index.js'
