import {
  InvalidOptionError,
  type LeaseholdError,
  type LockTimeoutError,
  StoreUnavailableError,
  UnsupportedError,
} from '../errors.js'
import type { Answer, Claim, Grant, Refusal, Renewed, Store, StoreEvent } from '../store.js'
import type { World } from '../util/world.js'
import type { AcquireRequest } from './request.js'
import { onAbort } from './abort-fanout.js'
import type { Batcher } from './batcher.js'
import { waitingClaimOf } from './claim.js'
import type { Cleanup } from './cleanup.js'
import { deadlineOf, isStale } from './deadline.js'
import { type Events, requestFacts } from './events.js'
import { withFrames } from './frames.js'
import type { Identity } from './identity.js'
import type { Lease, LeaseGrant } from './lease.js'
import { type Lock, leaseOf } from './lock.js'
import type { OrderedRequests } from './ordered-requests.js'
import type { QueueHeartbeat } from './queue-heartbeat.js'
import { QUEUE_MS, retryDelay } from './retry-delay.js'
import { isThenable } from './thenable.js'
import { isSameLease, TENANCY_TOKENS, Tenancy } from './tenancy.js'
import { Alarm, Timed, type Timers } from './timers.js'
import type { WaitQueue, Waiter } from './wait-queue.js'

/**
 * On stores without a queue, an acquisition in a process that has just released the key waits up to this long for the
 * release to be announced, so that other waiters get a fair chance; if it can wait so much longer at all.
 */
const COURTESY_MS = 25
const COURTEOUS_FROM_MS = 10 * COURTESY_MS
/** How long one request may stay open inside the server. */
const BLOCK_MS = 5_000
/** The same for a waiter that seeks a record. */
const SEEK_BLOCK_MS = 500
/** How long a request that was kept open may take to be answered once it is ended. */
const LAST_CALL_MS = 500
/** An acquisition whose turn came so recently cannot have been answered yet. Longer would take an outage for a busy key. */
const JUST_BEGUN_MS = 2
/** A pushed grant is used as it is if this share of its time is certain to be left; otherwise the store is asked again. */
const ENOUGH_LEFT = 0.5

/**
 * FRESH_FAILURE_MS: an acquisition behind one whose request failed longer ago than this has it ask again. Shorter would turn a crowd of
 * newcomers into a flood of requests to a store that is down; longer would tell them of an outage that may be over.
 */
const FRESH_FAILURE_MS = 100

/** SAME_ALARM_MS: an alarm that differs by less is not set anew. More would delay the request behind a holder that died. */
const SAME_ALARM_MS = 5

const SETTLED = Promise.resolve()

type PushedGrant = Extract<StoreEvent, { type: 'granted' }>

/** Ends a wait that has become pointless (`AcquireRequest.onRefusal`). Never seen by callers. */
export class WaitEnded extends Error {}

/**
 * Where an acquisition stands:
 *
 * - `queued`: behind others of this process; nothing was sent yet.
 * - `asking`: a request is in flight.
 * - `subscribing`: refused; waits until notifications would arrive.
 * - `waiting`: until it is notified, or until asking again may help. Its queue entry is renewed by the queue heartbeat.
 * - `granted`, `failed`: settled.
 */
type State = 'queued' | 'asking' | 'subscribing' | 'waiting' | 'granted' | 'failed'

/** What an acquisition needs from its instance. */
export interface AcquireHost {
  readonly store: Store
  readonly world: World
  readonly batcher: Batcher
  readonly cleanup: Cleanup
  readonly events: Events
  readonly identity: Identity
  readonly ordered: OrderedRequests
  readonly queueHeartbeat: QueueHeartbeat
  /** When waits end, or ask again. */
  readonly waits: Timers
  /** The store answers at once: a waiter that asks when a lock is released loses no time by that. */
  readonly answersAtOnce: boolean
  /** Makes a lock of a grant. */
  hold(request: AcquireRequest, grant: LeaseGrant, sentAt: number, since: number, lock?: Lock): Lock
  /** The lock that a grant will complete: allocated while waiting, to keep construction off the hand-off path. */
  preallocate(request: AcquireRequest): Lock
  /** The wait is over: what the caller is told. */
  timedOut(request: AcquireRequest, facts: { waitedMs: number; heldBy: string | undefined }): LockTimeoutError
}

