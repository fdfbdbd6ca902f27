import { ClosedError, type LeaseholdError, LockLostError, type LossReason, StoreUnavailableError } from '../errors.js'
import type { Grant, Renewed } from '../store.js'
import type { Ask } from './ask.js'
import { isObserved } from './cancel.js'
import type { Engine } from './engine.js'
import type { LockFacts } from './events.js'
import type { Lock } from './lock.js'
import { Timed } from './timers.js'

/**
 * How much earlier than the store the holder stops trusting a lease: clocks run at slightly different speeds, and the
 * holder must be told before anyone else can hold.
 */
export function driftOf(ttlMs: number): number {
  return ttlMs * 0.01 + 2
}

/** Renewed after this share of its ttl, so that two renewals may fail before it is lost. */
const BEAT = 1 / 3

/** What is provisional is renewed after this long. Most locks that change hands are given back sooner, and never need it. */
const CONFIRM_MS = 20

/** Due at most this share of the beat early, to travel with others. */
const COALESCE = 0.1

/** `provisional`: for a short time only, so that somebody dead does not block the others; to be renewed soon. */
export type Given = Grant & { provisional?: boolean }

/** What the library knows of one grant. `Lock` is its face; the heartbeat holds this, never the face. */
export class Lease extends Timed {
  readonly engine: Engine
  readonly ask: Ask
  owner = ''
  token = 0n
  /** When this process learned of the grant, by the local clock. */
  acquiredAt = 0
  waitedMs = 0
  ttlMs: number
  /** From here on it is not trusted, whatever the store may say later. No I/O can move it but a renewal that worked. */
  deadline: number = Number.NEGATIVE_INFINITY
  loss: LockLostError | undefined = undefined
  released = false
  /** What `release` answered, or will: the store is told once. */
  releasing: Promise<boolean> | undefined = undefined
  /** Released by `releaseAll` or `close`, behind the back of the work under it. */
  takenBack: LockLostError | undefined = undefined
  /** Called when it was lost or taken back: a Web Lock has no signal of its own, and closing may have aborted that already. */
  onLoss: (() => void) | undefined = undefined
  autoRenew: boolean
  /** Strong until the first beat, weak from then on: most locks are gone by then and never pay for it. */
  #face: Lock | WeakRef<Lock> | undefined = undefined
  /** Weak from the first heartbeat on, unless somebody listens: a lock whose signal was read may be forgotten too. */
  #controller: AbortController | WeakRef<AbortController> | undefined = undefined
  #renewing: Promise<Renewed> | undefined = undefined
  #failures = 0
  #verifiedAt: number = Number.NEGATIVE_INFINITY
  /** Until when the last grant or renewal was to last. The store may have given less. */
  #askedUntil: number = Number.NEGATIVE_INFINITY
  /** More time was asked for and not given yet: the next attempt asks again, also without `autoRenew`. */
  #wantsMore = false
  /** It was handed off for a short time, and has not got its ttl yet. */
  #provisional = false
  /** `extend` made it shorter than what the store was told, and the store never shortens: then until when it is kept there. */
  #storedUntil: number | undefined = undefined
  /** `extend` made it shorter at this moment: the answer to a renewal that was sent before must not make it longer again. */
  #shortenedAt: number = Number.NEGATIVE_INFINITY
  /** `keep` was tried, and may have worked although it was not answered: what it left is not ours to release. */
  #kept = false

  /** Nothing is held yet: `begin` says since when. Whoever waits has it made meanwhile. */
  constructor(engine: Engine, ask: Ask) {
    super()
    this.engine = engine
    this.ask = ask
    this.ttlMs = ask.ttlMs
    this.autoRenew = ask.autoRenew
  }

