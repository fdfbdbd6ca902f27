import { InvalidOptionError, type LeaseholdError, type LockLostError } from '../errors.js'
import type { Renewal, Renewed } from '../store.js'
import type { World } from '../util/world.js'
import type { Batcher } from './batcher.js'
import type { Cleanup } from './cleanup.js'
import { deadlineOf } from './deadline.js'
import type { Events } from './events.js'
import type { Heartbeat, RenewedInBulk } from './heartbeat.js'
import { type PresentedLease, emitAtRisk, emitFailure, emitReleased, emitRenewed } from './lease-events.js'
import { RenewalLog } from './renewal-log.js'
import { type DueLease, awaitAnswer, awaitDeadline, scheduleRenewal, scheduleRetry } from './renewal-times.js'
import type { Timers } from './timers.js'

/** A renewal that is not answered after this share of the ttl puts the lease at risk: half of its time is left then. */
const RISK_SHARE = 1 / 6

/** What renewals need from the instance that holds the lease. */
export interface RenewalHost {
  readonly world: World
  readonly batcher: Batcher
  readonly cleanup: Cleanup
  readonly events: Events
  readonly heartbeats: Timers
  readonly heartbeat: Heartbeat
}

/** A lease, as its renewals see it. */
export interface RenewedLease extends DueLease, PresentedLease {
  readonly host: RenewalHost
  readonly key: string
  readonly owner: string
  readonly token: bigint
  /** For how long the store may keep it at most. */
  readonly storedMs: number
  /** No renewal goes past this. */
  readonly holdUntil: number
  /** Neither released nor lost. */
  readonly isOpen: boolean
  readonly loss: LockLostError | undefined
  ttlMs: number
  deadline: number
  autoRenew: boolean
  /** With `maxHold`: until when the last grant or renewal was to last. The store may have given less. */
  askedUntil: number
  /** More time was asked for and not given yet: the next attempt asks again, also without `autoRenew`. */
  wantsMore: boolean
  /** It was handed off for a short time, and has not got its ttl yet. */
  provisional: boolean
  /** A record of ours is or may be in the store under this lease. */
  staysInStore: boolean
  lose(why: 'gone'): void
  /** Its deadline has passed. */
  runOut(): void
  /** From here on it is not held. */
  end(): void
}

/**
 * The renewals of one lease: one at a time, tried again until its deadline, each counted from when it was sent. Made with the first of
 * them: the lease of a lock that is released before its first heartbeat must cost nothing more.
 */
export class Renewals implements RenewedInBulk {
  /** What became of them. Made when one is sent or asked for out of turn. */
  log: RenewalLog | undefined
  readonly #lease: RenewedLease
  /** Settles when the one that is in flight has been answered. */
  #inFlight: Promise<unknown> | undefined = undefined
  /** How many have failed in a row. */
  #failures = 0
  /** The lease waits for the renewals that are due together with it. */
  #isDue = false

  /** `log`: what is known from the lock that the lease was passed on from. */
  constructor(lease: RenewedLease, log?: RenewalLog) {
    this.#lease = lease
    this.log = log
  }

  get isInFlight(): boolean {
    return this.#inFlight !== undefined
  }

  /** It is not certain that the store keeps the lease for as long as this process trusts it, and no longer. */
  get inDoubt(): boolean {
    return this.isInFlight || this.#isDue || this.#failures > 0 || this.log?.storedUntil !== undefined
  }

  get #history(): RenewalLog {
    this.log ??= new RenewalLog(this.#lease.acquiredAt)
    return this.log
  }

