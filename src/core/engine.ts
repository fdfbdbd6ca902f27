import { ClosedError, type LeaseholdError, LockLostError, LockTimeoutError, UnsupportedError } from '../errors.js'
import { TransientMap } from '../util/transient-map.js'
import type { World } from '../util/world.js'
import type { Answer, Awaitable, Claim, Grant, HolderView, Released, Store, StoreEvent } from '../store.js'
import { type AcquireHost, Acquisition } from './acquire.js'
import type { AcquireRequest } from './request.js'
import { type AttemptHost, attempt } from './attempt.js'
import { Cleanup } from './cleanup.js'
import { Batcher } from './batcher.js'
import { deadlineOf } from './deadline.js'
import { Events, requestFacts } from './events.js'
import { Heartbeat } from './heartbeat.js'
import { Identity } from './identity.js'
import { Lease, type LeaseGrant, type LeaseHost } from './lease.js'
import { emitAcquired, emitFailure, emitReleased } from './lease-events.js'
import { LeaseList } from './lease-list.js'
import { Lock, leaseOf } from './lock.js'
import { OrderedRequests } from './ordered-requests.js'
import { QueueHeartbeat } from './queue-heartbeat.js'
import { QUEUE_MS } from './retry-delay.js'
import { Revocations } from './revocations.js'
import { StallMonitor } from './stall-monitor.js'
import { Subscriptions } from './subscriptions.js'
import type { CallFacts } from './timed-call.js'
import { Timers } from './timers.js'
import { type NotTogether, acquireTogether } from './together.js'
import { endUnanswered, isAcquireTraced, isHoldTraced, traceAcquire, traceHold, traceHoldEnd } from './tracing.js'
import { WaitQueue, type WaitQueueHost } from './wait-queue.js'
import { isView } from './well-formed.js'

const YES: Promise<boolean> = Promise.resolve(true)
const NO: Promise<boolean> = Promise.resolve(false)

/** So many steals are remembered: an answer that they overtook arrives within seconds. */
const MOST_STOLEN = 1_000

/** Leases are verified at most this often, however often a client reports trouble: a flood would only make it worse. */
const VERIFY_EVERY_MS = 1_000

/** What `createLocks` runs on: everything one instance holds and waits for, on one store. */
export class Engine implements LeaseHost, AcquireHost, AttemptHost, WaitQueueHost<Acquisition> {
  readonly store: Store
  readonly world: World
  readonly batcher: Batcher
  readonly cleanup: Cleanup
  readonly events: Events
  readonly identity: Identity
  /** When leases are due. */
  readonly heartbeats: Timers
  /** Renews those that are. */
  readonly heartbeat: Heartbeat
  readonly stalls: StallMonitor
  /** When waits end or ask again. They keep the process alive: callers await them. */
  readonly waits: Timers
  readonly subscriptions: Subscriptions
  readonly revocations: Revocations
  readonly ordered: OrderedRequests
  readonly queueHeartbeat: QueueHeartbeat
  readonly answersAtOnce: boolean
  closingReason: ClosedError | undefined = undefined

  readonly #queues = new TransientMap<string, WaitQueue<Acquisition>>()
  /** By key, the token of the last steal of this instance: grants with a smaller token were stolen. */
  readonly #stolen = new Map<string, bigint>()
  /** What this instance believes to hold: of each owner its latest lease. */
  readonly #leases = new LeaseList<Lease>()
  /** Nobody keeps an order between processes: neither a queue nor the server's own. */
  readonly #unordered: boolean
  readonly #unsubscribe: (() => void) | undefined
  #onIdle: (() => void) | undefined
  #closed: Promise<void> | undefined