  begin(grant: Given, sentAt: number, now: number, since: number): void {
    this.owner = grant.owner
    this.token = grant.token
    this.acquiredAt = now
    this.waitedMs = now - since
    const until = sentAt + grant.ttlMs - driftOf(grant.ttlMs)
    this.deadline = Math.min(until, this.holdUntil)
    this.#askedUntil = grant.provisional ? until : sentAt + this.ask.ttlMs
    this.#wantsMore = this.#provisional = grant.provisional === true
    // No timer is set yet where somebody has just been handed it: first, whoever waited goes on.
    if (this.#wantsMore) this.engine.beats.park(this)
    else this.#schedule(sentAt)
    if (grant.lost) this.#hangOn(grant.lost)
  }

  get key(): string {
    return this.ask.key
  }

  /** No renewal goes past this. */
  get holdUntil(): number {
    return this.ask.maxHoldMs === undefined ? Number.POSITIVE_INFINITY : this.acquiredAt + this.ask.maxHoldMs
  }

  /** Neither released nor lost, as far as has been noticed. */
  get isHere(): boolean {
    return !this.released && this.loss === undefined
  }

  /** A steal of the same key took this one away. */
  isOlderThan(steal: Lease): boolean {
    return this.ask.key === steal.ask.key && this.token < steal.token
  }

  /** A record of ours is or may be in the store under this lease: no clean-up may touch it. */
  get staysInStore(): boolean {
    return this.#kept
  }

  /** Exact at any instant, without I/O: a timer may not have had its turn yet. */
  get held(): boolean {
    return !this.released && this.loss === undefined && this.engine.world.now(true) < this.deadline
  }

  get remainingMs(): number {
    return this.released || this.loss ? 0 : Math.max(this.deadline - this.engine.world.now(true), 0)
  }

  /** Aborts as soon as the lock can no longer be trusted. Made only when somebody asks. */
  get signal(): AbortSignal {
    this.settle()
    if (this.released && !this.takenBack) return this.#releasedSignal()
    let controller = this.#signalController()
    if (!controller) {
      this.#controller = controller = new AbortController()
      const reason = this.loss ?? this.takenBack ?? this.engine.closingReason
      if (reason) controller.abort(reason)
    }
    return controller.signal
  }

  #signalController(): AbortController | undefined {
    return this.#controller instanceof WeakRef ? this.#controller.deref() : this.#controller
  }