  /** Together with all others that are due now, unless it wants another time than its ttl. */
  renewInBulk(now: number): void {
    const lease = this.#lease
    if (this.#inFlight || !lease.autoRenew || lease.request.maxHoldMs !== undefined) return void this.#verify()
    awaitAnswer(lease, now + lease.ttlMs * RISK_SHARE)
    this.#isDue = true
    lease.host.heartbeat.add(this)
  }

  /** Something may have happened to the lease. Not again within `everyMs`, unless that verification is still out. */
  verifySoon(now: number, everyMs: number): void {
    if (this.#inFlight || !this.#lease.isOpen || (this.log && now < this.log.verifiedAt + everyMs)) return
    this.#history.verifiedAt = now
    this.renewInBulk(now)
  }

  get renewal(): Renewal {
    const { key, owner, token, ttlMs } = this.#lease
    const log = this.#history
    if (log.renewal?.ttlMs !== ttlMs) log.renewal = { key, owner, token, ttlMs }
    return log.renewal as Renewal
  }

  beginRenewal(answered: Promise<void>, now: number): boolean {
    const { isOpen, autoRenew, ttlMs } = this.#lease
    this.#isDue = false
    if (!isOpen || !autoRenew || this.#inFlight) return false
    this.#inFlight = answered
    this.#history.sent(now, now + ttlMs)
    return true
  }

  endRenewal(answer: Renewed, sentAt: number, now: number): void {
    this.#inFlight = undefined
    this.#answered(answer, sentAt, now, sentAt + this.#lease.ttlMs)
  }

  /** More time, and another value if one is given. */
  renew(value?: string): Promise<Renewed> {
    return this.#inTurn(() => {
      this.#lease.wantsMore = true
      return this.#renewOnce(value)
    })
  }

  /** Asks whether the lease is still ours. Without `autoRenew` this must not prolong it: it has to end with its ttl. */
  #verify(): Promise<Renewed> {
    return this.#inTurn(() => this.#renewOnce(undefined))
  }

  /** One renewal at a time: a second one starts when the first has been answered. */
  async #inTurn(renew: () => Promise<Renewed>): Promise<Renewed> {
    while (this.#inFlight) await this.#inFlight
    if (!this.#lease.isOpen) return { outcome: 'gone' }
    const renewing = renew()
    this.#inFlight = renewing
    try {
      return await renewing
    } finally {
      this.#inFlight = undefined
    }
  }

  async #renewOnce(value: string | undefined): Promise<Renewed> {
    const lease = this.#lease
    const { world, batcher } = lease.host
    const sentAt = world.now()
    const prolong = lease.autoRenew || lease.wantsMore
    let until = prolong ? Math.min(sentAt + lease.ttlMs, lease.holdUntil) : lease.deadline
    // Without renewals it ends when its ttl has passed, counted from when it was handed off.
    if (lease.provisional && !lease.autoRenew) until = Math.min(until, lease.acquiredAt + lease.ttlMs)
    const ttlMs = Math.max(Math.ceil(until - sentAt), 1)
    awaitAnswer(lease, prolong ? sentAt + lease.ttlMs * RISK_SHARE : lease.deadline)
    const { key, owner, token } = lease
    this.#history.sent(sentAt, sentAt + ttlMs)
    const answer = await batcher.renew({ key, owner, token, ttlMs, value })
    this.#answered(answer, sentAt, world.now(true), prolong ? until : undefined)
    return answer
  }

