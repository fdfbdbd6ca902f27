import type { LeaseholdError } from '../errors.js'
import type { Grant, Refusal, Renewed, StoreEvent } from '../store.js'
import type { World } from '../util/world.js'
import { deadlineOf, isEnoughLeft } from './deadline.js'
import { QUEUE_MS } from './retry-delay.js'

/**
 * FRESH_FAILURE_MS: if the last request of the first acquisition in a queue failed longer ago than this, in
 * milliseconds, a newcomer makes it ask again. Shorter would turn a crowd of newcomers into a flood of requests to a
 * store that is down; longer would report an outage to them that may be over.
 */
const FRESH_FAILURE_MS = 100

export type PushedGrant = Extract<StoreEvent, { type: 'granted' }>

/** Granted for a short time only, so that a dead waiter does not block the others; to be renewed soon. */
export type ProvisionalGrant = Grant & { provisional: true }

type StillWaiting = Extract<Renewed, { outcome: 'waiting' }>

/** What one acquisition knows from answers of the store that were no grant. Made with the first of them: most acquisitions never have it. */
export class AnswerLog {
  /** The last refusal, and how many there were. */
  refusal: Refusal | undefined = undefined
  refusals = 0
  /**
   * Why the last request, or the last renewal of the queue entry, was not answered; undefined if it was. `failures`:
   * how many of both were not answered since the store last answered.
   */
  failure: LeaseholdError | undefined = undefined
  failures = 0
  #failedAt: number = Number.NEGATIVE_INFINITY
  /** When the last request or renewal left that the store answered with "not yours": whatever is granted later began after this. */
  contactAt: number = Number.NEGATIVE_INFINITY
  /** The largest token that the store had granted by then. A pushed grant counts only if its token is larger. */
  #newest: bigint | undefined = undefined
  /** A grant that was pushed while the request was in flight: the answer tells whether it is newer. */
  pushed: PushedGrant | undefined = undefined

  refused(answer: Refusal, sentAt: number): void {
    this.refusal = answer
    this.refusals++
    this.recovered()
    this.notGrantedAt(sentAt, answer.newest)
  }

  failed(error: LeaseholdError, now: number): void {
    this.failure = error
    this.failures++
    this.#failedAt = now
  }

  /** The store answers again: the next failure is the first of a new outage, and is retried as soon. */
  recovered(): void {
    this.failure = undefined
    this.failures = 0
  }

  hasFailedLongAgo(world: World): boolean {
    return this.failure !== undefined && world.now() >= this.#failedAt + FRESH_FAILURE_MS
  }

  /** `newest`: the largest token that the store had granted by then, as far as it can tell. */
  notGrantedAt(sentAt: number, newest: bigint | undefined): void {
    // Two answers may overtake each other; the one that was asked for later knows more.
    if (sentAt < this.contactAt) return
    this.contactAt = sentAt
    this.#newest = newest
  }

  /** Its queue entry was renewed. Returns after how long asking may help: 0 at once, undefined if a notification comes before. */
  stillWaiting({ ahead, newest, blockedMs }: StillWaiting, sentAt: number): number | undefined {
    // An answer to what was sent before our last request knows less than that one's.
    if (sentAt < this.contactAt) return undefined
    this.notGrantedAt(sentAt, newest)
    const { refusal } = this
    const wasFirst = refusal?.ahead === 0
    if (refusal) refusal.ahead = ahead
    if (ahead > 0) return undefined
    // The waiter ahead is gone, and its leaving may not have been announced: from now on this one asks when a lease has ended.
    if (!wasFirst || !blockedMs) return 0
    return refusal?.blocker?.foreign ? undefined : blockedMs + 1
  }

  /**
   * The process that released the key handed the lease to us. Its token is larger than every token granted before our last
   * contact with the store, so it began after that, and may be counted from there. Undefined if little is left then, or the store
   * cannot tell: asking again gives the same grant and its full time.
   */
  grantOf(pushed: PushedGrant, requestedMs: number, world: World): ProvisionalGrant | undefined {
    const { owner, token, tokens } = pushed
    // A hand-off lasts no longer than this, whatever the store makes of its clock and ours: believed for longer, it could outlive the
    // lease if the renewal that follows is not answered.
    const ttlMs = Math.min(pushed.ttlMs, QUEUE_MS, requestedMs)
    const isNewer = this.#newest !== undefined && token > this.#newest
    const enough = isEnoughLeft(this.contactAt, ttlMs, world.now())
    if (!isNewer || !enough) return undefined
    return { granted: true, owner, token, ttlMs, tokens, provisional: true }
  }
}

/** What the renewal of a queue entry found, sent at this time. Undefined: nothing is certain to be left of it. */
export function grantFound(
  { token, ttlMs }: { token: bigint; ttlMs: number },
  owner: string,
  sentAt: number,
  world: World,
): ProvisionalGrant | undefined {
  if (deadlineOf(sentAt, ttlMs) <= world.now()) return undefined
  return { granted: true, owner, token, ttlMs, provisional: true }
}