/** One acquisition that may have to wait: asks again whenever that may help, until granted, cancelled or out of time. */
export class Acquisition extends Timed implements Waiter {
  readonly request: AcquireRequest
  readonly promise: Promise<Lock>
  previous: Acquisition | undefined = undefined
  next: Acquisition | undefined = undefined

  readonly #host: AcquireHost
  readonly #queue: WaitQueue<Acquisition>
  readonly #since: number
  /** Made when it is needed: most waiters of a crowd are passed a lease and never ask. */
  #claim: Claim | undefined
  #state: State = 'queued'
  #resolve!: (lock: Lock | Promise<Lock>) => void
  /** A request is in flight. Also after the acquisition was settled by something else: its answer is then late. */
  #inFlight = false
  /** Until then the server may keep the request in flight open. */
  #openUntil = Number.NEGATIVE_INFINITY
  /** Requests travel one after the other with those of other names (`OrderedRequests`). */
  #ordered = false
  /** Something of ours may be in the store: a queue entry, or a grant whose answer was lost. */
  #mayHold = false
  /** A notification came while a request was in flight: ask again. */
  #notified = false
  /** The request that the server kept open was ended: a grant that comes now was ended with it. */
  #calledBack = false
  #refusal: Refusal | undefined
  #refusals = 0
  #failure: LeaseholdError | undefined
  #failures = 0
  #failedAt: number = Number.NEGATIVE_INFINITY
  /** When the last request or renewal left that the store answered with "not yours": whatever is granted later began after this. */
  #contactAt = Number.NEGATIVE_INFINITY
  /** The largest token that the store had granted by then. A pushed grant counts only if its token is larger. */
  #newest: bigint | undefined
  /** A grant that was pushed while the request was in flight: the answer tells whether it is newer. */
  #pushed: PushedGrant | undefined
  /** Allocated while waiting, to keep construction off the hand-off path. */
  #preallocated: Lock | undefined
  #lock: Lock | undefined
  #stopListening: (() => void) | undefined
  /** Resolves when the request that was in flight at the end has been answered, and nothing is left of it. */
  #cleanedUp: ((cleaning: Promise<void> | undefined) => void) | undefined
  #alarm: Alarm | undefined

