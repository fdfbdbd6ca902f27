import type { World } from '../util/world.js'
import type { Timed, Timers } from './timers.js'

/** A lease is renewed after this share of its ttl, so that two renewals may fail before it is lost. */
const HEARTBEAT_SHARE = 1 / 3

/** A renewal is due at most this share of its period early, so that it can travel with others. */
const COALESCE_SHARE = 0.1

/** A provisional lease is renewed after this long. Most locks that change hands are released sooner and never need it. */
const CONFIRM_MS = 20

/** So many different pauses before a renewal is tried again. Fewer would bring all leases of a process back at once. */
const RETRY_SLOTS = 32

/** A lease, as far as it matters when it is due: for its next renewal, or because its time is over. */
export interface DueLease extends Timed {
  readonly host: { readonly heartbeats: Timers; readonly world: World }
  readonly ttlMs: number
  readonly deadline: number
  readonly autoRenew: boolean
  /** There is nothing left to renew. */
  readonly isFinal: boolean
}

/** The next heartbeat; or the deadline, if it is not to be renewed. `from`: when the request was sent that it has its time from. */
export function scheduleRenewal(lease: DueLease, from: number): void {
  const { heartbeats } = lease.host
  if (!lease.autoRenew || lease.isFinal) heartbeats.set(lease, lease.deadline, lease.ttlMs)
  else {
    const period = lease.ttlMs * HEARTBEAT_SHARE
    heartbeats.set(lease, Math.min(from + period, lease.deadline), period, period * COALESCE_SHARE)
  }
}

/** A provisional lease asks for its full ttl, unless it is released before. */
export function scheduleConfirmation(lease: DueLease): void {
  const { heartbeats, world } = lease.host
  const now = world.now()
  heartbeats.set(lease, now + Math.min(CONFIRM_MS, Math.max(lease.deadline - now, 0) / 4), CONFIRM_MS)
}

/** `failures`: how many renewals have failed in a row before this one. */
export function scheduleRetry(lease: DueLease, failures: number): void {
  const { heartbeats, world } = lease.host
  const pause = Math.min(Math.max(lease.ttlMs / 30, 5) * 2 ** Math.min(failures, 4), 1_000)
  // Few different pauses, each with a list of its own: thousands of random times in one list would have to be sorted.
  const delay = pause * (0.5 + Math.floor(world.random() * RETRY_SLOTS) / (2 * RETRY_SLOTS))
  heartbeats.set(lease, Math.min(world.now() + delay, lease.deadline), delay)
}

/** While a renewal is in flight, only the deadline counts; before it, a warning. */
export function awaitAnswer(lease: DueLease, riskAt: number): void {
  // A list for each ttl: in one for all, each lease of a short ttl would walk past every lease of a longer one.
  lease.host.heartbeats.set(lease, Math.min(riskAt, lease.deadline), -lease.ttlMs)
}

export function awaitDeadline(lease: DueLease): void {
  lease.host.heartbeats.set(lease, lease.deadline, -lease.ttlMs - 0.5)
}
