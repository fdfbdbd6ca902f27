import {
  type ClosedError,
  InvalidOptionError,
  type LeaseholdError,
  LockLostError,
  type LossReason,
  StoreUnavailableError,
} from '../errors.js'
import type { Grant, Renewal, Renewed, Store } from '../store.js'
import type { World } from '../util/world.js'
import type { AcquireRequest } from './request.js'
import type { Batcher } from './batcher.js'
import type { Cleanup } from './cleanup.js'
import { type Events, type LockFacts, requestFacts } from './events.js'
import { HandleTracker } from './handle-tracker.js'
import type { Heartbeat, RenewedInBulk } from './heartbeat.js'
import type { ListedLease } from './lease-list.js'
import { factsOfLoss, reasonOfExpiry } from './loss.js'
import { RenewalLog } from './renewal-log.js'
import { QUEUE_MS } from './retry-delay.js'
import type { StallMonitor } from './stall-monitor.js'
import { Timed, type Timers } from './timers.js'

/**
 * How much earlier than the store the holder stops trusting a lease: clocks run at slightly different speeds, and the
 * holder must be told before anyone else can hold.
 */
export function driftOf(ttlMs: number): number {
  return ttlMs * 0.01 + 2
}

/** A lease is renewed after this share of its ttl, so that two renewals may fail before it is lost. */
const HEARTBEAT_SHARE = 1 / 3

/** A provisional lease is renewed after this long. Most locks that change hands are released sooner and never need it. */
const CONFIRM_MS = 20

/** A renewal is due at most this share of its period early, so that it can travel with others. */
const COALESCE_SHARE = 0.1

/** A renewal that is not answered after this share of the ttl puts the lease at risk: half of its time is left then. */
const RISK_SHARE = 1 / 6

/** So many different pauses before a renewal is tried again. Fewer would bring all leases of a process back at once. */
const RETRY_SLOTS = 32

/** A lease is passed on only if this share is left of its ttl, or of what a hand-off by the store lasts. */
const PASS_ON_SHARE = 0.5

/** `provisional`: granted for a short time only, so that a dead waiter does not block the others; to be renewed soon. */
export type LeaseGrant = Grant & { provisional?: boolean }

/** What a lease needs from the instance that holds it. */
export interface LeaseHost {
  readonly store: Store
  readonly world: World
  readonly batcher: Batcher
  readonly cleanup: Cleanup
  readonly events: Events
  readonly heartbeats: Timers
  readonly heartbeat: Heartbeat
  readonly stalls: StallMonitor
  /** Set from the moment on at which the instance closes. */
  readonly closingReason: ClosedError | undefined
  release(lease: Lease): Promise<boolean>
  /** The lease has ended here, and is no longer renewed. */
  retired(lease: Lease): void
}

/** What this process knows of one grant. Users hold a `Lock`; the heartbeat holds the lease, never the `Lock`. */
export class Lease extends Timed implements RenewedInBulk, ListedLease<Lease> {
  readonly host: LeaseHost
  readonly request: AcquireRequest
  /** Owner and token as the store knows them: those of the first lock, if the lease was passed on inside this process. */
  owner = ''
  earlier: Lease | undefined = undefined
  later: Lease | undefined = undefined
  token = 0n
  /** How many locks of this process had the lease before, since the store granted it. */
  turn = 0
  /** The lease that it was passed on to: what the store knows of this one is that one's from then on. */
  successor: Lease | undefined = undefined
  /** When this process learned of the grant, by the local clock. */
  acquiredAt = 0
  waitedMs = 0
  ttlMs: number
  /** From here on it is not trusted, whatever the store may say later. No I/O can move it but a renewal that worked. */
  deadline: number = Number.NEGATIVE_INFINITY
  loss: LockLostError | undefined = undefined
  released = false
  /** The answer of `release`, now or later: the store is asked once. */
  releasing: Promise<boolean> | undefined = undefined
  /** Released by `releaseAll` or `close`, behind the back of the work under it. */
  takenBack: LockLostError | undefined = undefined
  /** Called when it was lost or taken back: a Web Lock has no signal of its own, and closing may have aborted that already. */
  onLoss: (() => void) | undefined = undefined
  /** Called when it has ended here, in whatever way. */
  onEnd: (() => void) | undefined = undefined
  /** Its message on `leasehold:hold`, if somebody subscribed to that. */
  trace: LockFacts | undefined = undefined
  autoRenew: boolean
  /** The `Lock` that users hold, until `#tracker` has it. */
  #handle: object | undefined = undefined
  /** Made with the first heartbeat or signal. */
  #tracker: HandleTracker | undefined = undefined
  #renewing: Promise<unknown> | undefined = undefined
  #failures = 0
  /** Made with the first renewal: a lease that is released before costs nothing more. */
  #log: RenewalLog | undefined = undefined
  /** With `maxHold`: until when the last grant or renewal was to last. The store may have given less. */
  #askedUntil = 0
  /** More time was asked for and not given yet: the next attempt asks again, also without `autoRenew`. */
  #wantsMore = false
  /** It was handed off for a short time, and has not got its ttl yet. */
  #provisional = false
  /** It waits for the renewals that are due together with it. */
  #isDue = false
  /** `keep` was tried, and may have worked although it was not answered: what it left is not ours to release. */
  #kept = false

