import { type ClosedError, LockLostError, type LossReason, StoreUnavailableError } from '../errors.js'
import type { Grant, Store } from '../store.js'
import { deadlineOf } from './deadline.js'
import type { LockFacts } from './events.js'
import { HandleTracker, releasedSignal } from './handle-tracker.js'
import { emitAbandoned, emitLost } from './lease-events.js'
import type { ListedLease } from './lease-list.js'
import { factsOfLoss, reasonOfEnd } from './loss.js'
import { type RenewalHost, type RenewedLease, Renewals } from './renewal.js'
import { scheduleConfirmation, scheduleRenewal } from './renewal-times.js'
import type { AcquireRequest } from './request.js'
import type { StallMonitor } from './stall-monitor.js'
import { Timed } from './timers.js'

/** `provisional`: granted for a short time only, so that a dead waiter does not block the others; to be renewed soon. */
export type LeaseGrant = Grant & { provisional?: boolean }

/** What a lease needs from the instance that holds it. */
export interface LeaseHost extends RenewalHost {
  readonly store: Store
  readonly stalls: StallMonitor
  /** Set from the moment on at which the instance closes. */
  readonly closingReason: ClosedError | undefined
  release(lease: Lease): Promise<boolean>
  /** The lease has ended here, and is no longer renewed. */
  retired(lease: Lease): void
}

/** What this process knows of one grant. Users hold a `Lock`; the heartbeat holds the lease, never the `Lock`. */
export class Lease extends Timed implements RenewedLease, ListedLease<Lease> {
  readonly host: LeaseHost
  readonly request: AcquireRequest
  /** Owner and token as the store knows them: those of the first lock, if the lease was passed on inside this process. */
  owner = ''
  earlier: Lease | undefined = undefined
  later: Lease | undefined = undefined
  token = 0n
  /** How many locks of this process had the lease before, since the store granted it. */
  turn = 0
  /** The lease that this one was passed on to: the store's grant belongs to the successor from then on. */
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
  /** Made with the first: a lease that is released before costs nothing more. */
  #renewals: Renewals | undefined = undefined
  askedUntil = 0
  wantsMore = false
  provisional = false
  staysInStore = false

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
    const until = deadlineOf(sentAt, grant.ttlMs)
    if (this.request.maxHoldMs === undefined) this.deadline = until
    else {
      this.deadline = Math.min(until, this.holdUntil)
      this.askedUntil = grant.provisional ? until : sentAt + this.request.ttlMs
    }
    this.wantsMore = this.provisional = grant.provisional === true
    // After a hand-off no timer is set yet: setting one would delay the caller that has just been granted.
    if (this.wantsMore) this.host.heartbeats.park(this)
    else scheduleRenewal(this, sentAt)
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
    this.wantsMore = from.wantsMore
    this.provisional = from.provisional
    if (from.#renewals) this.#renewals = new Renewals(this, from.#renewals.log?.passedOn(now))
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

  /** The store certainly keeps this lease, with the ttl and renewals of its request: it may be passed on as it is. */
  get isAsGranted(): boolean {
    if (!this.isOpen || this.takenBack || this.staysInStore || this.#renewals?.inDoubt) return false
    return this.autoRenew && this.ttlMs === this.request.ttlMs
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

  /** Exact at any instant, without I/O: a timer may not have had its turn yet. */
  get held(): boolean {
    return !this.released && this.loss === undefined && this.host.world.now(true) < this.deadline
  }

  /** Held, but its renewals fail or are not answered: it ends at `deadline` unless one succeeds. */
  get atRisk(): boolean {
    return this.#renewals?.log?.atRisk === true && this.held
  }

  /** For how long the store may keep it at most: a request in flight at the hand-off may have got it the full ttl. */
  get storedMs(): number {
    const log = this.#renewals?.log
    const until = Math.max(log?.storedUntil ?? this.deadline, log?.mayLastUntil ?? this.deadline)
    return Math.max(this.ttlMs, this.request.ttlMs, until - this.host.world.now())
  }

  get remainingMs(): number {
    return this.released || this.loss ? 0 : Math.max(this.deadline - this.host.world.now(true), 0)
  }

  /** Aborts as soon as the lock can no longer be trusted. Created when it is first read. */
  get signal(): AbortSignal {
    this.noticeDeadline()
    if (this.released && !this.takenBack) return releasedSignal(this.request.name, this.#tracker)
    return this.#track().signalFor(this.loss ?? this.takenBack ?? this.host.closingReason)
  }

  /** Takes notice of a deadline that has passed before any timer could say so. */
  noticeDeadline(): void {
    if (!this.released && !this.loss && this.host.world.now(true) >= this.deadline) this.runOut()
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
    if (this.wantsMore && !this.#renewals?.isInFlight && this.isOpen) scheduleConfirmation(this)
  }

  override due(now: number): void {
    if (now >= this.deadline) this.runOut()
    else if (this.#renewals?.isInFlight) this.#renewals.isLate()
    else if (this.#tracker?.isForgotten) {
      this.end()
      emitAbandoned(this)
    } else {
      this.#track().holdWeakly()
      this.renewals.renewInBulk(now)
    }
  }

  get renewals(): Renewals {
    this.#renewals ??= new Renewals(this)
    return this.#renewals
  }

  /** Stays in the store until its time passes, and is renewed no longer. */
  leave(): void {
    this.staysInStore = true
    this.end()
  }

  async extend(ttlMs: number): Promise<void> {
    this.assertHeld()
    const renewed = await this.renewals.extend(ttlMs)
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
    const facts = factsOfLoss(this, this.#renewals?.log)
    this.loss = new LockLostError(this.request.name, why, cause === undefined ? facts : { ...facts, cause })
    this.#retire()
    this.#tracker?.abort(this.loss)
    this.onLoss?.()
    emitLost(this, this.loss, facts)
    const storedLonger = this.#renewals?.log?.storedUntil !== undefined && why !== 'gone' && why !== 'revoked'
    if (storedLonger && !this.staysInStore) void this.host.cleanup.release(this, this.storedMs)
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

  get expiresAt(): Date {
    return new Date(this.host.world.date() + this.deadline - this.host.world.now())
  }

  /** The store was asked for all that `maxHold` allows: there is nothing left to renew. */
  get isFinal(): boolean {
    return this.request.maxHoldMs !== undefined && this.askedUntil >= this.holdUntil - 1
  }

  runOut(): void {
    const { why, cause } = reasonOfEnd(this, this.#renewals?.log)
    this.lose(why, cause)
  }

  #retire(): void {
    this.host.retired(this)
    this.onEnd?.()
    this.#handle = undefined
    this.#tracker?.drop()
  }
}
