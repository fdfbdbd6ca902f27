import type { Answer, Claim, Store } from '../store.js'
import type { World } from '../util/world.js'
import type { Batcher } from './batcher.js'
import { waitingClaimOf } from './claim.js'
import type { Cleanup } from './cleanup.js'
import type { Identity } from './identity.js'
import { cleanUpAfter, releaseOwner, type SettledAcquisition } from './late-answer.js'
import type { OrderedRequests } from './ordered-requests.js'
import type { AcquireRequest } from './request.js'
import { isSameLease, TENANCY_TOKENS } from './tenancy.js'
import { isThenable } from './thenable.js'

/**
 * How long the server may keep one request open, in milliseconds. The time limit of the request is longer by as much,
 * so a server that has fallen silent is noticed that much later.
 */
const BLOCK_MS = 5_000

/** The same for a waiter that seeks a record, in milliseconds. Short, because it sees the record only in a refusal. */
const SEEK_BLOCK_MS = 500

/**
 * How long an open request may take to be answered once a release has ended it, in milliseconds. The caller, whose
 * wait is over, waits for that answer: it tells a busy key from a silent server.
 */
const LAST_CALL_MS = 500

/** What attempts need from the instance. */
export interface ClaimAttemptsHost {
  readonly store: Store
  readonly world: World
  readonly batcher: Batcher
  readonly cleanup: Cleanup
  readonly identity: Identity
  readonly ordered: OrderedRequests
  /** The store answers at once: a waiter that asks when a lock is released loses no time by that. */
  readonly answersAtOnce: boolean
}

/** An acquisition, as its attempts see it. */
export interface AttemptingAcquisition extends SettledAcquisition {
  readonly settled: boolean
  /** When it began to wait. */
  readonly since: number
  /** `wasArmed`: a notification would have arrived when the request was sent. */
  answered(answer: Answer, sentAt: number, wasArmed: boolean): void
  /** Ask again. */
  notify(): void
}

/**
 * The attempts of one acquisition: the same claim, sent one time after the other, and what they may leave behind in the store. Made with the
 * first: most waiters of a crowd are passed a lease and never ask.
 */
export class ClaimAttempts {
  readonly claim: Claim
  readonly #host: ClaimAttemptsHost
  readonly #acquisition: AttemptingAcquisition
  /** A request is in flight. Also after the acquisition was settled by something else: its answer is then late. */
  inFlight = false
  /** Something of ours may be in the store: a queue entry, or a grant whose answer was lost. */
  mayHold = false
  /** The request that the server kept open was ended: a grant that comes now was ended with it. */
  calledBack = false
  /** Until then the server may keep the request in flight open. */
  #openUntil: number = Number.NEGATIVE_INFINITY
  /** Resolves when the request that was in flight at the end has been answered, and nothing is left of it. */
  #cleanedUp: ((cleaning: Promise<void> | undefined) => void) | undefined = undefined

  constructor(host: ClaimAttemptsHost, acquisition: AttemptingAcquisition, claim?: Claim) {
    this.#host = host
    this.#acquisition = acquisition
    this.claim = claim ?? waitingClaimOf(acquisition.request, host.identity)
  }

  /** The server may keep the request open. Once that has used up its time it is an outage, also if a freeze made its timer late. */
  get isOpen(): boolean {
    return this.inFlight && this.#host.world.now(true) < this.#openUntil
  }

  /** `isOrdered`: it travels with those of other names, one after the other. `refusals`: how often it was refused before. */
  send(isOrdered: boolean, wasArmed: boolean, refusals: number): void {
    const { store, batcher, world, ordered, answersAtOnce } = this.#host
    const { claim } = this
    const late = (answer: Answer): void => this.#answeredAfterUnknown(answer)
    const sentAt = world.now()
    this.mayHold = this.inFlight = true
    if (store.blocks) this.#keepOpen(sentAt, refusals)
    if (isOrdered) {
      const isWanted = (): boolean => !this.#acquisition.settled
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

  /** For how long the server may keep the request open. */
  #keepOpen(sentAt: number, refusals: number): void {
    const { request, since } = this.#acquisition
    // A waiter that seeks a record sees it only in a refusal: its first request only looks, and later ones do not stay open for long.
    const most = !request.onRefusal ? BLOCK_MS : refusals === 0 ? 0 : SEEK_BLOCK_MS
    // A grant counts from when its request was sent: one that stayed open for longer than the ttl would be stale.
    const blockMs = Math.max(Math.min(most, since + request.waitMs - sentAt, request.ttlMs / 2), 0)
    this.claim.blockMs = blockMs
    this.#openUntil = blockMs > 0 ? sentAt + this.#host.store.timeoutMs + blockMs : sentAt
  }

  #answered(answer: Answer, sentAt: number, wasArmed: boolean): void {
    this.inFlight = false
    if (this.#acquisition.settled) this.#answeredLate(answer)
    else this.#acquisition.answered(answer, sentAt, wasArmed)
  }

  /** It was given up before its request left. */
  #neverSent(): void {
    this.inFlight = false
    this.#cleanedUp?.(undefined)
  }

  /** The answer to a request that was answered as unknown long ago. */
  #answeredAfterUnknown(answer: Answer): void {
    if (this.#acquisition.settled) this.#answeredLate(answer)
    // Asking again gives the same grant, and how long it lasts from now on.
    else if (answer.granted === true) this.#acquisition.notify()
  }

  #answeredLate(answer: Answer): void {
    const cleaning = cleanUpAfter(this.#host, this.#acquisition, answer)
    this.#cleanedUp?.(cleaning)
  }

  /**
   * The wait is over: ends the request that the server keeps open, by a release. Returns how long its answer may
   * take, in milliseconds; if there is none by then, the server is silent. 0: no request is open, or it was ended
   * before.
   */
  callBack(): number {
    const { store, batcher } = this.#host
    const { key, owner, blockMs } = this.claim
    // One that only looks is not kept open: ended or not, it would be answered by now.
    if (!this.inFlight || !store.blocks || !blockMs || this.calledBack) return 0
    this.calledBack = true
    void batcher.release({ key, owner })
    return LAST_CALL_MS
  }

  /** The store reserves tokens for the one behind. If the claim is on its way already, the next one asks for them. */
  reserveFor(next: AcquireRequest | undefined): void {
    const isPassedOn = next !== undefined && isSameLease(this.#acquisition.request, next)
    this.claim.tokens = isPassedOn ? TENANCY_TOKENS : undefined
  }

  /** What is released in the background belongs to the owner of before: a retry must not be ended by it. */
  useFreshOwner(): void {
    this.claim.owner = this.#host.identity.next()
    this.mayHold = false
  }

  /** The acquisition has failed. */
  giveUp(): void {
    // Also while a request is still in flight: a store that keeps it open inside the server ends it then.
    if (this.mayHold) void releaseOwner(this.#host, this.#acquisition)
    if (this.inFlight) void this.#host.cleanup.track(new Promise((resolve) => (this.#cleanedUp = resolve)))
  }
}
