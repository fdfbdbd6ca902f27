import type { Answer } from '../store.js'
import type { World } from '../util/world.js'
import { type AcquireRequest, isExclusive } from './request.js'
import type { Alarm, Timers } from './timers.js'

/**
 * How long a queue entry outlives its owner's silence: a dead waiter blocks the others for at most this long, and a live
 * one renews its entry three times in it.
 */
export const QUEUE_MS = 3_000

/** How often queue entries are renewed. Two renewals may be lost before an entry is. */
export const QUEUE_HEARTBEAT_MS: number = QUEUE_MS / 3

/** A holder that is not a leasehold client announces no release: ask at least this often. */
const FOREIGN_POLL_MS = 250
/**
 * Milliseconds between the requests of two shared waiters when a holder's lease ends. The request of the first one
 * grants to all that fit, so the next waiter mostly need not ask any more.
 */
const NEXT_IN_QUEUE_MS = 5
/** Shared waiters with at most this many entries ahead ask when a holder's lease ends: the first waiter may be dead. */
const FEW_AHEAD = 3
const SHORTEST_PAUSE_MS = 10
const LONGEST_PAUSE_MS = 1_000
/** How often a waiter that seeks a record asks although it is subscribed: the notification may have been lost. */
const RECORD_POLL_MS = 3_000
/** Never ask again without any pause, also when a dead holder's time is up. */
const LEAST_MS = 2

/** SAME_ALARM_MS: an alarm that differs by less is not set anew. More would delay the request behind a holder that died. */
const SAME_ALARM_MS = 5

/** What is known when an acquisition has been answered. */
export interface RetryState {
  /** Its queue entry is kept in the store, and renewed by the queue heartbeat. */
  queued: boolean
  /** `armed`: a notification would arrive. Asked for only if it matters: it may take up a subscription that was left a moment ago. */
  queue: { readonly armed: boolean }
  request: AcquireRequest
  /**
   * How often it was refused, how often it was not answered since its last answer, and when the last request or
   * renewal was sent that the store answered without a grant.
   */
  log: { readonly refusals: number; readonly failures: number; readonly contactAt: number }
  /** For how long the server was to keep the request open, if it was. */
  blockMs: number | undefined
  world: World
}

/** After this answer, how long to wait for a notification before asking again unasked. Infinity: the queue heartbeat suffices. */
export function retryDelay(answer: Answer, state: RetryState): number {
  const { queued, queue, request, log, blockMs, world } = state
  const { random } = world
  // The server kept the request in its own queue for as long as it was asked to, and keeps the place for a short time
  // only: ask again at once.
  if (answer.granted === false && blockMs && world.now() >= log.contactAt + blockMs * 0.9) return 1
  const { armed } = queue
  if (answer.granted !== false) return backoff(log.failures, random)
  // It waits for what a holder leaves behind, and sees that only by asking.
  const seeksRecord = request.onRefusal !== undefined
  // Hints may be nonsense, such as what another program left in the store: a delay that is no number would never be due.
  const { blocker } = answer
  const ahead = isFiniteNumber(answer.ahead) ? answer.ahead : 0
  const blockedMs = isFiniteNumber(blocker?.ttlMs) ? blocker.ttlMs : undefined
  const first = ahead === 0
  let pause = LONGEST_PAUSE_MS
  if (queued) pause = seeksRecord ? RECORD_POLL_MS : Number.POSITIVE_INFINITY
  if (!armed && (first || seeksRecord || !queued)) pause = Math.min(pause, backoff(log.refusals, random))
  // Without notifications a hand-off is noticed only by asking, and its lease lasts for the ttl or QUEUE_MS, whichever
  // is less: ask three times within that.
  if (!armed && queued) pause = Math.min(pause, Math.min(request.ttlMs, QUEUE_MS) / 3)
  if (blocker?.foreign && first) pause = Math.min(pause, FOREIGN_POLL_MS * (0.5 + random() / 2))
  // A dead holder announces nothing, but it is known when its time is up. The request sent then lets in all who fit; the
  // first in the queue may be dead too, so a few of those who may hold the key together ask one after the other.
  if (blockedMs !== undefined && (first || (!isExclusive(request) && ahead <= FEW_AHEAD))) {
    pause = Math.min(pause, blockedMs + 1 + ahead * NEXT_IN_QUEUE_MS)
  }
  return Math.max(pause, LEAST_MS)
}

/** Sets the alarm for the next request, `ms` from now. */
export function setRetryAlarm(alarm: Alarm, waits: Timers, now: number, ms: number): void {
  const dueAt = now + ms
  // The lease in its way ends when it was said to: with every heartbeat of a thousand waiters, most alarms stay as they are.
  if (alarm.queue && Math.abs(alarm.dueAt - dueAt) < SAME_ALARM_MS) return
  waits.set(alarm, dueAt, ms >= 900 ? 1_000 : 0, ms * 0.1)
}

const isFiniteNumber = (value: unknown): value is number => Number.isFinite(value)

/** Exponential with full jitter. */
function backoff(attempts: number, random: () => number): number {
  const most = Math.min(SHORTEST_PAUSE_MS * 2 ** Math.min(attempts, 10), LONGEST_PAUSE_MS)
  return SHORTEST_PAUSE_MS / 2 + random() * most
}