  constructor(store: Store, world: World, onCall?: (facts: CallFacts) => void) {
    this.store = store
    this.world = world
    this.events = new Events(store.name)
    this.batcher = new Batcher(store, world, onCall)
    this.cleanup = new Cleanup(this.batcher, world)
    this.identity = new Identity(world)
    this.heartbeats = new Timers(world)
    this.heartbeat = new Heartbeat(this.batcher, world)
    this.stalls = new StallMonitor(world, () => this.#leases.size > 0)
    this.waits = new Timers(world, true)
    const onError = (error: unknown): void => this.#subscribeFailed(error)
    const onGrant = (key: string | undefined, event: StoreEvent): void => this.#grantPushed(key, event)
    this.subscriptions = new Subscriptions(store, this.heartbeats, { onError, onGrant })
    const find = (owner: string): Lease | undefined => this.#leases.find(owner)
    this.revocations = new Revocations(store, { timers: this.heartbeats, world, find, onError })
    this.ordered = new OrderedRequests(this.batcher)
    this.queueHeartbeat = QueueHeartbeat.of(store, this.batcher, world)
    this.answersAtOnce = this.batcher.answersAtOnce
    this.#unordered = !store.features.queue && !store.blocks
    this.#unsubscribe = store.onPossibleLoss?.((affected) => this.#verify(affected))
  }

  /** Waits for `request.waitMs`; rejects with `LockTimeoutError` if it stayed busy. */
  acquire(request: AcquireRequest): Promise<Lock> {
    return isAcquireTraced() ? this.#traced(request) : this.#acquire(request)
  }

  /** Apart from `acquire`: V8 would allocate for the closure at each call, traced or not. */
  #traced(request: AcquireRequest): Promise<Lock> {
    return traceAcquire(this, request, () => this.#acquire(request))
  }

  /** For one of several names, which have a trace in common. */
  acquireUntraced(request: AcquireRequest): Promise<Lock> {
    return this.#acquire(request)
  }

  #acquire(request: AcquireRequest): Promise<Lock> {
    const refused = this.#refuseEarly(request)
    if (refused) return refused
    // A steal does not queue for what it takes by force.
    if (request.waitMs === 0 || request.steal) return this.#once(request)
    let queue = this.#queues.size === 0 ? undefined : this.#queues.get(request.key)
    let claim: Claim | undefined
    let answer: Answer | undefined
    if (!queue && this.answersAtOnce) {
      const sentAt = this.world.now()
      claim = this.claim(request, request.onRefusal ? undefined : QUEUE_MS)
      answer = this.batcher.acquire(claim) as Answer
      if (answer.granted === true) {
        return Promise.resolve(this.hold(request, answer, sentAt, sentAt, this.preallocate(request), sentAt))
      }
    }
    const since = this.world.now()
    if (!queue) this.#queues.set(request.key, (queue = new WaitQueue(this, request)))
    const acquisition = new Acquisition(this, queue, request, claim, since)
    queue.enqueue(acquisition)
    if (answer?.granted === false) acquisition.beginRefused(answer, since)
    else queue.pump()
    if (!acquisition.begun) {
      acquisition.limitWait()
      queue.retryFirst()
      // It seeks a record that may be there already: the first one looks for all of them.
      if (request.onRefusal) queue.askFirst()
    }
    return acquisition.promise
  }

  /** One attempt. Null when busy; rejects at once when the store fails. */
  tryAcquire(request: AcquireRequest): Promise<Lock | null> {
    return isAcquireTraced() ? traceAcquire(this, request, () => this.#tryAcquire(request)) : this.#tryAcquire(request)
  }

  #tryAcquire(request: AcquireRequest): Promise<Lock | null> {
    return (
      this.#refuseEarly(request) ?? this.#attempt(request).then((outcome) => (outcome instanceof Lock ? outcome : null))
    )
  }

  /** Whether the store can decide these in one call. */
  canAcquireTogether(requests: readonly AcquireRequest[]): boolean {
    const { features, maxBatch = Number.POSITIVE_INFINITY } = this.store
    const most = features.atomic === true ? maxBatch : Number(features.atomic)
    if (requests.length > most) return false
    return new Set(requests.map((request) => this.store.partition?.(request.key))).size === 1
  }

  /** One attempt at all of them: the locks, or why not, as far as that is known. Rejects when the caller aborts. */
  async acquireTogether(requests: readonly AcquireRequest[]): Promise<Lock[] | NotTogether> {
    const refused = this.#refuseEarly(requests[0] as AcquireRequest)
    if (refused) return refused
    const claims = requests.map((request) => this.claim(request, undefined))
    return acquireTogether(this, requests, claims)
  }

