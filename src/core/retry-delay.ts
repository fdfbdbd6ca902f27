import type { Answer } from '../store.js'

/**
 * How long a queue entry outlives its owner's silence: a dead waiter blocks the others for at most this long, and a live
 * one renews its entry three times in it.
 */
export const QUEUE_MS = 3_000

/** How often queue entries are renewed. Two renewals may be lost before an entry is. */
export const QUEUE_HEARTBEAT_MS: number = QUEUE_MS / 3

/** A holder that is not a leasehold client announces no release: ask at least this often. */
const FOREIGN_POLL_MS = 250
/** Between two waiters that may hold the key together and stand one behind the other. */
const NEXT_IN_QUEUE_MS = 5
/** So many waiters that may hold the key together ask when a holder's time is up, in case the first of them is dead. */
const FEW_AHEAD = 3
const SHORTEST_PAUSE_MS = 10
const LONGEST_PAUSE_MS = 1_000
/** How often a waiter that seeks a record asks although it is subscribed: the notification may have been lost. */
const RECORD_POLL_MS = 3_000
/** Never ask again without any pause, also when a dead holder's time is up. */
const LEAST_MS = 2

/** What is known when an acquisition has been answered. */
export interface RetryState {
  /** Its queue entry is kept in the store, and renewed by the queue heartbeat. */
  queued: boolean
  /** A notification would arrive. */
  armed: boolean
  exclusive: boolean
  /** A lease that is handed off lasts no longer than this: without a subscription the waiter must ask before that. */
  ttlMs: number
  /** It waits for what a holder leaves behind (`AcquireRequest.onRefusal`), and sees that only by asking. */
  seeksRecord: boolean
  /** How often it was refused, and how often in a row it was not answered at all. */
  refusals: number
  failures: number
  random: () => number
}

/** After this answer, how long to wait for a notification before asking again unasked. Infinity: the queue heartbeat suffices. */
export function retryDelay(answer: Answer, state: RetryState): number {
  const { queued, armed, exclusive, ttlMs, seeksRecord, refusals, failures, random } = state
  if (answer.granted !== false) return backoff(failures, random)
  const { blocker, ahead = 0 } = answer
  const first = ahead === 0
  let pause = LONGEST_PAUSE_MS
  if (queued) pause = seeksRecord ? RECORD_POLL_MS : Number.POSITIVE_INFINITY
  if (!armed && (first || seeksRecord || !queued)) pause = Math.min(pause, backoff(refusals, random))
  if (!armed && queued) pause = Math.min(pause, Math.min(ttlMs, QUEUE_MS) / 3)
  if (blocker?.foreign && first) pause = Math.min(pause, FOREIGN_POLL_MS * (0.5 + random() / 2))
  // A dead holder announces nothing, but it is known when its time is up. The request sent then lets in all who fit; the
  // first in the queue may be dead too, so a few of those who may hold the key together ask one after the other.
  if (blocker?.ttlMs !== undefined && (first || (!exclusive && ahead <= FEW_AHEAD))) {
    pause = Math.min(pause, blocker.ttlMs + 1 + ahead * NEXT_IN_QUEUE_MS)
  }
  return Math.max(pause, LEAST_MS)
}

/** Exponential with full jitter. */
function backoff(attempts: number, random: () => number): number {
  const most = Math.min(SHORTEST_PAUSE_MS * 2 ** Math.min(attempts, 10), LONGEST_PAUSE_MS)
  return SHORTEST_PAUSE_MS / 2 + random() * most
}
