import {
  InvalidOptionError,
  type LeaseholdError,
  LockTimeoutError,
  StoreUnavailableError,
  UnsupportedError,
} from '../errors.js'
import type { Answer, Claim, Grant, Refusal, Renewed, StoreEvent } from '../store.js'
import type { Ask } from './ask.js'
import { onAbort } from './cancel.js'
import type { Engine } from './engine.js'
import { driftOf } from './lease.js'
import { type Lock, leaseOf } from './lock.js'
import { QUEUE_MS, retryDelay } from './retry-delay.js'
import { isThenable } from './thenable.js'
import { Alarm, Timed } from './timers.js'
import type { WaitQueue } from './wait-queue.js'

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
/** A pushed grant is used as it is if this share of its time is certain to be left; otherwise the store is asked again. */
const ENOUGH_LEFT = 0.5

const SETTLED = Promise.resolve()

/** Ends a wait that has become pointless (`Ask.onRefusal`). Never seen by callers. */
export class WaitEnded extends Error {}

/**
 * Where an acquisition stands:
 *
 * - `queued`: behind others of this process; nothing was sent yet.
 * - `asking`: a request is out.
 * - `subscribing`: refused; waits until notifications would arrive.
 * - `waiting`: until it is notified, or until asking again may help. Its queue entry is renewed by the queue heartbeat.
 * - `granted`, `failed`: settled.
 */
type State = 'queued' | 'asking' | 'subscribing' | 'waiting' | 'granted' | 'failed'

/** One acquisition that may have to wait: asks again whenever that may help, until granted, cancelled or out of time. */
export class Acquisition extends Timed {
  readonly ask: Ask
  readonly key: string
  owner: string
  readonly promise: Promise<Lock>
  /** Neighbours in the wait queue of this process. */
  previous: Acquisition | undefined = undefined
  next: Acquisition | undefined = undefined

  readonly #engine: Engine
  readonly #queue: WaitQueue
  readonly #since: number
  readonly #claim: Claim
  #state: State = 'queued'
  #resolve!: (lock: Lock) => void
  #reject!: (error: unknown) => void
  /** A request is out. Also after the acquisition was settled by something else: its answer is then late. */
  #inFlight = false
  /** Requests travel one after the other with those of other names (`OrderedRequests`). */
  #ordered = false
  /** Something of ours may be in the store: a queue entry, or what an answer that was lost would have told. */
  #mayHold = false
  /** A notification came while a request was out: ask again. */
  #notified = false
  /** The server was told to end the request that it kept open: a grant that comes now was ended with it. */
  #calledBack = false
  #refusal: Refusal | undefined
  #refusals = 0
  #failure: LeaseholdError | undefined
  #failures = 0
  /** When the last request or renewal left that the store answered with "not yours": whatever is granted later began after this. */
  #contactAt = Number.NEGATIVE_INFINITY
  /** The largest token that the store had granted by then. A pushed grant counts only if its token is larger. */
  #newest: bigint | undefined
  /** Allocated while waiting, to keep construction off the hand-off path. */
  #preallocated: Lock | undefined
  #lock: Lock | undefined
  #stopListening: (() => void) | undefined
  /** Resolves when the request that was out at the end has been answered, and nothing is left of it. */
  #cleanedUp: ((cleaning: Promise<void> | undefined) => void) | undefined
  #alarm: Alarm | undefined

  constructor(engine: Engine, queue: WaitQueue, ask: Ask, claim: Claim, since: number) {
    super()
    this.#engine = engine
    this.#queue = queue
    this.ask = ask
    this.key = ask.key
    this.#claim = claim
    this.owner = claim.owner
    this.#since = since
    this.promise = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    if (ask.signal) this.#stopListening = onAbort(ask.signal, () => this.fail(ask.signal?.reason))
  }

  /** Its turn has come: it asks, or waits until asking may help. */
  get begun(): boolean {
    return this.#state !== 'queued'
  }

  get settled(): boolean {
    return this.#state === 'granted' || this.#state === 'failed'
  }

  get waitedMs(): number {
    return this.#engine.world.now() - this.#since
  }

  /** Shared claims may ask beside each other; an exclusive one only when it is first. */
  get exclusive(): boolean {
    return this.ask.weight === this.ask.capacity
  }