  /** The wait is over: what the caller is told. */
  timedOut(request: AcquireRequest, facts: { waitedMs: number; heldBy: string | undefined }): LockTimeoutError {
    this.events.emit('timeout', () => ({ ...requestFacts(request), ...facts }))
    return new LockTimeoutError(request.name, facts)
  }

  /** Asks what a store may or may not be able to answer: to look, or to break glass. */
  async read<T>(
    what: string,
    call: (store: Store) => Awaitable<T> | undefined,
    kind: 'read' | 'revoke' = 'read',
  ): Promise<T> {
    let failure: unknown
    let isSupported = true
    const failed = (error: unknown): undefined => {
      failure = error
      return undefined
    }
    const ask = (): Awaitable<T | undefined> => {
      const asked = call(this.store)
      isSupported = asked !== undefined
      return asked as Awaitable<T | undefined>
    }
    const answer = await this.batcher.within<T | undefined>({ call: kind, items: 1 }, ask, failed)
    if (failure !== undefined) throw failure
    if (!isSupported) throw new UnsupportedError(`${what} is not supported by the ${this.store.name} store`)
    if (!isView(answer)) throw this.batcher.misunderstood(answer)
    return answer as T
  }

  /** Break glass: ends every lease of this key. Holders in this instance know at once, whatever wake-ups the store has. */
  async revoke(key: string): Promise<HolderView[]> {
    const cut = await this.read('forceRelease', (store) => store.revoke?.(key), 'revoke')
    for (const { owner, token } of cut) {
      const lease = this.#leases.find(owner)
      // Not a later grant of the same owner, whose request overtook the answer.
      if (token === undefined || lease?.token === token) lease?.lose('revoked')
    }
    return cut
  }

  /** The acquisitions of this process that wait, in no particular order between names. */
  *waiting(): Generator<Acquisition> {
    // One that was just handed its lock may not have left the queue yet.
    for (const queue of this.#queues.values()) {
      for (const acquisition of queue) if (!acquisition.settled) yield acquisition
    }
  }