  /** Nothing is held yet: `begin` starts it. Allocated while waiting, to keep construction off the hand-off path. */
  constructor(host: LeaseHost, request: AcquireRequest) {
    super()
    this.host = host
    this.request = request
    this.ttlMs = request.ttlMs
    this.autoRenew = request.autoRenew
  }

  begin(grant: LeaseGrant, sentAt: number, now: number, since: number): void {
    this.owner = grant.owner
    this.token = grant.token
    this.acquiredAt = now
    this.waitedMs = now - since
    const until = sentAt + grant.ttlMs - driftOf(grant.ttlMs)
    if (this.request.maxHoldMs === undefined) this.deadline = until
    else {
      this.deadline = Math.min(until, this.holdUntil)
      this.#askedUntil = grant.provisional ? until : sentAt + this.request.ttlMs
    }
    this.#wantsMore = this.#provisional = grant.provisional === true
    // After a hand-off no timer is set yet: setting one would delay the caller that has just been granted.
    if (this.#wantsMore) this.host.heartbeats.park(this)
    else this.#schedule(sentAt)
    this.host.stalls.watch()
  }

  /** Goes on where `from` ends, which its user has released: the store is not asked, and knows of no change. */
  inherit(from: Lease, now: number, since: number): void {
    this.owner = from.owner
    this.token = from.token
    this.turn = from.turn + 1
    this.acquiredAt = now
    this.waitedMs = now - since
    this.deadline = from.deadline
    this.#wantsMore = from.#wantsMore
    this.#provisional = from.#provisional
    if (from.#log) this.#log = from.#log.passedOn(now)
    // The clean-up behind a request that was not answered waits until the store's lease has ended.
    this.onEnd = from.onEnd
    from.onEnd = undefined
    from.successor = this
    this.host.heartbeats.replace(from, this)
  }

  /** The lease that the store's grant belongs to by now. */
  get latest(): Lease {
    return this.successor?.latest ?? this
  }

  /** Nothing about it is in doubt, its terms are those of its request, and enough of its time is certain to be left. */
  canBePassedOn(now: number): boolean {
    if (!this.isOpen || this.takenBack || this.#renewing || this.#isDue || this.#failures > 0 || this.#kept)
      return false
    if (!this.autoRenew || this.ttlMs !== this.request.ttlMs || this.#log?.storedUntil !== undefined) return false
    return this.deadline - now >= Math.min(this.ttlMs, QUEUE_MS) * PASS_ON_SHARE
  }

  get key(): string {
    return this.request.key
  }

  /** Unique for each lock, also if the store sees one lease. */
  get holder(): string {
    return this.turn === 0 ? this.owner : `${this.owner}/${this.turn}`
  }

  /** Each lock has its own, out of the tokens that the store reserved with the grant. */
  get fencingToken(): bigint {
    return this.turn === 0 ? this.token : this.token + BigInt(this.turn)
  }

  /** No renewal goes past this. */
  get holdUntil(): number {
    return this.request.maxHoldMs === undefined ? Number.POSITIVE_INFINITY : this.acquiredAt + this.request.maxHoldMs
  }

  /** Neither released nor lost, as far as has been noticed. */
  get isOpen(): boolean {
    return !this.released && this.loss === undefined
  }

  /** A steal of the same key took this one away. */
  isOlderThan(steal: Lease): boolean {
    return this.request.key === steal.request.key && this.token < steal.token
  }

  /** A record of ours is or may be in the store under this lease: no clean-up may touch it. */
  get staysInStore(): boolean {
    return this.#kept
  }

  /** Exact at any instant, without I/O: a timer may not have had its turn yet. */
  get held(): boolean {
    return !this.released && this.loss === undefined && this.host.world.now(true) < this.deadline
  }

  /** Held, but its renewals fail or are not answered: it ends at `deadline` unless one succeeds. */
  get atRisk(): boolean {
    return this.#log?.atRisk === true && this.held
  }

  /**
   * For how long the store may keep it at most. Never less than what was asked for: a lease that was handed off may have been given that by
   * a request which was still out, however short `extend` made it since.
   */
  get storedMs(): number {
    const until = Math.max(this.#log?.storedUntil ?? this.deadline, this.#log?.mayLastUntil ?? this.deadline)
    return Math.max(this.ttlMs, this.request.ttlMs, until - this.host.world.now())
  }

  get remainingMs(): number {
    return this.released || this.loss ? 0 : Math.max(this.deadline - this.host.world.now(true), 0)
  }

  /** Aborts as soon as the lock can no longer be trusted. Created when it is first read. */
  get signal(): AbortSignal {
    this.noticeDeadline()
    if (this.released && !this.takenBack) return this.#releasedSignal()
    const tracker = this.#track()
    if (tracker.signal) return tracker.signal
    const signal = tracker.createSignal()
    const reason = this.loss ?? this.takenBack ?? this.host.closingReason
    if (reason) tracker.abort(reason)
    return signal
  }

  /**
   * Work that begins under a lock that has been released must not. A signal that was taken before does not abort by the
   * holder's own release: nothing was lost, and listeners would take it for that.
   */
  #releasedSignal(): AbortSignal {
    const taken = this.#tracker?.signal
    if (taken?.aborted) return taken
    return AbortSignal.abort(new LockLostError(this.request.name, 'released'))
  }

  /** Takes notice of a deadline that has passed before any timer could say so. */
  noticeDeadline(): void {
    if (!this.released && !this.loss && this.host.world.now(true) >= this.deadline) this.#runOut()
  }

  /** The `Lock` that users hold. Kept until the first heartbeat, so that a forgotten lock is noticed at the second. */
  attachHandle(handle: object): void {
    this.#handle = handle
  }

  #track(): HandleTracker {
    this.#tracker ??= new HandleTracker(this.#handle)
    // The tracker decides from now on what keeps the lock reachable.
    this.#handle = undefined
    return this.#tracker
  }

  /** A provisional lease asks for its full ttl, unless it is released before. */
  confirmSoon(): void {
    if (!this.#wantsMore || this.#renewing || this.released || this.loss) return
    const { heartbeats, world } = this.host
    const now = world.now()
    heartbeats.set(this, now + Math.min(CONFIRM_MS, Math.max(this.deadline - now, 0) / 4), CONFIRM_MS)
  }

  override due(now: number): void {
    if (now >= this.deadline) this.#runOut()
    else if (this.#renewing) {
      this.#awaitDeadline()
      this.#warnOfRisk()
    } else if (this.#tracker?.isForgotten) this.#abandon()
    else {
      this.#track().holdWeakly()
      this.#verifyInBulk(now)
    }
  }

  /** Something may have happened to it. Not again within `everyMs`, unless that verification is still out. */
  verifySoon(now: number, everyMs: number): void {
    if (this.#renewing || !this.isOpen || (this.#log && now < this.#log.verifiedAt + everyMs)) return
    this.#history.verifiedAt = now
    this.#verifyInBulk(now)
  }

  /** Together with all others that are due now, unless it wants another time than its ttl. */
  #verifyInBulk(now: number): void {
    if (this.#renewing || !this.autoRenew || this.request.maxHoldMs !== undefined) return void this.verify()
    this.#awaitAnswer(now + this.ttlMs * RISK_SHARE)
    this.#isDue = true
    this.host.heartbeat.add(this)
  }

  /** While a renewal is in flight, only the deadline counts; before it, a warning. */
  #awaitAnswer(riskAt: number): void {
    // A list for each ttl: in one for all, each lease of a short ttl would walk past every lease of a longer one.
    this.host.heartbeats.set(this, Math.min(riskAt, this.deadline), -this.ttlMs)
  }

  #awaitDeadline(): void {
    this.host.heartbeats.set(this, this.deadline, -this.ttlMs - 0.5)
  }

  get renewal(): Renewal {
    const { key, owner, token, ttlMs } = this
    const log = this.#history
    if (log.renewal?.ttlMs !== ttlMs) log.renewal = { key, owner, token, ttlMs }
    return log.renewal as Renewal
  }

  beginRenewal(answered: Promise<void>, now: number): boolean {
    this.#isDue = false
    if (!this.isOpen || !this.autoRenew || this.#renewing) return false
    this.#renewing = answered
    this.#sent(now, now + this.ttlMs)
    return true
  }

  endRenewal(answer: Renewed, sentAt: number, now: number): void {
    this.#renewing = undefined
    this.#renewed(answer, sentAt, now, sentAt + this.ttlMs)
  }

  /** Whether it is still ours. Prolonged by that only if its user wants it to be: it must end when it was said to. */
  verify(): Promise<Renewed> {
    return this.#inTurn(() => this.#renewOnce(undefined))
  }

  /** More time, and another value if one is given. */
  renew(value?: string): Promise<Renewed> {
    return this.#inTurn(() => {
      this.#wantsMore = true
      return this.#renewOnce(value)
    })
  }

  /** One renewal at a time: a second one starts when the first has been answered. */
  async #inTurn(renew: () => Promise<Renewed>): Promise<Renewed> {
    while (this.#renewing) await this.#renewing
    if (this.released || this.loss) return { outcome: 'gone' }
    const renewing = renew()
    this.#renewing = renewing
    try {
      return await renewing
    } finally {
      this.#renewing = undefined
    }
  }

  /** From now on, although it was taken without. */
  keepRenewed(): void {
    if (this.autoRenew || this.released || this.loss) return
    this.autoRenew = true
    this.#schedule(this.host.world.now())
  }

  /** From now on it ends when its time has passed. */
  stopRenewing(): void {
    if (!this.autoRenew || !this.isOpen) return
    this.autoRenew = false
    if (!this.#renewing) this.#schedule(this.host.world.now())
  }

  /**
   * Leaves it in the store, with this value, for `ttlMs` from now on, and renews it no longer. Only the store can
   * tell whether it was still ours: an answer that comes after the local deadline counts, since others may have read
   * the value by then. `unknown`: it is renewed as before, and this may be tried again.
   */
  async keep(value: string, ttlMs: number): Promise<Renewed> {
    while (this.#renewing) await this.#renewing
    if (this.released || this.loss) return { outcome: 'gone' }
    const { batcher, cleanup, events } = this.host
    const before = this.#kept
    this.#kept = true
    this.#awaitDeadline()
    const { key, owner, token } = this
    // Like a heartbeat, so that there is none beside it. Closing waits for it.
    const renewing = cleanup.track(batcher.renew({ key, owner, token, ttlMs, value }))
    this.#renewing = renewing
    const answer = await renewing
    this.#renewing = undefined
    if (answer.outcome === 'gone') this.lose('gone')
    else if (this.released || this.loss) return answer
    else if (answer.outcome === 'unknown') {
      // Refused before anything was written: left as kept, the lock could not be released.
      if (answer.error instanceof InvalidOptionError) this.#kept = before
      this.#retrySoon(answer.error as LeaseholdError)
    } else {
      this.end()
      events.emit('released', () => ({ ...this.facts(), heldMs: this.heldMs }))
    }
    return answer
  }

  /** Settles when no record is being written any more. */
  async recorded(): Promise<void> {
    while (this.#renewing) await this.#renewing
  }

  /** Stays in the store until its time passes, and is renewed no longer. */
  leave(): void {
    this.#kept = true
    this.end()
  }

  async extend(ttlMs: number): Promise<void> {
    this.assertHeld()
    const shorter = this.host.world.now() + ttlMs - driftOf(ttlMs)
    if (shorter < this.deadline) {
      const log = this.#history
      log.storedUntil ??= this.deadline
      this.deadline = shorter
      log.shortenedAt = this.host.world.now()
      // The timer is set for the later deadline, and a renewal in flight leaves it there.
      if (this.#renewing) this.#awaitDeadline()
    }
    this.ttlMs = ttlMs
    this.#provisional = false
    const renewed = await this.renew()
    this.assertHeld()
    if (renewed.outcome === 'unknown') {
      throw new StoreUnavailableError(`"${this.request.name}" could not be extended`, { cause: renewed.error })
    }
  }

  assertHeld(): void {
    this.noticeDeadline()
    if (this.loss) throw this.loss
    if (this.released) throw new LockLostError(this.request.name, 'released')
  }

  lose(why: LossReason, cause?: unknown): void {
    if (!this.released) this.#lose(why, cause)
  }

  /** The store answered a release with `gone`: what this process believed to hold had been lost. */
  foundGone(): void {
    this.#lose('gone')
  }

  #lose(why: LossReason, cause?: unknown): void {
    if (this.loss) return
    const facts = factsOfLoss(this, this.#log)
    this.loss = new LockLostError(this.request.name, why, cause === undefined ? facts : { ...facts, cause })
    this.#retire()
    this.#tracker?.abort(this.loss)
    this.onLoss?.()
    const error = this.loss
    this.host.events.emit('lost', () => ({ ...this.facts(), heldMs: this.heldMs, why, ...facts, error }))
    const storedLonger = this.#log?.storedUntil !== undefined && why !== 'gone' && why !== 'revoked'
    if (storedLonger && !this.#kept) void this.host.cleanup.release(this, this.storedMs)
  }

  /** Work should end, because the instance closes. The lease is still renewed. */
  announceClosing(reason: ClosedError): void {
    this.#tracker?.abort(reason)
  }

  /** `releaseAll` or `close` is about to release it, and the work under it did not ask for that. */
  takeBack(reason: LockLostError): void {
    this.takenBack = reason
    this.#tracker?.abort(reason)
    this.onLoss?.()
  }

  /** From here on it is not held, whatever the store answers. */
  end(): void {
    this.released = true
    this.#retire()
  }

  get heldMs(): number {
    return this.host.world.now() - this.acquiredAt
  }

  facts(): LockFacts {
    const { holder, fencingToken, expiresAt } = this
    const { name, kind, metadata } = requestFacts(this.request)
    // Written out: spreading costs more than the lock itself, once for each event that somebody listens to.
    return { name, kind, metadata, mode: this.request.mode, holder, fencingToken, expiresAt }
  }

  get expiresAt(): Date {
    return new Date(this.host.world.date() + this.deadline - this.host.world.now())
  }

  async #renewOnce(value: string | undefined): Promise<Renewed> {
    const { world, batcher } = this.host
    const sentAt = world.now()
    const prolong = this.autoRenew || this.#wantsMore
    let until = prolong ? Math.min(sentAt + this.ttlMs, this.holdUntil) : this.deadline
    // Without renewals it ends when its ttl has passed, counted from when it was handed off.
    if (this.#provisional && !this.autoRenew) until = Math.min(until, this.acquiredAt + this.ttlMs)
    const ttlMs = Math.max(Math.ceil(until - sentAt), 1)
    this.#awaitAnswer(prolong ? sentAt + this.ttlMs * RISK_SHARE : this.deadline)
    const { key, owner, token } = this
    this.#sent(sentAt, sentAt + ttlMs)
    const answer = await batcher.renew({ key, owner, token, ttlMs, value })
    this.#renewed(answer, sentAt, world.now(true), prolong ? until : undefined)
    return answer
  }

  #sent(now: number, until: number): void {
    this.#history.sent(now, until)
  }

  get #history(): RenewalLog {
    this.#log ??= new RenewalLog(this.acquiredAt)
    return this.#log
  }

  /** `now`: when the answer came. `asked`: until when more time was asked for, if it was. */
  #renewed(answer: Renewed, sentAt: number, now: number, asked: number | undefined): void {
    const log = this.#history
    log.answered(answer, now)
    if (answer.outcome === 'ours' && asked !== undefined && this.request.maxHoldMs !== undefined)
      this.#askedUntil = asked
    if (this.isOpen && now >= this.deadline) this.#runOut()
    if (this.released || this.loss) {
      // Too late, yet the store has just made it longer: nobody would hold it, and nobody else could.
      if (answer.outcome === 'ours' && this.loss && !this.#kept) void this.host.cleanup.release(this, this.storedMs)
    } else if (answer.outcome === 'ours') {
      this.#failures = 0
      log.succeeded(sentAt)
      const until = Math.min(sentAt + answer.ttlMs - driftOf(answer.ttlMs), this.holdUntil)
      if (asked !== undefined) this.deadline = sentAt < log.shortenedAt ? Math.min(until, this.deadline) : until
      this.#wantsMore = this.#provisional = false
      if (log.storedUntil !== undefined && log.storedUntil <= this.deadline) log.storedUntil = undefined
      this.#schedule(sentAt)
      if (this.host.events.isHeard('renewed')) this.host.events.emit('renewed', () => this.facts())
    } else if (answer.outcome === 'gone') this.lose('gone')
    else this.#retrySoon((answer as { error: LeaseholdError }).error)
  }

  /** An outage is not a verdict: there is time until the deadline. */
  #retrySoon(error: LeaseholdError): void {
    const { world, heartbeats, events } = this.host
    const pause = Math.min(Math.max(this.ttlMs / 30, 5) * 2 ** Math.min(this.#failures++, 4), 1_000)
    // Few different pauses, each with a list of its own: thousands of random times in one list would have to be sorted.
    const delay = pause * (0.5 + Math.floor(world.random() * RETRY_SLOTS) / (2 * RETRY_SLOTS))
    heartbeats.set(this, Math.min(world.now() + delay, this.deadline), delay)
    events.emit('error', () => ({ ...requestFacts(this.request), doing: 'renew', error }))
    this.#warnOfRisk(error)
  }

  /** Once for each time of trouble: the work under the lock may still save what it has done. */
  #warnOfRisk(error?: LeaseholdError): void {
    const log = this.#log
    if (!log || log.atRisk || !(this.autoRenew || this.#wantsMore)) return
    log.atRisk = true
    const { remainingMs } = this
    this.host.events.emit('atRisk', () => ({ ...this.facts(), remainingMs, ...(error && { error }) }))
  }

  #schedule(from: number): void {
    const { heartbeats } = this.host
    if (!this.autoRenew || this.#isFinal) heartbeats.set(this, this.deadline, this.ttlMs)
    else {
      const period = this.ttlMs * HEARTBEAT_SHARE
      heartbeats.set(this, Math.min(from + period, this.deadline), period, period * COALESCE_SHARE)
    }
  }

  /** The store was asked for all that `maxHold` allows: there is nothing left to renew. */
  get #isFinal(): boolean {
    return this.request.maxHoldMs !== undefined && this.#askedUntil >= this.holdUntil - 1
  }

  /** Provisional to the end, and without renewals it would have ended by now all the same. */
  get #hadItsTime(): boolean {
    return this.#provisional && this.host.world.now() >= this.acquiredAt + this.ttlMs - driftOf(this.ttlMs)
  }

  #runOut(): void {
    if (this.#isFinal) this.lose('max-hold')
    else if (this.autoRenew || (this.#wantsMore && !this.#hadItsTime))
      this.lose(reasonOfExpiry(this, this.#log), this.#log?.lastError)
    else this.lose('expired')
  }

  #abandon(): void {
    this.end()
    this.host.events.emit('abandoned', () => this.facts())
  }

  #retire(): void {
    this.host.retired(this)
    this.onEnd?.()
    this.#handle = undefined
    this.#tracker?.drop()
  }
}