  /**
   * Work that begins under a lock that has been released must not. A signal that was taken before does not abort by the
   * holder's own release: nothing was lost, and listeners would take it for that.
   */
  #releasedSignal(): AbortSignal {
    const taken = this.#signalController()?.signal
    if (taken?.aborted) return taken
    return AbortSignal.abort(new LockLostError(this.ask.name, 'released'))
  }

  /** Takes notice of a deadline that has passed before any timer could say so. */
  settle(): void {
    if (!this.released && !this.loss && this.engine.world.now(true) >= this.deadline) this.#runOut()
  }

  /** The face is held until the first beat, so that a forgotten lock is noticed at the second. */
  show(face: Lock): void {
    this.#face = face
  }

  /** It was given for a short time only: ask for the rest, unless it is given back before. */
  confirmSoon(): void {
    if (!this.#wantsMore || this.#renewing || this.released || this.loss) return
    const { beats, world } = this.engine
    const now = world.now()
    beats.set(this, now + Math.min(CONFIRM_MS, Math.max(this.deadline - now, 0) / 4), CONFIRM_MS)
  }

  override due(now: number): void {
    if (now >= this.deadline) this.#runOut()
    else if (this.#isForgotten) this.#abandon()
    else {
      this.#letGoOfFace()
      void this.verify()
    }
  }

  /** Something may have happened to it. Not again within `everyMs`, unless that verification is still out. */
  verifySoon(now: number, everyMs: number): void {
    if (this.#renewing || !this.isHere || now < this.#verifiedAt + everyMs) return
    this.#verifiedAt = now
    void this.verify()
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

  /** One renewal at a time. Whoever wants another one gets its turn when this one is through. */
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
    this.#schedule(this.engine.world.now())
  }

  /** From now on it ends when its time has passed. */
  stopRenewing(): void {
    if (!this.autoRenew || !this.isHere) return
    this.autoRenew = false
    if (!this.#renewing) this.#schedule(this.engine.world.now())
  }

  /**
   * Leaves it in the store, with this value, for `ttlMs` from now on, and looks after it no longer. Only the store can
   * tell whether it was still ours: an answer that comes after the local deadline counts, since others may have read
   * the value by then. `unknown`: it is looked after as before, and this may be tried again.
   */
  async keep(value: string, ttlMs: number): Promise<Renewed> {
    while (this.#renewing) await this.#renewing
    if (this.released || this.loss) return { outcome: 'gone' }
    const { courier, beats, cleanup, events } = this.engine
    this.#kept = true
    beats.set(this, this.deadline, Number.POSITIVE_INFINITY)
    const { key, owner, token } = this
    // Like a heartbeat, so that there is none beside it. Closing waits for it.
    this.#renewing = cleanup.track(courier.renew({ key, owner, token, ttlMs, value }))
    const answer = await this.#renewing
    this.#renewing = undefined
    if (answer.outcome === 'gone') this.lose('gone')
    else if (this.released || this.loss) return answer
    else if (answer.outcome === 'unknown') this.#retrySoon(answer.error as LeaseholdError)
    else {
      this.end()
      events.emit('released', () => ({ ...this.facts(), heldMs: this.heldMs }))
    }
    return answer
  }

  /** Settles when no record is being written any more. */
  async recorded(): Promise<void> {
    while (this.#renewing) await this.#renewing
  }

  /** Stays in the store until its time passes, and is looked after no longer. */
  leave(): void {
    this.#kept = true
    this.end()
  }

  async extend(ttlMs: number): Promise<void> {
    this.assertHeld()
    const shorter = this.engine.world.now() + ttlMs - driftOf(ttlMs)
    if (shorter < this.deadline) {
      this.#storedUntil ??= this.deadline
      this.deadline = shorter
      this.#shortenedAt = this.engine.world.now()
      // The timer is set for the later deadline, and a renewal that is out leaves it there.
      if (this.#renewing) this.engine.beats.set(this, shorter, Number.POSITIVE_INFINITY)
    }
    this.ttlMs = ttlMs
    this.#provisional = false
    const renewed = await this.renew()
    this.assertHeld()
    if (renewed.outcome === 'unknown') {
      throw new StoreUnavailableError(`"${this.ask.name}" could not be extended`, { cause: renewed.error })
    }
  }

  assertHeld(): void {
    this.settle()
    if (this.loss) throw this.loss
    if (this.released) throw new LockLostError(this.ask.name, 'released')
  }

  lose(why: LossReason, cause?: unknown): void {
    if (!this.released) this.#lose(why, cause)
  }

  /** We let go of what we believed to hold, and the store said that it had not been ours. */
  wasGone(): void {
    this.#lose('gone')
  }

  #lose(why: LossReason, cause?: unknown): void {
    if (this.loss) return
    this.loss = new LockLostError(this.ask.name, why, cause === undefined ? undefined : { cause })
    this.#retire()
    this.#signalController()?.abort(this.loss)
    this.onLoss?.()
    const error = this.loss
    this.engine.events.emit('lost', () => ({ ...this.facts(), heldMs: this.heldMs, error }))
    const storedLonger = this.#storedUntil !== undefined && why !== 'gone' && why !== 'revoked'
    if (storedLonger && !this.#kept) void this.engine.cleanup.release(this, this.ttlMs)
  }

  /** Work should end, because the instance closes; it is still looked after. */
  tell(reason: ClosedError): void {
    this.#signalController()?.abort(reason)
  }

  /** `releaseAll` or `close` is about to release it, and the work under it did not ask for that. */
  takeBack(reason: LockLostError): void {
    this.takenBack = reason
    this.#signalController()?.abort(reason)
    this.onLoss?.()
  }

  /** From here on it is not held, whatever the store answers. */
  end(): void {
    this.released = true
    this.#retire()
  }

  get heldMs(): number {
    return this.engine.world.now() - this.acquiredAt
  }

  facts(): LockFacts {
    const { name, kind, mode, value } = this.ask
    const metadata: unknown = value === undefined ? undefined : JSON.parse(value)
    return { name, kind, mode, holder: this.owner, fencingToken: this.token, expiresAt: this.expiresAt, metadata }
  }

  get expiresAt(): Date {
    return new Date(this.engine.world.date() + this.deadline - this.engine.world.now())
  }

  async #renewOnce(value: string | undefined): Promise<Renewed> {
    const { world, courier, beats } = this.engine
    const sentAt = world.now()
    const prolong = this.autoRenew || this.#wantsMore
    let until = prolong ? Math.min(sentAt + this.ttlMs, this.holdUntil) : this.deadline
    // Without renewals it ends when its ttl has passed, counted from when it was handed off.
    if (this.#provisional && !this.autoRenew) until = Math.min(until, this.acquiredAt + this.ttlMs)
    const ttlMs = Math.max(Math.ceil(until - sentAt), 1)
    // While the answer is out, only the deadline counts.
    beats.set(this, this.deadline, Number.POSITIVE_INFINITY)
    const { key, owner, token } = this
    const answer = await courier.renew({ key, owner, token, ttlMs, value })
    if (answer.outcome === 'ours' && prolong) this.#askedUntil = until
    this.settle()
    if (this.released || this.loss) {
      // Too late, yet the store has just made it longer: nobody would hold it, and nobody else could.
      if (answer.outcome === 'ours' && this.loss && !this.#kept) void this.engine.cleanup.release(this, this.ttlMs)
    } else if (answer.outcome === 'ours') {
      this.#failures = 0
      const until = Math.min(sentAt + answer.ttlMs - driftOf(answer.ttlMs), this.holdUntil)
      if (prolong) this.deadline = sentAt < this.#shortenedAt ? Math.min(until, this.deadline) : until
      this.#wantsMore = this.#provisional = false
      if (this.#storedUntil !== undefined && this.#storedUntil <= this.deadline) this.#storedUntil = undefined
      this.#schedule(sentAt)
      this.engine.events.emit('renewed', () => this.facts())
    } else if (answer.outcome === 'gone') this.lose('gone')
    else this.#retrySoon((answer as { error: LeaseholdError }).error)
    return answer
  }

  /** An outage is not a verdict: there is time until the deadline. */
  #retrySoon(error: LeaseholdError): void {
    const { world, beats, events } = this.engine
    const pause = Math.min(Math.max(this.ttlMs / 30, 5) * 2 ** Math.min(this.#failures++, 4), 1_000)
    const again = world.now() + pause * (0.5 + world.random() / 2)
    beats.set(this, Math.min(again, this.deadline), this.ttlMs / 30)
    const { name, kind } = this.ask
    events.emit('error', () => ({ name, kind, doing: 'renew', error }))
  }

  #schedule(from: number): void {
    const { beats } = this.engine
    if (!this.autoRenew || this.#isFinal) beats.set(this, this.deadline, this.ttlMs)
    else {
      const beat = this.ttlMs * BEAT
      beats.set(this, Math.min(from + beat, this.deadline), beat, beat * COALESCE)
    }
  }

  /** The store was asked for all that `maxHold` allows: there is nothing left to renew. */
  get #isFinal(): boolean {
    return this.#askedUntil >= this.holdUntil - 1
  }

  #runOut(): void {
    this.lose(this.#isFinal ? 'max-hold' : 'expired')
  }

  #hangOn(lost: AbortSignal): void {
    if (lost.aborted) this.lose('session', lost.reason)
    else lost.addEventListener('abort', () => this.lose('session', lost.reason), { once: true })
  }

  /**
   * Nobody can release it any more. Asked at every heartbeat, and not left to a FinalizationRegistry: in some processes none
   * of these calls back (seen on Node 20, after a collection that a program asked for), and it would be renewed for ever.
   */
  get #isForgotten(): boolean {
    if (!(this.#face instanceof WeakRef) || this.#face.deref() !== undefined) return false
    return this.#signalController() === undefined
  }

  #abandon(): void {
    this.end()
    this.engine.events.emit('abandoned', () => this.facts())
  }

  /**
   * From the first heartbeat on, only its users keep the lock from being taken for forgotten: whoever has the lock, has its
   * signal, or listens to that.
   */
  #letGoOfFace(): void {
    if (this.#face && !(this.#face instanceof WeakRef)) {
      this.#face = new WeakRef(this.#face)
    }
    const controller = this.#signalController()
    if (!controller) return
    keptBySignal.set(controller.signal, controller)
    this.#controller = isObserved(controller.signal) ? controller : new WeakRef(controller)
  }

  #retire(): void {
    this.engine.retired(this)
    this.#face = undefined
  }
}

/** A signal keeps its controller, so that whoever has only the signal is still told. */
const keptBySignal = new WeakMap<AbortSignal, AbortController>()