  /** A grant becomes a lock. */
  hold(
    request: AcquireRequest,
    grant: LeaseGrant,
    sentAt: number,
    since: number,
    lock: Lock = this.preallocate(request),
    now: number = this.world.now(),
  ): Lock {
    const lease = leaseOf(lock)
    // An owner that was given to us may hold already.
    const before = request.owner === undefined ? undefined : this.#leases.find(grant.owner)
    if (before) this.#leases.remove(before)
    lease.owner = grant.owner
    this.#leases.add(lease)
    this.revocations.begin()
    lease.begin(grant, sentAt, now, request.since ?? since)
    if (lease.isOpen && isHoldTraced()) traceHold(lease)
    if (this.events.isHeard('acquired')) emitAcquired(lease)
    this.revocations.loseIfEnded(lease)
    if (request.steal) this.#stole(lease)
    // Its answer was overtaken by that of a steal of ours, which took it away.
    else if (this.#stolen.size > 0 && lease.token < (this.#stolen.get(request.key) ?? 0n)) lease.lose('revoked')
    return lock
  }

  /** Holders in this instance know at once, whatever wake-ups the store has; those whose answer is still on its way, when it comes. */
  #stole(steal: Lease): void {
    for (const each of this.#leases.all()) if (each.key === steal.key && each.token < steal.token) each.lose('revoked')
    if (this.#stolen.size >= MOST_STOLEN) this.#stolen.clear()
    this.#stolen.set(steal.key, steal.token)
  }

  /** What a grant will make a lock of. */
  preallocate(request: AcquireRequest): Lock {
    return new Lock(new Lease(this, request))
  }

  /** Whether a grant came too late to be of any use. */
  stale(grant: Grant, sentAt: number): boolean {
    return deadlineOf(sentAt, grant.ttlMs) <= this.world.now()
  }

  /** Once per lease: a second caller gets the first one's answer. */
  release(lease: Lease): Promise<boolean> {
    // Called again from inside of its own release, by a listener: what the store has may be the successor's by now.
    if (!lease.releasing && lease.released && !lease.loss && !lease.staysInStore) return YES
    lease.releasing ??= this.#release(lease)
    return lease.releasing
  }

  #release(lease: Lease): Promise<boolean> {
    if (lease.loss) {
      // What remains of it in the store, if anything, is in the way of others.
      const { why } = lease.loss
      if (why !== 'gone' && why !== 'revoked' && !lease.staysInStore) void this.cleanup.release(lease, lease.storedMs)
      return NO
    }
    if (lease.staysInStore) return this.#releaseRecorded(lease)
    if (this.#queues.size > 0 && this.#passOn(lease)) return YES
    if (!this.answersAtOnce) return this.#releaseNow(lease)
    const queue = this.#queues.size > 0 ? this.#queues.get(lease.key) : undefined
    // A store in this process judges by the same clock, and says so itself if it is too late.
    endUnanswered(lease)
    const wasReleased = this.#wasReleased(lease, this.batcher.release(lease) as Released)
    // In the same step: an acquisition of another instance must not get in before one that waited here.
    queue?.pump()
    return wasReleased ? YES : NO
  }

  /** The next waiter of this process goes on with the lease, as long as its tenancy lasts. The store is not asked. */
  #passOn(lease: Lease): boolean {
    const queue = this.#queues.get(lease.key)
    if (queue?.tenancy?.lease !== lease || this.closingReason) return false
    // The store is not asked whether the lease is still there: it has to be able to say so by itself.
    if (!this.revocations.isLive) return false
    const { tenancy, head } = queue
    // One reading for all that it decides: nothing else runs in between.
    const now = this.world.now(true)
    if (!head || head.begun || !tenancy.admits(head.request, now)) return false
    const successor = head.inherit(lease, now)
    this.#leases.remove(lease)
    this.#leases.add(successor)
    lease.end()
    tenancy.passedTo(successor, queue.head?.request)
    if (this.events.isHeard('released')) emitReleased(lease)
    // Last: a listener may release either of them.
    if (successor.isOpen && isHoldTraced()) traceHold(successor)
    if (this.events.isHeard('acquired')) emitAcquired(successor)
    return true
  }

  /** The release is sent before the bookkeeping, because others wait for it. If the deadline had passed by then, it is a loss all the same. */
  #releaseNow(lease: Lease): Promise<boolean> {
    const answered = new Promise<boolean>((resolve) => {
      this.batcher.releaseThen(lease, (answer) => resolve(this.#wasReleased(lease, answer)))
    })
    lease.noticeDeadline()
    if (lease.loss) return NO
    endUnanswered(lease)
    if (this.#unordered) this.subscriptions.expectRelease(lease.key)
    return answered
  }

  /** A record is being written, or may have been: it is not ours to erase. If it was not written, the lease runs out. */
  async #releaseRecorded(lease: Lease): Promise<boolean> {
    await lease.renewals.recorded()
    if (!lease.released && !lease.loss) lease.end()
    return false
  }

  retired(lease: Lease): void {
    if (lease.trace) traceHoldEnd(lease)
    this.heartbeats.clear(lease)
    if (this.#queues.size > 0 && !lease.successor) this.#endTenancy(lease)
    if (!this.#leases.remove(lease)) return
    this.revocations.end()
    this.#onIdle?.()
  }

  /** Released to the store, or lost: the next waiter has to ask. */
  #endTenancy(lease: Lease): void {
    const tenancy = this.#queues.get(lease.key)?.tenancy
    if (tenancy?.lease === lease) tenancy.end()
  }

  queueEmptied(queue: WaitQueue<Acquisition>): void {
    if (this.#queues.get(queue.key) === queue) this.#queues.delete(queue.key)
  }

  /** What this instance believes to hold. */
  leases(): Iterable<Lease> {
    return this.#leases.all()
  }

  async releaseAll(): Promise<void> {
    await Promise.all(
      this.#leases.all().map((lease) => {
        // The work under it did not release it: its signal aborts before another process can hold the lock.
        if (!lease.staysInStore) lease.takeBack(new LockLostError(lease.request.name, 'released'))
        return this.release(lease)
      }),
    )
  }

  /** No new grants; signals abort, and work may finish while its leases are renewed; then everything is released. */
  close(graceMs: number): Promise<void> {
    // A second call may shorten the time that the first one gave, and never prolongs it.
    if (this.#closed && this.#hurry) this.world.after(graceMs, this.#hurry, true)
    this.#closed ??= this.#close(graceMs)
    return this.#closed
  }

  #hurry: (() => void) | undefined

  async #close(graceMs: number): Promise<void> {
    this.closingReason = new ClosedError('closing: locks.close() was called')
    for (const queue of [...this.#queues.values()]) for (const each of queue) each.fail(this.closingReason)
    for (const lease of this.#leases.all()) lease.announceClosing(this.closingReason)
    await this.#idle(graceMs)
    await this.releaseAll()
    // Requests from before may be granted only now, and have to be released.
    await this.cleanup.finish()
    this.subscriptions.closeAll()
    this.revocations.close()
    this.#unsubscribe?.()
    this.waits.stop()
    this.heartbeats.stop()
    this.stalls.stop()
  }

  #refuseEarly(request: AcquireRequest): Promise<never> | undefined {
    if (this.closingReason)
      return Promise.reject(new ClosedError(`"${request.name}" cannot be acquired: locks.close() was called`))
    if (request.signal?.aborted) return Promise.reject(request.signal.reason)
    return undefined
  }

  claim(request: AcquireRequest, queueMs: number | undefined): Claim {
    const { key, weight, capacity, ttlMs, value, announce, steal } = request
    const owner = request.owner ?? this.identity.next()
    const renewed = request.autoRenew && request.maxHoldMs === undefined
    return {
      key,
      owner,
      weight,
      capacity,
      ttlMs,
      value,
      queueMs,
      blockMs: undefined,
      tokens: undefined,
      announce,
      steal,
      renewed,
    }
  }

  async #once(request: AcquireRequest): Promise<Lock> {
    const outcome = await this.#attempt(request)
    if (outcome instanceof Lock) return outcome
    throw this.timedOut(request, { waitedMs: 0, heldBy: outcome.heldBy })
  }

  #attempt(request: AcquireRequest): ReturnType<typeof attempt> {
    return attempt(this, request, this.claim(request, undefined))
  }

  #wasReleased(lease: Lease, answer: Released): boolean {
    if (lease.loss) {
      if (answer.outcome === 'unknown') void this.cleanup.release(lease, lease.storedMs)
      return false
    }
    if (answer.outcome !== 'gone' && lease.trace) traceHoldEnd(lease)
    if (answer.outcome === 'released') {
      if (answer.hasWaiters && this.#unordered) this.subscriptions.attend(lease.key, this.world.now())
      if (this.events.isHeard('released')) emitReleased(lease)
      return true
    }
    if (answer.outcome === 'gone') lease.foundGone()
    else {
      emitFailure(lease, 'release', answer.error as LeaseholdError)
      void this.cleanup.release(lease, lease.storedMs)
    }
    return false
  }

  #verify(affected: ((key: string) => boolean) | undefined): void {
    const now = this.world.now()
    for (const lease of this.#leases.all()) {
      if (affected && !affected(lease.key)) continue
      lease.renewals.verifySoon(now, VERIFY_EVERY_MS)
    }
  }

  /** A key of undefined: pushes may have been lost, so that every waiter asks again. */
  #grantPushed(key: string | undefined, event: StoreEvent): void {
    if (key !== undefined) this.#queues.get(key)?.hearGrant(event)
    else for (const queue of [...this.#queues.values()]) queue.hearGrant(event)
  }

  #subscribeFailed(error: unknown): void {
    const explained = this.batcher.explain(error)
    this.events.emit('error', () => ({
      name: '',
      kind: 'lock',
      metadata: undefined,
      doing: 'acquire',
      error: explained,
    }))
  }

  async #idle(graceMs: number): Promise<void> {
    const busy = (): boolean => this.#leases.size > 0
    if (!busy() || graceMs === 0) return
    await new Promise<void>((resolve) => {
      const cancel = this.world.after(graceMs, resolve, true)
      this.#hurry = () => {
        cancel()
        resolve()
      }
      this.#onIdle = () => {
        if (!busy()) this.#hurry?.()
      }
    })
    this.#onIdle = this.#hurry = undefined
  }
}