  /** `now`: when the answer came. `asked`: until when more time was asked for, if it was. */
  #answered(answer: Renewed, sentAt: number, now: number, asked: number | undefined): void {
    const lease = this.#lease
    this.#history.answered(answer, now)
    if (answer.outcome === 'ours' && asked !== undefined && lease.request.maxHoldMs !== undefined)
      lease.askedUntil = asked
    if (lease.isOpen && now >= lease.deadline) lease.runOut()
    if (!lease.isOpen) {
      // The lease was lost here before the store prolonged it: not released, it would block others until its new end.
      if (answer.outcome === 'ours' && lease.loss && !lease.staysInStore)
        void lease.host.cleanup.release(lease, lease.storedMs)
    } else if (answer.outcome === 'ours') this.#prolonged(answer.ttlMs, sentAt, asked !== undefined)
    else if (answer.outcome === 'gone') lease.lose('gone')
    else this.#retrySoon((answer as { error: LeaseholdError }).error)
  }

  #prolonged(ttlMs: number, sentAt: number, wasAsked: boolean): void {
    const lease = this.#lease
    const log = this.#history
    this.#failures = 0
    log.succeeded(sentAt)
    const until = Math.min(deadlineOf(sentAt, ttlMs), lease.holdUntil)
    if (wasAsked) lease.deadline = sentAt < log.shortenedAt ? Math.min(until, lease.deadline) : until
    lease.wantsMore = lease.provisional = false
    if (log.storedUntil !== undefined && log.storedUntil <= lease.deadline) log.storedUntil = undefined
    scheduleRenewal(lease, sentAt)
    if (lease.host.events.isHeard('renewed')) emitRenewed(lease)
  }

  /** An outage is not a verdict: there is time until the deadline. */
  #retrySoon(error: LeaseholdError): void {
    const lease = this.#lease
    scheduleRetry(lease, this.#failures++)
    emitFailure(lease, 'renew', error)
    this.#warnOfRisk(error)
  }

  /** The one in flight is not answered yet. */
  isLate(): void {
    awaitDeadline(this.#lease)
    this.#warnOfRisk()
  }

  /** Emits `atRisk` once, until a renewal succeeds again: the work under the lock may still save what it has done. */
  #warnOfRisk(error?: LeaseholdError): void {
    const { log } = this
    const lease = this.#lease
    if (!log || log.atRisk || !(lease.autoRenew || lease.wantsMore)) return
    log.atRisk = true
    emitAtRisk(lease, error)
  }

  /** Turns renewals on, for a lease that was acquired without `autoRenew`. */
  begin(): void {
    const lease = this.#lease
    if (lease.autoRenew || !lease.isOpen) return
    lease.autoRenew = true
    scheduleRenewal(lease, lease.host.world.now())
  }

  /** Turns renewals off: the lease ends when its time has passed. */
  stop(): void {
    const lease = this.#lease
    if (!lease.autoRenew || !lease.isOpen) return
    lease.autoRenew = false
    if (!this.#inFlight) scheduleRenewal(lease, lease.host.world.now())
  }

  /** `ttlMs` from now on, for this renewal and all later ones. A shorter one counts at once, whatever the store answers. */
  extend(ttlMs: number): Promise<Renewed> {
    const lease = this.#lease
    const { world } = lease.host
    const shorter = deadlineOf(world.now(), ttlMs)
    if (shorter < lease.deadline) {
      const log = this.#history
      log.storedUntil ??= lease.deadline
      lease.deadline = shorter
      log.shortenedAt = world.now()
      // The timer is set for the later deadline, and a renewal in flight leaves it there.
      if (this.#inFlight) awaitDeadline(lease)
    }
    lease.ttlMs = ttlMs
    lease.provisional = false
    return this.renew()
  }

  /**
   * Leaves the lease in the store, with this value, for `ttlMs` from now on, and renews it no longer. Only the store can
   * tell whether it was still ours: an answer that comes after the local deadline counts, since others may have read
   * the value by then. `unknown`: it is renewed as before, and this may be tried again, also when its time has passed here meanwhile.
   */
  async keep(value: string, ttlMs: number): Promise<Renewed> {
    const lease = this.#lease
    while (this.#inFlight) await this.#inFlight
    if (!lease.isOpen && !this.#mayBeRecorded()) return { outcome: 'gone' }
    const { batcher, cleanup, world } = lease.host
    const before = lease.staysInStore
    lease.staysInStore = true
    const sentAt = world.now()
    if (lease.isOpen) awaitAnswer(lease, sentAt + lease.ttlMs * RISK_SHARE)
    const { key, owner, token } = lease
    // A record is never released, so that no release has to be tried for as long as it lasts.
    this.#history.sent(sentAt, lease.deadline)
    // Like a heartbeat, so that there is none beside it. Closing waits for it.
    const renewing = cleanup.track(batcher.renew({ key, owner, token, ttlMs, value }))
    this.#inFlight = renewing
    const answer = await renewing
    this.#inFlight = undefined
    this.#history.answered(answer, world.now(true))
    // Refused before anything was written: left as kept, the lock could not be released.
    if (answer.outcome === 'unknown' && answer.error instanceof InvalidOptionError) lease.staysInStore = before
    if (answer.outcome === 'gone') lease.lose('gone')
    else if (!lease.isOpen) return answer
    else if (answer.outcome === 'unknown') {
      this.#retrySoon(answer.error as LeaseholdError)
    } else {
      lease.end()
      emitReleased(lease)
    }
    return answer
  }

  /** An attempt to keep it was not answered, and only this process has given the lease up since: the store may have the record. */
  #mayBeRecorded(): boolean {
    const { staysInStore, loss } = this.#lease
    return staysInStore && loss !== undefined && loss.why !== 'gone' && loss.why !== 'revoked'
  }

  /** Settles when no record is being written any more. */
  async recorded(): Promise<void> {
    while (this.#inFlight) await this.#inFlight
  }
}
