import { InvalidOptionError, StoreUnavailableError, UnsupportedError } from '../errors.js'
import type { LeaseholdError, LockTimeoutError } from '../errors.js'
import type { Answer, Claim, Grant, Refusal, Renewed } from '../store.js'
import { AnswerLog, type ProvisionalGrant, type PushedGrant, grantFound } from './answer-log.js'
import { type AttemptingAcquisition, ClaimAttempts, type ClaimAttemptsHost } from './claim-attempts.js'
import { isEnoughLeft, isStale } from './deadline.js'
import { type Events, requestFacts } from './events.js'
import { withFrames } from './frames.js'
import type { Lease, LeaseGrant } from './lease.js'
import { type Lock, leaseOf } from './lock.js'
import type { QueueHeartbeat } from './queue-heartbeat.js'
import { type AcquireRequest, WaitEnded } from './request.js'
import { QUEUE_MS, retryDelay, setRetryAlarm } from './retry-delay.js'
import { type TenancyHost, beginTenancy } from './tenancy.js'
import { isThenable } from './thenable.js'
import { Alarm } from './timers.js'
import type { WaitQueue } from './wait-queue.js'
import { Waiter } from './waiter.js'

/** What an acquisition needs from its instance. */
export interface AcquireHost extends ClaimAttemptsHost, TenancyHost {
  readonly events: Events
  readonly queueHeartbeat: QueueHeartbeat
  /** Makes a lock of a grant. */
  hold(request: AcquireRequest, grant: LeaseGrant, sentAt: number, since: number, lock?: Lock): Lock
  /** The lock that a grant will complete: allocated while waiting, to keep construction off the hand-off path. */
  preallocate(request: AcquireRequest): Lock
  /** The wait is over: what the caller is told. */
  timedOut(request: AcquireRequest, facts: { waitedMs: number; heldBy: string | undefined }): LockTimeoutError
}

/** One acquisition that may have to wait: asks again whenever that may help, until granted, cancelled or out of time. */
export class Acquisition extends Waiter implements AttemptingAcquisition {
  readonly #host: AcquireHost
  readonly #queue: WaitQueue<Acquisition>
  #attempts: ClaimAttempts | undefined = undefined
  #log: AnswerLog | undefined = undefined
  /** The first request must not overtake, or be overtaken by, requests for other names: it uses `OrderedRequests`. */
  #ordered = false
  /** A notification came while a request was in flight: ask again. */
  #notified = false
  /** Allocated while waiting, to keep construction off the hand-off path. */
  #preallocated: Lock | undefined
  #lock: Lock | undefined
  #alarm: Alarm | undefined

  /** `claim`: what the store was asked for before this acquisition had to exist. */
  constructor(host: AcquireHost, queue: WaitQueue<Acquisition>, request: AcquireRequest, since: number, claim?: Claim) {
    super(request, since)
    this.#host = host
    this.#queue = queue
    if (claim) this.#attempts = new ClaimAttempts(host, this, claim)
  }

  get owner(): string {
    return this.#asks.claim.owner
  }

