/**
 * leasehold: distributed locks with fencing tokens, on what you already run.
 *
 * @module
 */
export type { LockEvents, LockFacts, PublishedFacts, RequestFacts } from './core/events.js'
export type { AcquireTrace, ChannelMessages, HoldTrace } from './core/tracing.js'
export type { CallFacts, CallName } from './core/timed-call.js'
export type { Lock } from './core/lock.js'
export type { AcquireOptions, LocksOptions } from './core/options.js'
export {
  ClosedError,
  InvalidOptionError,
  LeaseholdError,
  LockLostError,
  LockTimeoutError,
  type LossFacts,
  type LossReason,
  MissingPackageError,
  type RenewalAttempt,
  SelfDeadlockError,
  StoreUnavailableError,
  UnsupportedError,
} from './errors.js'
export type { Duration } from './util/duration.js'
export type { Cancel, World } from './util/world.js'
export { createLocks, type Locks } from './locks.js'
export { openLocks } from './open-locks.js'
export { openStore } from './open-store.js'
export {
  DistributedLock,
  getDistributedLock,
  type LockInfo,
  type LockOptions,
  type LockResult,
} from './primitives/distributed-lock.js'
export type {
  Election,
  ElectionHealth,
  ElectionOptions,
  ElectionRunOptions,
} from './primitives/election/election.js'
export type { LeaderInfo } from './primitives/election/leader.js'
export type { Leadership } from './primitives/election/term.js'
export type { LockGroup } from './primitives/all.js'
export type { Limiter, RateLimitResult } from './primitives/limiter/limiter.js'
export type { LimiterOptions, RateLimit, StoreErrorOption } from './primitives/limiter/options.js'
export type { NestedOption } from './primitives/lock.js'
export { locked, type LockedDecorator } from './primitives/locked.js'
export type { HolderInfo, InspectOptions, LockState, WaiterInfo } from './primitives/inspect.js'
export type { RunOnceOptions } from './primitives/run-once.js'
export type { ReadWriteCall, ReadWriteLock, ReadWriteOptions } from './primitives/read-write.js'
export type { Schedule } from './primitives/schedule/schedule.js'
export type { RunFacts, ScheduleEvents, TickFacts } from './primitives/schedule/events.js'
export type { ScheduleOptions } from './primitives/schedule/options.js'
export type { ScheduledRun } from './primitives/schedule/run.js'
export type { Semaphore, SemaphoreCall } from './primitives/semaphore/semaphore.js'
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
  type BatchSizes,
  type Blocker,
  type Claim,
  type Failure,
  type Features,
  type Grant,
  type HolderView,
  type LeaseId,
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
