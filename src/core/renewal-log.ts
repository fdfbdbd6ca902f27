import type { RenewalAttempt } from '../errors.js'
import type { Renewal, Renewed } from '../store.js'
import { reasonOf } from '../util/reason.js'
import { redact } from '../util/redact.js'

/** So many attempts are kept for the report of a loss. */
const KEPT_ATTEMPTS = 5

/** Stands for "at no time". A number: V8 would allocate for each time that is written to a field with undefined. */
export const NEVER: number = -0.5

interface Attempt {
  at: number
  outcome: RenewalAttempt['outcome']
  tookMs: number
  error: unknown
}

/** What became of one lease since its grant: renewals and `extend`. Made with the first of them: most leases are released before. */
export class RenewalLog {
  /** When the last good renewal was sent. Before the first one: when this lock was granted, or was passed the lease. */
  renewedAt: number
  /** When the first renewal was sent that was not answered with yes since then; else NEVER. */
  troubleSince: number = NEVER
  /** A renewal has failed, or is not answered, and none has succeeded since. */
  atRisk = false
  /** What the heartbeat sends: the same object each time. */
  renewal: Renewal | undefined = undefined
  /** When it was last verified out of turn. */
  verifiedAt: number = Number.NEGATIVE_INFINITY
  /** Until when a renewal may have made the store keep it, answered or not. */
  mayLastUntil: number = Number.NEGATIVE_INFINITY
  /** `extend` made it shorter at this moment: the answer to a renewal that was sent before must not make it longer again. */
  shortenedAt: number = Number.NEGATIVE_INFINITY
  /** Set if `extend` made the lease shorter: until when the store keeps it, since a store never shortens. */
  storedUntil: number | undefined = undefined
  #sentAt = NEVER
  /** A ring of `KEPT_ATTEMPTS`. */
  readonly #attempts: Attempt[] = []
  #count = 0

  constructor(grantedAt: number) {
    this.renewedAt = grantedAt
  }

  /** For the lock that the lease is passed on to: what the store may still know of it. */
  passedOn(now: number): RenewalLog {
    const log = new RenewalLog(now)
    log.verifiedAt = this.verifiedAt
    log.mayLastUntil = this.mayLastUntil
    return log
  }

  /** `until`: how long the lease lasts if the store agrees. */
  sent(now: number, until: number): void {
    this.#sentAt = now
    if (until > this.mayLastUntil) this.mayLastUntil = until
    if (this.troubleSince === NEVER) this.troubleSince = now
  }

  answered(answer: Renewed, now: number): void {
    const at = this.#sentAt
    this.#sentAt = NEVER
    const outcome = answer.outcome === 'ours' ? 'renewed' : answer.outcome === 'gone' ? 'gone' : 'failed'
    const error = answer.outcome === 'unknown' ? answer.error : undefined
    const oldest = this.#attempts[this.#count++ % KEPT_ATTEMPTS]
    // Used again: ten thousand locks that are renewed leave nothing to collect.
    if (!oldest) this.#attempts.push({ at, outcome, tookMs: now - at, error })
    else {
      oldest.at = at
      oldest.outcome = outcome
      oldest.tookMs = now - at
      oldest.error = error
    }
  }

  /** The oldest first. */
  get #inOrder(): Attempt[] {
    const oldest = this.#count % KEPT_ATTEMPTS
    return [...this.#attempts.slice(oldest), ...this.#attempts.slice(0, oldest)]
  }

  /** When the last answer was read: the event loop turned then. */
  get answeredAt(): number {
    const last = this.#attempts[(this.#count - 1) % KEPT_ATTEMPTS]
    return last ? last.at + last.tookMs : NEVER
  }

  /** The last answer gave the lease more time. */
  succeeded(sentAt: number): void {
    this.renewedAt = sentAt
    this.troubleSince = NEVER
    this.atRisk = false
  }

  /** The last error since the last good renewal. */
  get lastError(): unknown {
    return this.#inOrder.findLast(({ at, error }) => at > this.renewedAt && error !== undefined)?.error
  }

  /** `date`: the wall clock at `now`. */
  attempts(now: number, date: number): RenewalAttempt[] {
    const all = this.#inOrder
    if (this.#sentAt !== NEVER) {
      all.push({ at: this.#sentAt, outcome: 'unanswered', tookMs: now - this.#sentAt, error: undefined })
    }
    return all.slice(-KEPT_ATTEMPTS).map(({ at, outcome, tookMs, error }) => ({
      at: new Date(date - (now - at)),
      outcome,
      tookMs,
      ...(error !== undefined && { error: redact(reasonOf(error)) }),
    }))
  }
}
