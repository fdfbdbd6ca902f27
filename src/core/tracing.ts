import { acquireChannel, holdChannel, isTraced } from './channels.js'
import { type LockEvents, type LockFacts, type PublishedFacts, type RequestFacts, requestFacts } from './events.js'
import type { Lease, LeaseHost } from './lease.js'
import { factsOfLease, heldMsOf } from './lease-events.js'
import { type Lock, leaseOf } from './lock.js'
import type { LockLostError } from '../errors.js'
import { type AcquireRequest, WaitEnded } from './request.js'
import type { CallFacts } from './timed-call.js'

/** Of `leasehold:acquire`: the same object in every event of one acquisition. */
export interface AcquireTrace extends PublishedFacts, RequestFacts {
  /** All names of `acquireAll` and `withLocks`, in order; `name` is the first of them. Absent for a single name. */
  names?: readonly string[] | undefined
  mode: 'exclusive' | 'shared'
  /** 0: one attempt. Infinity: for ever. */
  waitMs: number
  /** From `asyncStart` on: what was granted, an entry for each of `names`; or null if a `tryAcquire` found it busy. */
  result?: LockFacts | readonly LockFacts[] | null | undefined
  /** From `error` on. */
  error?: unknown
}

/** Of `leasehold:hold`: the same object from the grant to the end. */
export interface HoldTrace extends PublishedFacts, LockFacts {
  waitedMs: number
  /** From `asyncStart` on. */
  heldMs?: number | undefined
  /** From `error` on: it was lost. */
  error?: LockLostError | undefined
}

/** What is published on `node:diagnostics_channel`, by the name of its channel. The last two are tracing channels. */
export type ChannelMessages = {
  [E in keyof LockEvents as `leasehold:${E}`]: LockEvents[E] & PublishedFacts
} & {
  'leasehold:call': CallFacts & { store: string }
  'leasehold:acquire': AcquireTrace
  'leasehold:hold': HoldTrace
}

/** Publishes an acquisition from its beginning to its grant, its refusal or its failure. */
export async function traceAcquire<T extends Lock | null>(
  host: LeaseHost,
  request: AcquireRequest,
  acquire: () => Promise<T>,
): Promise<T> {
  let lock: T | undefined
  let ended: WaitEnded | undefined
  await acquireChannel.tracePromise(
    async () => {
      try {
        lock = await acquire()
      } catch (error) {
        // A record was found, and no lock is wanted any more: not a failure.
        if (!(error instanceof WaitEnded)) throw error
        ended = error
      }
      return lock ? factsOf(lock) : null
    },
    acquireTrace(host, request, undefined),
  )
  if (ended) throw ended
  return lock as T
}

/** The same for several names: one trace for all of them, whether the store grants them together or one by one. */
export async function traceAcquireAll(
  host: LeaseHost,
  requests: readonly AcquireRequest[],
  acquire: () => Promise<readonly Lock[]>,
): Promise<readonly Lock[]> {
  let locks: readonly Lock[] = []
  const names = requests.map(({ name }) => name)
  await acquireChannel.tracePromise(
    async () => {
      locks = await acquire()
      return locks.map(factsOf)
    },
    acquireTrace(host, requests[0] as AcquireRequest, names),
  )
  return locks
}

function acquireTrace(
  { store, events }: LeaseHost,
  request: AcquireRequest,
  names: readonly string[] | undefined,
): AcquireTrace {
  const { mode, waitMs } = request
  const { name, kind, metadata } = requestFacts(request)
  // In one literal, here and below: putting it together from parts costs as much as the lock itself.
  return {
    store: store.name,
    namespace: events.namespace,
    name,
    names,
    kind,
    metadata,
    mode,
    waitMs,
    result: undefined,
    error: undefined,
  }
}

/** Not the lock itself: a subscriber that keeps it would hide that its owner forgot it. */
function factsOf(lock: Lock): LockFacts {
  const lease = leaseOf(lock)
  return lease.trace ?? factsOfLease(lease)
}

/** Publishes the beginning of a lease. */
export function traceHold(lease: Lease): void {
  const { waitedMs, request, holder, fencingToken, expiresAt } = lease
  const { store, events } = lease.host
  const { name, kind, metadata } = requestFacts(request)
  const trace: HoldTrace = {
    store: store.name,
    namespace: events.namespace,
    name,
    kind,
    metadata,
    mode: request.mode,
    holder,
    fencingToken,
    expiresAt,
    waitedMs,
    heldMs: undefined,
    error: undefined,
  }
  lease.trace = trace
  holdChannel.start.publish(trace)
  holdChannel.end.publish(trace)
}

/** Ends a lease whose release is not answered yet. Its trace ends with the answer, which may be that it had been lost. */
export function endUnanswered(lease: Lease): void {
  const trace = lease.trace as HoldTrace | undefined
  lease.trace = undefined
  lease.end()
  if (!trace) return
  trace.heldMs = heldMsOf(lease)
  lease.trace = trace
}

/** Publishes the end of a lease, if its beginning was published. */
export function traceHoldEnd(lease: Lease): void {
  const trace = lease.trace as HoldTrace | undefined
  if (!trace) return
  lease.trace = undefined
  trace.heldMs ??= heldMsOf(lease)
  if (lease.loss) {
    trace.error = lease.loss
    holdChannel.error.publish(trace)
  }
  holdChannel.asyncStart.publish(trace)
  holdChannel.asyncEnd.publish(trace)
}

export const isAcquireTraced = (): boolean => isTraced(acquireChannel)
export const isHoldTraced = (): boolean => isTraced(holdChannel)