  /** From when it is not certain any more that the first answer settles it. */
  limitWait(): void {
    const { waitMs } = this.ask
    if (this.queue || waitMs === Number.POSITIVE_INFINITY) return
    this.#engine.waits.set(this, this.#since + waitMs, waitMs)
  }

  /** `ordered`: it must not overtake, nor be overtaken by, what this instance asked for before. */
  begin(ordered: boolean): void {
    const { store } = this.#engine
    this.#queue.began()
    this.#ordered = ordered && !store.immediate && !store.blocks
    // A request has a time limit of its own. If the wait lasts longer, no timer is needed before the first answer.
    if (store.immediate || store.blocks || this.#ordered || this.ask.waitMs <= store.timeoutMs) this.limitWait()
    if (this.#queue.justReleased && this.ask.waitMs >= COURTEOUS_FROM_MS) {
      this.limitWait()
      this.#wait(COURTESY_MS)
    } else this.#request()
  }

  /** The store answered before this acquisition had to exist. */
  beginRefused(answer: Answer, sentAt: number): void {
    this.#queue.began()
    this.#state = 'asking'
    this.#mayHold = true
    this.#answered(answer, sentAt, true)
  }

  #request(): void {
    const { store, courier, world, ordered } = this.#engine
    const wasArmed = this.#queue.armed
    if (this.#alarm) this.#engine.waits.clear(this.#alarm)
    this.#state = 'asking'
    this.#notified = false
    this.#mayHold = this.#inFlight = true
    if (store.blocks) {
      const left = this.#since + this.ask.waitMs - world.now()
      // A grant counts from when its request was sent: one that stayed open for longer than the ttl would be stale.
      this.#claim.blockMs = Math.max(Math.min(this.#mostOpenMs(), left, this.ask.ttlMs / 2), 0)
    }
    const sentAt = world.now()
    if (this.#ordered) {
      // Only the first request decides about the order; the queue entry keeps it from then on.
      this.#ordered = false
      const isWanted = (): boolean => !this.settled
      const answered = (answer: Answer | undefined, sent: number): void => {
        if (answer) this.#answered(answer, sent, wasArmed)
        else this.#neverSent()
      }
      ordered.send({ claim: this.#claim, isWanted, answered, late: this.#late })
    } else if (store.immediate || store.blocks) {
      const answer = courier.acquire(this.#claim, this.#late)
      if (isThenable(answer)) void answer.then((settled) => this.#answered(settled, sentAt, wasArmed))
      else this.#answered(answer, sentAt, wasArmed)
    } else courier.ask(this.#claim, (answer) => this.#answered(answer, sentAt, wasArmed), this.#late)
  }

  /** A waiter that seeks a record sees it only in a refusal: its first request only looks, and later ones do not stay open for long. */
  #mostOpenMs(): number {
    if (!this.ask.onRefusal) return BLOCK_MS
    return this.#refusals === 0 ? 0 : SEEK_BLOCK_MS
  }

  /** The answer to a request that was answered as unknown long ago. */
  readonly #late = (answer: Answer): void => {
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
      if (!this.settled) this.#afterAnswer(answer)
      return
    }
    this.#refused(answer, sentAt)
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
    if (this.#notified || mayHaveMissed) this.#request()
    else this.#wait(this.#retryDelay(answer))
  }

  #granted(answer: Grant, sentAt: number): void {
    const { owner, token, ttlMs } = answer
    if (this.#calledBack) {
      // The release that ended the open request may have ended this grant.
      void this.#engine.cleanup.release({ key: this.key, owner, token }, ttlMs)
      this.#refusal ??= { granted: false }
      this.due()
    } else if (this.#engine.stale(answer, sentAt)) {
      void this.#engine.cleanup.release({ key: this.key, owner, token }, ttlMs)
      this.#useFreshOwner()
      this.limitWait()
      this.#failed(new StoreUnavailableError(`${this.#engine.store.name} took longer to answer than the ttl lasts`))
      if (!this.settled) this.#afterAnswer(answer)
    } else {
      // A request that was kept open may be granted when most of the time counted from its sending is over: renew soon.
      const provisional = this.#remaining(ttlMs, sentAt) < ttlMs * ENOUGH_LEFT
      const given = provisional ? { ...answer, provisional } : answer
      this.#lock = this.#engine.hold(this.ask, given, sentAt, this.#since)
      this.#settle('granted')
      this.#resolve(this.#lock)
      if (provisional) leaseOf(this.#lock).confirmSoon()
    }
  }

  /** What is released in the background belongs to the owner of before: a retry must not be ended by it. */
  #useFreshOwner(): void {
    this.#engine.queueHeartbeat.remove(this)
    if (this.ask.owner !== undefined) return
    const before = this.owner
    this.owner = this.#claim.owner = this.#engine.identity.next()
    this.#queue.renamed(this, before)
    this.#mayHold = false
  }

  #refused(answer: Refusal, sentAt: number): void {
    const { store, queueHeartbeat } = this.#engine
    this.#refusal = this.#queue.latestRefusal = answer
    this.#refusals++
    this.#failure = undefined
    this.#failures = 0
    this.#preallocated ??= this.#engine.preallocate(this.ask)
    this.#notGrantedAt(sentAt, answer.newest)
    this.#mayHold = store.features.line || store.blocks === true
    if (this.ask.onRefusal?.(answer)) {
      this.fail(new WaitEnded())
      // Others of this process seek the same record, and need not ask for it one after the other.
      for (const each of this.#queue) each.seeRefusal(answer)
    } else if (this.#calledBack) this.due()
    else if (!store.features.line) return
    else if (this.#claim.placeMs !== undefined) queueHeartbeat.add(this)
    else {
      // The first request only looked.
      this.#claim.placeMs = QUEUE_MS
      this.#notified = true
    }
  }

  /** What another acquisition of this process was told. */
  seeRefusal(answer: Refusal): void {
    if (!this.settled && this.ask.onRefusal?.(answer)) this.fail(new WaitEnded())
  }

  #notGrantedAt(sentAt: number, newest: bigint | undefined): void {
    // Two answers may overtake each other; the one that was asked for later knows more.
    if (sentAt < this.#contactAt) return
    this.#contactAt = sentAt
    this.#newest = newest
  }

  #failed(error: LeaseholdError): void {
    this.#failure = error
    this.#failures++
    // Asking again would only be told the same.
    if (error instanceof InvalidOptionError || error instanceof UnsupportedError) this.fail(error)
    const { name, kind } = this.ask
    this.#engine.events.emit('error', () => ({ name, kind, doing: 'acquire', error }))
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
    // The one before us is gone, and nobody may have told us: from now on it is ours to ask, when a lease has ended.
    if (!wasFirst || !blockedMs) this.notify()
    // A waiter that seeks a record has to ask for it now and then: its holder may keep the key for days.
    else if (!this.ask.onRefusal && !this.#refusal?.blocker?.foreign && this.#queue.armed) this.#wait(blockedMs + 1)
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
      if (this.ask.onRefusal) this.notify()
    } else if (!event.owner || event.owner === this.owner) this.notify()
  }

  /** Asks again: at once, or when the request that is out has been answered. */
  notify(): void {
    if (this.#state === 'waiting' || this.#state === 'subscribing') this.#request()
    else this.#notified = true
  }

  /**
   * The process that released the key handed the lease to us. Its token is larger than every token granted before our last
   * contact with the store, so it began after that, and may be counted from there. If little is left then, or the store
   * cannot tell, asking again gives the same grant and its full time.
   */
  #grantPushed({ owner, token, ttlMs }: { owner: string; token: bigint; ttlMs: number }): void {
    const isNewer = this.#newest !== undefined && token > this.#newest
    const enough = this.#remaining(ttlMs, this.#contactAt) >= ttlMs * ENOUGH_LEFT
    if (!isNewer || !enough || this.#calledBack) return this.notify()
    this.#handOff({ granted: true, owner, token, ttlMs, provisional: true }, this.#contactAt)
  }

  #remaining(ttlMs: number, sentAt: number): number {
    return sentAt + ttlMs - driftOf(ttlMs) - this.#engine.world.now()
  }

  /** Granted without an answer to a request of ours: the caller goes on first, everything else follows. */
  #handOff(grant: Grant & { provisional: true }, sentAt: number): void {
    const lock = this.#engine.hold(this.ask, grant, sentAt, this.#since, this.#preallocated)
    this.#lock = lock
    this.#state = 'granted'
    this.#resolve(lock)
    void SETTLED.then(() =>
      process.nextTick(() => {
        this.#settle('granted')
        leaseOf(lock).confirmSoon()
      }),
    )
  }

  /** The wait is over. */
  override due(): void {
    if (this.settled) return
    const { name, kind } = this.ask
    const { store, events } = this.#engine
    const { waitedMs } = this
    if (this.#inFlight && store.blocks && !this.#calledBack) return this.#callBack()
    // One that never asked waited behind others of this process: if these keep a request open, the key is busy.
    const isBehind = this.#state === 'queued' && store.blocks
    const refusal = this.#refusal ?? this.#queue.latestRefusal ?? (isBehind ? { granted: false as const } : undefined)
    if (this.#failure || !refusal) {
      const failure = this.#failure ?? this.#engine.courier.silence(waitedMs)
      const message = `"${name}" could not be acquired: ${failure.message}`
      return this.fail(new StoreUnavailableError(message, { cause: failure.cause ?? failure }))
    }
    const heldBy = refusal.blocker?.owner
    events.emit('timeout', () => ({ name, kind, waitedMs, heldBy }))
    this.fail(new LockTimeoutError(name, { waitedMs, heldBy }))
  }

  /** The server keeps our request open. Ended, it is answered; if it is not, the server is silent. */
  #callBack(): void {
    this.#calledBack = true
    const { world, waits, courier } = this.#engine
    waits.set(this, world.now() + LAST_CALL_MS, LAST_CALL_MS)
    void courier.release({ key: this.key, owner: this.owner })
  }

  fail(error: unknown): void {
    if (this.settled) return
    this.#settle('failed')
    this.#reject(error)
    // Also while a request is still out: a store that keeps it open inside the server ends it then.
    if (this.#mayHold) void this.#releaseOwner()
    if (this.#inFlight) void this.#engine.cleanup.track(new Promise((resolve) => (this.#cleanedUp = resolve)))
  }

  #settle(state: 'granted' | 'failed'): void {
    const hadNoTurn = this.#state === 'queued'
    this.#state = state
    this.#engine.waits.clear(this)
    if (this.#alarm) this.#engine.waits.clear(this.#alarm)
    this.#stopListening?.()
    this.#engine.queueHeartbeat.remove(this)
    if (hadNoTurn) this.#queue.began()
    this.#queue.leave(this)
  }

  /**
   * Whatever our owner has in the store: never while that owner holds or has recorded something. An owner that was given to us
   * may be in use elsewhere, so what it left behind runs out by itself.
   */
  #releaseOwner(): Promise<void> | undefined {
    if (this.ask.owner !== undefined) return undefined
    return this.#engine.cleanup.release({ key: this.key, owner: this.owner }, this.ask.ttlMs)
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
    const { cleanup, store } = this.#engine
    const lease = this.#lock && leaseOf(this.#lock)
    if (answer.granted === true) {
      const { owner, token, ttlMs } = answer
      if (lease && lease.owner === owner && lease.token === token) return undefined
      return cleanup.release({ key: this.key, owner, token }, ttlMs)
    }
    if (answer.granted === false && !store.features.line) return undefined
    if (lease && (lease.isHere || lease.staysInStore)) return undefined
    // A release of ours that is on its way is answered first: overtaken by this one, it would be told that the lock was lost.
    if (lease?.releasing) return cleanup.track(lease.releasing.then(() => this.#releaseOwner()))
    return this.#releaseOwner()
  }

  /** How long to wait for a notification before asking again. */
  #retryDelay(answer: Answer): number {
    const { store, world } = this.#engine
    // It stood in the server's own queue until then, and keeps its place there only if it comes back at once.
    const { blockMs } = this.#claim
    if (answer.granted === false && blockMs && world.now() >= this.#contactAt + blockMs * 0.9) return 1
    return retryDelay(answer, {
      queued: store.features.line,
      armed: this.#queue.armed,
      exclusive: this.exclusive,
      ttlMs: this.ask.ttlMs,
      seeksRecord: this.ask.onRefusal !== undefined,
      refusals: this.#refusals,
      failures: this.#failures,
      random: world.random,
    })
  }

  #wait(ms: number): void {
    this.#state = 'waiting'
    if (ms === Number.POSITIVE_INFINITY) return
    const { waits, world } = this.#engine
    const alarm = (this.#alarm ??= new Alarm(() => this.notify()))
    waits.set(alarm, world.now() + ms, ms >= 900 ? 1_000 : 0, ms * 0.1)
  }
}