  /** How it asks the store. */
  get #asks(): ClaimAttempts {
    this.#attempts ??= new ClaimAttempts(this.#host, this)
    return this.#attempts
  }

  /** What it was answered, other than a grant. */
  get #answers(): AnswerLog {
    this.#log ??= new AnswerLog()
    return this.#log
  }

  get lease(): Lease | undefined {
    return this.#lock && leaseOf(this.#lock).latest
  }

  /** The server may keep its request open. After a request that failed: false, until the store has answered again. */
  get hasOpenRequest(): boolean {
    return this.#log?.failure === undefined && this.#attempts?.isOpen === true
  }

  /** Sets the timer of the caller's `wait`, once. Before the first answer only if no earlier time limit bounds that. */
  limitWait(): void {
    const { waitMs } = this.request
    if (this.queue || waitMs === Number.POSITIVE_INFINITY) return
    this.#host.waits.set(this, this.since + waitMs, waitMs)
  }

  begin(ordered: boolean): void {
    const { store, answersAtOnce } = this.#host
    this.#queue.began(this)
    this.#ordered = ordered && !answersAtOnce && !store.blocks
    // A request has a time limit of its own. If the wait lasts longer, no timer is needed before the first answer.
    if (answersAtOnce || store.blocks || this.#ordered || this.request.waitMs <= store.timeoutMs) this.limitWait()
    const courtesyMs = this.#queue.courtesyMs(this.request)
    if (courtesyMs === 0) return this.#send()
    this.limitWait()
    this.#wait(courtesyMs)
  }

  /** The store answered before this acquisition had to exist. */
  beginRefused(answer: Answer, sentAt: number): void {
    this.#queue.began(this)
    this.state = 'asking'
    this.#asks.mayHold = true
    this.answered(answer, sentAt, true)
  }

  followed(): void {
    this.#attempts?.reserveFor(this.next?.request)
  }

  #send(): void {
    const attempts = this.#asks
    const isOrdered = this.#ordered
    const wasArmed = this.#queue.armed
    if (this.#alarm) this.#host.waits.clear(this.#alarm)
    this.state = 'asking'
    // Only the first request decides about the order; the queue entry keeps it from then on.
    this.#notified = this.#ordered = false
    this.followed()
    attempts.send(isOrdered, wasArmed, this.#log?.refusals ?? 0)
  }

  answered(answer: Answer, sentAt: number, wasArmed: boolean): void {
    if (answer.granted === true) return this.#granted(answer, sentAt)
    this.limitWait()
    if (answer.granted === 'unknown') {
      this.#failed(answer.error as LeaseholdError)
      if (this.settled) return
      // Its wait is over: another request would only keep the caller waiting.
      if (this.#asks.calledBack) this.due()
      else this.#afterAnswer(answer)
      return
    }
    this.#refused(answer, sentAt)
    const { pushed } = this.#answers
    if (pushed && !this.settled) this.grantPushed(pushed)
    if (this.settled) return
    // The subscription became active while the request was in flight, so a notification may have been missed.
    if (!wasArmed && this.#queue.armed) this.#notified = true
    const becameActive = this.#queue.arm(wasArmed)
    if (!isThenable(becameActive)) return this.#afterAnswer(answer, becameActive)
    this.state = 'subscribing'
    void becameActive.then((active) => {
      if (this.state === 'subscribing') this.#afterAnswer(answer, active)
    })
  }

  #afterAnswer(answer: Answer, mayHaveMissed = false): void {
    if (this.#notified || mayHaveMissed) return this.#send()
    const { store, world } = this.#host
    const { blockMs } = this.#asks.claim
    const known = { request: this.request, log: this.#answers, queue: this.#queue, blockMs, world }
    this.#wait(retryDelay(answer, { ...known, queued: store.features.queue }))
  }

  #granted(answer: Grant, sentAt: number): void {
    const { store, world, cleanup } = this.#host
    const { owner, token, ttlMs } = answer
    if (this.#asks.calledBack) {
      // The release that ended the open request may have ended this grant.
      void cleanup.release({ key: this.key, owner, token }, ttlMs)
      this.#answers.refusal ??= { granted: false }
      this.due()
    } else if (isStale(answer, sentAt, world)) {
      // A given owner stays: the next request is granted the same lease, which a release on its way would end.
      if (this.request.owner === undefined) void cleanup.release({ key: this.key, owner, token }, ttlMs)
      this.#useFreshOwner()
      this.limitWait()
      this.#failed(new StoreUnavailableError(`${store.name} took longer to answer than the ttl lasts`))
      if (!this.settled) this.#afterAnswer(answer)
    } else {
      // A request that was kept open may be granted when most of the time counted from its sending is over: renew soon. Not after
      // a slow answer: a lock without renewals would then be renewed, and end as unreachable instead of expired.
      const provisional = store.blocks === true && !isEnoughLeft(sentAt, ttlMs, world.now())
      const given = provisional ? { ...answer, provisional } : answer
      const lock = this.#host.hold(this.request, given, sentAt, this.since)
      // The answer repeats a grant that was pushed meanwhile.
      const pushed = this.#log?.pushed
      this.#beginTenancy(lock, pushed?.token === token ? pushed.tokens : answer.tokens)
      this.#settle('granted')
      this.resolve(lock)
      if (provisional) leaseOf(lock).confirmSoon()
    }
  }

  #beginTenancy(lock: Lock, tokens: number | undefined): void {
    this.#lock = lock
    if (tokens !== undefined) beginTenancy(this.#host, this.#queue, leaseOf(lock), tokens, this.next?.request)
  }

  /** A lock of this process was released, and its lease is ours now. */
  inherit(from: Lease, now: number): Lease {
    this.#lock = this.#host.preallocate(this.request)
    const lease = leaseOf(this.#lock)
    lease.inherit(from, now, this.since)
    this.#settle('granted')
    this.resolve(this.#lock)
    return lease
  }

  #useFreshOwner(): void {
    this.#host.queueHeartbeat.remove(this)
    if (this.request.owner !== undefined) return
    const before = this.owner
    this.#asks.useFreshOwner()
    this.#queue.renamed(this, before)
    this.#answers.pushed = undefined
  }

  #refused(answer: Refusal, sentAt: number): void {
    const { store, queueHeartbeat } = this.#host
    const { claim, calledBack } = this.#asks
    this.#queue.latestRefusal = answer
    this.#answers.refused(answer, sentAt)
    this.#preallocated ??= this.#host.preallocate(this.request)
    this.#asks.mayHold = store.features.queue || store.blocks === true
    if (this.#seeRefusal(answer)) {
      // Others of this process seek the same record, and need not ask for it one after the other.
      for (const each of this.#queue) each.#seeRefusal(answer)
    } else if (calledBack) this.due()
    else if (!store.features.queue) return
    else if (claim.queueMs !== undefined) queueHeartbeat.add(this)
    else {
      // The first request only looked.
      claim.queueMs = QUEUE_MS
      this.#notified = true
    }
  }

  /** Whether it ends the wait, because it holds what the waiter seeks. */
  #seeRefusal(answer: Refusal): boolean {
    if (this.settled || !this.request.onRefusal?.(answer)) return false
    this.fail(new WaitEnded())
    return true
  }

  #failed(error: LeaseholdError): void {
    this.#queue.latestFailure = error
    this.#answers.failed(error, this.#host.world.now())
    // The store would give the same answer again.
    if (error instanceof InvalidOptionError || error instanceof UnsupportedError) this.fail(error)
    this.#host.events.emit('error', () => ({ ...requestFacts(this.request), doing: 'acquire', error }))
  }

  /** What became of our queue entry. */
  renewed(answer: Renewed, sentAt: number): void {
    if (this.settled) return
    if (answer.outcome === 'unknown') return this.#failed(answer.error as LeaseholdError)
    this.#answers.recovered()
    if (answer.outcome === 'granted') {
      // The push was lost. The store said that it is ours, with so much left.
      this.#take(grantFound(answer, this.owner, sentAt, this.#host.world), sentAt)
    } else if (answer.outcome !== 'waiting') this.notify()
    else if (this.state === 'waiting') this.#waitOn(this.#answers.stillWaiting(answer, sentAt))
  }

  #waitOn(pauseMs: number | undefined): void {
    if (pauseMs === 0) this.notify()
    // A waiter that seeks a record has to ask for it now and then: its holder may keep the key for days.
    else if (pauseMs !== undefined && !this.request.onRefusal && this.#queue.armed) this.#wait(pauseMs)
  }

  retryForNewcomer(): void {
    if (this.state === 'waiting' && this.#log?.hasFailedLongAgo(this.#host.world)) this.#send()
  }

  /** Asks again: at once, or when the request in flight has been answered. */
  notify(): void {
    if (this.state === 'waiting' || this.state === 'subscribing') this.#send()
    else this.#notified = true
  }

  protected grantPushed(pushed: PushedGrant): void {
    const log = this.#answers
    log.pushed = this.#asks.inFlight ? pushed : undefined
    this.#take(log.grantOf(pushed, this.request.ttlMs, this.#host.world), log.contactAt)
  }

  /** Granted without an answer to a request of ours. Undefined: asking again gives the same grant, with more of its time. */
  #take(grant: ProvisionalGrant | undefined, sentAt: number): void {
    if (grant && !this.#asks.calledBack) this.#handOff(grant, sentAt)
    else this.notify()
  }

  /** The caller goes on first, everything else follows. */
  #handOff(grant: ProvisionalGrant, sentAt: number): void {
    const lock = this.#host.hold(this.request, grant, sentAt, this.since, this.#preallocated)
    this.state = 'granted'
    this.#beginTenancy(lock, grant.tokens)
    this.resolve(lock)
    void Promise.resolve().then(() =>
      process.nextTick(() => {
        this.#settle('granted')
        leaseOf(lock).latest.confirmSoon()
      }),
    )
  }

  /** The wait is over. */
  override due(): void {
    if (this.settled) return
    const { world, waits, batcher } = this.#host
    const waitedMs = world.now() - this.since
    const lastCallMs = this.#attempts?.callBack() ?? 0
    if (lastCallMs > 0) return waits.set(this, world.now() + lastCallMs, lastCallMs)
    const refusal = this.#log?.refusal ?? this.#queue.refusalFor(this, this.since)
    if (refusal && !this.#log?.failure)
      return this.fail(this.#host.timedOut(this.request, { waitedMs, heldBy: refusal.blocker?.owner }))
    const ahead = this.begun ? undefined : this.#queue.latestFailure
    const failure = this.#log?.failure ?? ahead ?? batcher.silence(waitedMs)
    const message = `"${this.request.name}" could not be acquired: ${failure.message}`
    this.fail(new StoreUnavailableError(message, { cause: failure.cause ?? failure }))
  }

  fail(error: unknown): void {
    if (this.settled) return
    this.#settle('failed')
    this.resolve(withFrames(error))
    this.#attempts?.giveUp()
  }

  #settle(state: 'granted' | 'failed'): void {
    const hadNoTurn = this.state === 'queued'
    this.state = state
    this.#host.waits.clear(this)
    if (this.#alarm) this.#host.waits.clear(this.#alarm)
    this.stopListening?.()
    if (hadNoTurn) this.#queue.neverBegan()
    else this.#host.queueHeartbeat.remove(this)
    this.#queue.leave(this, !hadNoTurn)
  }

  #wait(ms: number): void {
    this.state = 'waiting'
    if (ms === Number.POSITIVE_INFINITY) return
    const { waits, world } = this.#host
    this.#alarm ??= new Alarm(() => this.notify())
    setRetryAlarm(this.#alarm, waits, world.now(), ms)
  }
}