  /** `claim`: what the store was asked for before this acquisition had to exist. */
  constructor(
    host: AcquireHost,
    queue: WaitQueue<Acquisition>,
    request: AcquireRequest,
    claim: Claim | undefined,
    since: number,
  ) {
    super()
    this.#host = host
    this.#queue = queue
    this.request = request
    this.#claim = claim
    this.#since = since
    this.promise = new Promise((resolve) => (this.#resolve = resolve))
    if (request.signal) this.#stopListening = onAbort(request.signal, () => this.fail(request.signal?.reason))
  }

  get key(): string {
    return this.request.key
  }

  get owner(): string {
    return this.#asks.owner
  }

  /** What it asks the store for. */
  get #asks(): Claim {
    this.#claim ??= waitingClaimOf(this.request, this.#host.identity)
    return this.#claim
  }

  /** Its turn has come: it asks, or waits until asking may help. */
  get begun(): boolean {
    return this.#state !== 'queued'
  }

  get settled(): boolean {
    return this.#state === 'granted' || this.#state === 'failed'
  }

  get granted(): boolean {
    return this.#state === 'granted'
  }

  /**
   * The server may keep its request open. After a failure that is not known before the next answer. Once the request has
   * used up its time it is an outage, also if a freeze made its timer late.
   */
  get hasOpenRequest(): boolean {
    return this.#inFlight && this.#failure === undefined && this.#host.world.now(true) < this.#openUntil
  }

  get waitedMs(): number {
    return this.#host.world.now() - this.#since
  }

  /** Shared claims may ask beside each other; an exclusive one only when it is first. */
  get exclusive(): boolean {
    return this.request.weight === this.request.capacity
  }

  /** From when it is not certain any more that the first answer settles it. */
  limitWait(): void {
    const { waitMs } = this.request
    if (this.queue || waitMs === Number.POSITIVE_INFINITY) return
    this.#host.waits.set(this, this.#since + waitMs, waitMs)
  }

  /** `ordered`: it must not overtake, nor be overtaken by, what this instance asked for before. */
  begin(ordered: boolean): void {
    const { store, answersAtOnce } = this.#host
    this.#queue.began(this)
    this.#ordered = ordered && !answersAtOnce && !store.blocks
    // A request has a time limit of its own. If the wait lasts longer, no timer is needed before the first answer.
    if (answersAtOnce || store.blocks || this.#ordered || this.request.waitMs <= store.timeoutMs) this.limitWait()
    if (this.#queue.justReleased && this.request.waitMs >= COURTEOUS_FROM_MS) {
      this.limitWait()
      this.#wait(COURTESY_MS)
    } else this.#send()
  }

  /** The store answered before this acquisition had to exist. */
  beginRefused(answer: Answer, sentAt: number): void {
    this.#queue.began(this)
    this.#state = 'asking'
    this.#mayHold = true
    this.#answered(answer, sentAt, true)
  }

  /** The store reserves tokens for those behind it. If the claim is on its way already, the next one asks for them. */
  followed(): void {
    const { next } = this
    if (this.#claim) this.#claim.tokens = next && isSameLease(this.request, next.request) ? TENANCY_TOKENS : undefined
  }

  #send(): void {
    const { store, batcher, world, ordered, answersAtOnce } = this.#host
    const claim = this.#asks
    const late = (answer: Answer): void => this.#answeredAfterUnknown(answer)
    const wasArmed = this.#queue.armed
    if (this.#alarm) this.#host.waits.clear(this.#alarm)
    this.#state = 'asking'
    this.#notified = false
    this.#mayHold = this.#inFlight = true
    this.followed()
    const sentAt = world.now()
    if (store.blocks) {
      const left = this.#since + this.request.waitMs - sentAt
      // A grant counts from when its request was sent: one that stayed open for longer than the ttl would be stale.
      const blockMs = Math.max(Math.min(this.#mostOpenMs(), left, this.request.ttlMs / 2), 0)
      claim.blockMs = blockMs
      this.#openUntil = blockMs > 0 ? sentAt + store.timeoutMs + blockMs : sentAt
    }
    if (this.#ordered) {
      // Only the first request decides about the order; the queue entry keeps it from then on.
      this.#ordered = false
      const isWanted = (): boolean => !this.settled
      const answered = (answer: Answer | undefined, sent: number): void => {
        if (answer) this.#answered(answer, sent, wasArmed)
        else this.#neverSent()
      }
      ordered.send({ claim, isWanted, answered, late })
    } else if (answersAtOnce || store.blocks) {
      const answer = batcher.acquire(claim, late)
      if (isThenable(answer)) void answer.then((settled) => this.#answered(settled, sentAt, wasArmed))
      else this.#answered(answer, sentAt, wasArmed)
    } else batcher.acquireThen(claim, (answer) => this.#answered(answer, sentAt, wasArmed), late)
  }

  /** A waiter that seeks a record sees it only in a refusal: its first request only looks, and later ones do not stay open for long. */
  #mostOpenMs(): number {
    if (!this.request.onRefusal) return BLOCK_MS
    return this.#refusals === 0 ? 0 : SEEK_BLOCK_MS
  }

  /** The answer to a request that was answered as unknown long ago. */
  #answeredAfterUnknown(answer: Answer): void {
    if (this.settled) this.#answeredLate(answer)
    // Asking again gives the same grant, and how long it lasts from now on.
    else if (answer.granted === true) this.notify()
  }

  /** It was given up before its request left. */
  #neverSent(): void {
    this.#inFlight = false
    this.#cleanedUp?.(undefined)
  }

  #answered(answer: Answer, sentAt: number, wasArmed: boolean): void {
    this.#inFlight = false
    if (this.settled) return this.#answeredLate(answer)
    if (answer.granted === true) return this.#granted(answer, sentAt)
    this.limitWait()
    if (answer.granted === 'unknown') {
      this.#failed(answer.error as LeaseholdError)
      if (this.settled) return
      // Its wait is over: another request would only keep the caller waiting.
      if (this.#calledBack) this.due()
      else this.#afterAnswer(answer)
      return
    }
    this.#refused(answer, sentAt)
    if (this.#pushed && !this.settled) this.#grantPushed(this.#pushed)
    if (this.settled) return
    // The subscription became active while the request was in flight, so a notification may have been missed.
    if (!wasArmed && this.#queue.armed) this.#notified = true
    const becameActive = this.#queue.arm(wasArmed)
    if (!isThenable(becameActive)) return this.#afterAnswer(answer, becameActive)
    this.#state = 'subscribing'
    void becameActive.then((active) => {
      if (this.#state === 'subscribing') this.#afterAnswer(answer, active)
    })
  }

  #afterAnswer(answer: Answer, mayHaveMissed = false): void {
    if (this.#notified || mayHaveMissed) this.#send()
    else this.#wait(this.#retryDelay(answer))
  }

  #granted(answer: Grant, sentAt: number): void {
    const { owner, token, ttlMs } = answer
    if (this.#calledBack) {
      // The release that ended the open request may have ended this grant.
      void this.#host.cleanup.release({ key: this.key, owner, token }, ttlMs)
      this.#refusal ??= { granted: false }
      this.due()
    } else if (isStale(answer, sentAt, this.#host.world)) {
      void this.#host.cleanup.release({ key: this.key, owner, token }, ttlMs)
      this.#useFreshOwner()
      this.limitWait()
      this.#failed(new StoreUnavailableError(`${this.#host.store.name} took longer to answer than the ttl lasts`))
      if (!this.settled) this.#afterAnswer(answer)
    } else {
      // A request that was kept open may be granted when most of the time counted from its sending is over: renew soon. Not after
      // a slow answer: a lock without renewals would then be renewed, and end as unreachable instead of expired.
      const provisional = this.#host.store.blocks === true && this.#remaining(ttlMs, sentAt) < ttlMs * ENOUGH_LEFT
      const given = provisional ? { ...answer, provisional } : answer
      this.#lock = this.#host.hold(this.request, given, sentAt, this.#since)
      // The answer repeats a grant that was pushed meanwhile.
      const { tokens } = this.#pushed?.token === token ? this.#pushed : answer
      this.#beginTenancy(this.#lock, tokens)
      this.#settle('granted')
      this.#resolve(this.#lock)
      if (provisional) leaseOf(this.#lock).confirmSoon()
    }
  }

  /** The store reserved tokens with this grant, and others are behind: the lease is passed on to them. */
  #beginTenancy(lock: Lock, tokens: number | undefined): void {
    const { next } = this
    if (!Number.isSafeInteger(tokens) || (tokens as number) < 2 || !next || !isSameLease(this.request, next.request))
      return
    const lease = leaseOf(lock)
    if (!lease.isOpen) return
    this.#queue.tenancy?.end()
    this.#queue.tenancy = new Tenancy(this.#host, this.#queue, lease, tokens as number)
  }

  /** A lock of this process was released, and its lease is ours now. */
  inherit(from: Lease, now: number): Lease {
    this.#lock = this.#host.preallocate(this.request)
    const lease = leaseOf(this.#lock)
    lease.inherit(from, now, this.#since)
    this.#settle('granted')
    this.#resolve(this.#lock)
    return lease
  }

  /** What is released in the background belongs to the owner of before: a retry must not be ended by it. */
  #useFreshOwner(): void {
    this.#host.queueHeartbeat.remove(this)
    if (this.request.owner !== undefined) return
    const claim = this.#asks
    const before = claim.owner
    claim.owner = this.#host.identity.next()
    this.#queue.renamed(this, before)
    this.#mayHold = false
    this.#pushed = undefined
  }

  #refused(answer: Refusal, sentAt: number): void {
    const { store, queueHeartbeat } = this.#host
    this.#refusal = this.#queue.latestRefusal = answer
    this.#refusals++
    this.#failure = undefined
    this.#failures = 0
    this.#preallocated ??= this.#host.preallocate(this.request)
    this.#notGrantedAt(sentAt, answer.newest)
    this.#mayHold = store.features.queue || store.blocks === true
    if (this.request.onRefusal?.(answer)) {
      this.fail(new WaitEnded())
      // Others of this process seek the same record, and need not ask for it one after the other.
      for (const each of this.#queue) each.seeRefusal(answer)
    } else if (this.#calledBack) this.due()
    else if (!store.features.queue) return
    else if (this.#asks.queueMs !== undefined) queueHeartbeat.add(this)
    else {
      // The first request only looked.
      this.#asks.queueMs = QUEUE_MS
      this.#notified = true
    }
  }

  /** Another acquisition of this process was refused with this answer. */
  seeRefusal(answer: Refusal): void {
    if (!this.settled && this.request.onRefusal?.(answer)) this.fail(new WaitEnded())
  }

  #notGrantedAt(sentAt: number, newest: bigint | undefined): void {
    // Two answers may overtake each other; the one that was asked for later knows more.
    if (sentAt < this.#contactAt) return
    this.#contactAt = sentAt
    this.#newest = newest
  }

  #failed(error: LeaseholdError): void {
    this.#failure = this.#queue.latestFailure = error
    this.#failures++
    this.#failedAt = this.#host.world.now()
    // The store would give the same answer again.
    if (error instanceof InvalidOptionError || error instanceof UnsupportedError) this.fail(error)
    this.#host.events.emit('error', () => ({ ...requestFacts(this.request), doing: 'acquire', error }))
  }

  /** What became of our queue entry. */
  renewed(answer: Renewed, sentAt: number): void {
    if (this.settled) return
    if (answer.outcome === 'unknown') this.#failed(answer.error as LeaseholdError)
    else {
      this.#failure = undefined
      if (answer.outcome === 'waiting') this.#stillWaiting(answer, sentAt)
      else if (answer.outcome === 'granted') this.#grantedMeanwhile(answer, sentAt)
      else this.notify()
    }
  }

  #stillWaiting({ ahead, newest, blockedMs }: Extract<Renewed, { outcome: 'waiting' }>, sentAt: number): void {
    // An answer to what was sent before our last request knows less than that one's.
    if (sentAt < this.#contactAt || this.#state !== 'waiting') return
    this.#notGrantedAt(sentAt, newest)
    const wasFirst = this.#refusal?.ahead === 0
    if (this.#refusal) this.#refusal.ahead = ahead
    if (ahead > 0) return
    // The waiter ahead is gone, and its leaving may not have been announced: from now on this one asks when a lease has ended.
    if (!wasFirst || !blockedMs) this.notify()
    // A waiter that seeks a record has to ask for it now and then: its holder may keep the key for days.
    else if (!this.request.onRefusal && !this.#refusal?.blocker?.foreign && this.#queue.armed) this.#wait(blockedMs + 1)
  }

  /** The push was lost. The store said that it is ours, with so much left. */
  #grantedMeanwhile({ token, ttlMs }: { token: bigint; ttlMs: number }, sentAt: number): void {
    if (this.#calledBack || this.#remaining(ttlMs, sentAt) <= 0) return this.notify()
    this.#handOff({ granted: true, owner: this.owner, token, ttlMs, provisional: true }, sentAt)
  }

  /** Something happened to the key. Events are hints: all but a grant only make us ask sooner. */
  hear(event: StoreEvent): void {
    if (this.settled) return
    if (event.type === 'granted') {
      if (event.owner === this.owner) this.#grantPushed(event)
    } else if (event.type === 'changed') {
      // Who leads, or what a holder says: nothing to those who only want to be next.
      if (this.request.onRefusal) this.notify()
    } else if (!event.owner || event.owner === this.owner) this.notify()
  }

  /**
   * Another acquisition has come behind this one, which waits because the store did not answer. It may have less time than is left of
   * that pause, and would be told of an outage that is over.
   */
  retryForNewcomer(): void {
    if (this.#state !== 'waiting' || !this.#failure) return
    if (this.#host.world.now() >= this.#failedAt + FRESH_FAILURE_MS) this.#send()
  }

  /** Asks again: at once, or when the request in flight has been answered. */
  notify(): void {
    if (this.#state === 'waiting' || this.#state === 'subscribing') this.#send()
    else this.#notified = true
  }

  /**
   * The process that released the key handed the lease to us. Its token is larger than every token granted before our last
   * contact with the store, so it began after that, and may be counted from there. If little is left then, or the store
   * cannot tell, asking again gives the same grant and its full time.
   */
  #grantPushed(grant: PushedGrant): void {
    const { owner, token, tokens } = grant
    // A hand-off lasts no longer than this, whatever the store makes of its clock and ours: believed for longer, it could outlive the
    // lease if the renewal that follows is not answered.
    const ttlMs = Math.min(grant.ttlMs, QUEUE_MS, this.request.ttlMs)
    this.#pushed = this.#inFlight ? grant : undefined
    const isNewer = this.#newest !== undefined && token > this.#newest
    const enough = this.#remaining(ttlMs, this.#contactAt) >= ttlMs * ENOUGH_LEFT
    if (!isNewer || !enough || this.#calledBack) return this.notify()
    this.#handOff({ granted: true, owner, token, ttlMs, tokens, provisional: true }, this.#contactAt)
  }

  #remaining(ttlMs: number, sentAt: number): number {
    return deadlineOf(sentAt, ttlMs) - this.#host.world.now()
  }

  /** Granted without an answer to a request of ours: the caller goes on first, everything else follows. */
  #handOff(grant: Grant & { provisional: true }, sentAt: number): void {
    const lock = this.#host.hold(this.request, grant, sentAt, this.#since, this.#preallocated)
    this.#lock = lock
    this.#state = 'granted'
    this.#beginTenancy(lock, grant.tokens)
    this.#resolve(lock)
    void SETTLED.then(() =>
      process.nextTick(() => {
        this.#settle('granted')
        leaseOf(lock).latest.confirmSoon()
      }),
    )
  }

  /** The wait is over. */
  override due(): void {
    if (this.settled) return
    const { name } = this.request
    const { store } = this.#host
    const { waitedMs } = this
    // One that only looks is not kept open: ended or not, it would be answered by now.
    if (this.#inFlight && store.blocks && this.#asks.blockMs && !this.#calledBack) return this.#callBack()
    // One that never asked waited behind others of this process: if the server keeps their request open, the key is busy.
    // One whose turn came a moment ago, because that request was given up, knows no more than it did behind it.
    const wasInTurn =
      this.#state === 'queued'
        ? this.#queue.hasOpenRequest
        : this.#host.world.now() - this.#queue.openRequestEndedAt < JUST_BEGUN_MS
    // And a lock that this process was granted meanwhile was in its way.
    const isBehind = wasInTurn || this.#queue.grantedAt >= this.#since
    const known = this.#refusal ?? this.#queue.latestRefusal ?? this.#queue.busyHere(this.#since)
    const refusal = known ?? (isBehind ? { granted: false as const } : undefined)
    if (this.#failure || !refusal) {
      const ahead = this.#state === 'queued' ? this.#queue.latestFailure : undefined
      const failure = this.#failure ?? ahead ?? this.#host.batcher.silence(waitedMs)
      const message = `"${name}" could not be acquired: ${failure.message}`
      return this.fail(new StoreUnavailableError(message, { cause: failure.cause ?? failure }))
    }
    this.fail(this.#host.timedOut(this.request, { waitedMs, heldBy: refusal.blocker?.owner }))
  }

  /** The server keeps our request open. Ended, it is answered; if it is not, the server is silent. */
  #callBack(): void {
    this.#calledBack = true
    const { world, waits, batcher } = this.#host
    waits.set(this, world.now() + LAST_CALL_MS, LAST_CALL_MS)
    void batcher.release({ key: this.key, owner: this.owner })
  }

  fail(error: unknown): void {
    if (this.settled) return
    this.#settle('failed')
    this.#resolve(withFrames(error))
    // Also while a request is still in flight: a store that keeps it open inside the server ends it then.
    if (this.#mayHold) void this.#releaseOwner()
    if (this.#inFlight) void this.#host.cleanup.track(new Promise((resolve) => (this.#cleanedUp = resolve)))
  }

  #settle(state: 'granted' | 'failed'): void {
    const hadNoTurn = this.#state === 'queued'
    this.#state = state
    this.#host.waits.clear(this)
    if (this.#alarm) this.#host.waits.clear(this.#alarm)
    this.#stopListening?.()
    if (hadNoTurn) this.#queue.neverBegan()
    else this.#host.queueHeartbeat.remove(this)
    this.#queue.leave(this, !hadNoTurn)
  }

  /**
   * Whatever our owner has in the store: never while that owner holds or has recorded something. An owner that was given to us
   * may be in use elsewhere, so what it left behind runs out by itself.
   */
  #releaseOwner(): Promise<void> | undefined {
    if (this.request.owner !== undefined) return undefined
    return this.#host.cleanup.release({ key: this.key, owner: this.owner }, this.request.ttlMs)
  }

  /**
   * An answer that came after the acquisition was settled: given up, or granted by a push. What it tells of may be something
   * that nobody will ever release: the store may have decided it after our release.
   */
  #answeredLate(answer: Answer): void {
    const cleaning = this.#cleanUpAfter(answer)
    this.#cleanedUp?.(cleaning)
  }

  #cleanUpAfter(answer: Answer): Promise<void> | undefined {
    const { cleanup, store } = this.#host
    const lease = this.#lock && leaseOf(this.#lock).latest
    if (answer.granted === true) {
      const { owner, token, ttlMs } = answer
      if (lease && lease.owner === owner && lease.token === token) return undefined
      return cleanup.release({ key: this.key, owner, token }, ttlMs)
    }
    if (answer.granted === false && !store.features.queue) return undefined
    if (lease?.isOpen) {
      // The lease may be gone by now, and this request may have been granted once more: nothing else would ever release that.
      if (answer.granted === 'unknown') lease.onEnd = () => void SETTLED.then(() => this.#cleanUpAfter(answer))
      return undefined
    }
    if (lease?.staysInStore) return undefined
    // A release of ours that is in flight is answered first: overtaken by this one, it would be answered `gone` and count as a loss.
    if (lease?.releasing) return cleanup.track(lease.releasing.then(() => this.#releaseOwner()))
    return this.#releaseOwner()
  }

  /** How long to wait for a notification before asking again. */
  #retryDelay(answer: Answer): number {
    const { store, world } = this.#host
    // It stood in the server's own queue until then, and keeps its place there only if it comes back at once.
    const { blockMs } = this.#asks
    if (answer.granted === false && blockMs && world.now() >= this.#contactAt + blockMs * 0.9) return 1
    return retryDelay(answer, {
      queued: store.features.queue,
      armed: this.#queue.armed,
      exclusive: this.exclusive,
      ttlMs: this.request.ttlMs,
      seeksRecord: this.request.onRefusal !== undefined,
      refusals: this.#refusals,
      failures: this.#failures,
      random: world.random,
    })
  }

  #wait(ms: number): void {
    this.#state = 'waiting'
    if (ms === Number.POSITIVE_INFINITY) return
    const { waits, world } = this.#host
    const alarm = (this.#alarm ??= new Alarm(() => this.notify()))
    const dueAt = world.now() + ms
    // The lease in its way ends when it was said to: with every heartbeat of a thousand waiters, most alarms stay as they are.
    if (alarm.queue && Math.abs(alarm.dueAt - dueAt) < SAME_ALARM_MS) return
    waits.set(alarm, dueAt, ms >= 900 ? 1_000 : 0, ms * 0.1)
  }
}
