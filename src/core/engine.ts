import { ClosedError, LockTimeoutError } from '../errors.js'
import { TransientMap } from '../util/transient-map.js'
import type { World } from '../util/world.js'
import type { Answer, Awaitable, Claim, HolderView, Store, StoreEvent } from '../store.js'
import { type AcquireHost, Acquisition } from './acquire.js'
import type { AcquireRequest } from './request.js'
import { type AttemptHost, attempt } from './attempt.js'
import { Batcher } from './batcher.js'
import { claimOf, waitingClaimOf } from './claim.js'
import { Cleanup } from './cleanup.js'
import { Closing, type ClosingHost } from './closing.js'
import { Events, requestFacts } from './events.js'
import { Heartbeat } from './heartbeat.js'
import { Identity } from './identity.js'
import { Lease, type LeaseGrant, type LeaseHost } from './lease.js'
import { emitAcquired } from './lease-events.js'
import { LeaseList } from './lease-list.js'
import { Lock, leaseOf } from './lock.js'
import { OrderedRequests } from './ordered-requests.js'
import { QueueHeartbeat } from './queue-heartbeat.js'
import { readStore } from './read.js'
import { type ReleaseHost, release } from './release.js'
import { Revocations } from './revocations.js'
import { StallMonitor } from './stall-monitor.js'
import { Steals } from './steals.js'
import { Subscriptions } from './subscriptions.js'
import type { CallFacts } from './timed-call.js'
import { Timers } from './timers.js'
import { type NotTogether, acquireTogether } from './together.js'
import { isAcquireTraced, isHoldTraced, traceAcquire, traceHold, traceHoldEnd } from './tracing.js'
import { WaitQueue, type WaitQueueHost } from './wait-queue.js'

/** Leases are verified at most this often, however often a client reports trouble: a flood would only make it worse. */
const VERIFY_EVERY_MS = 1_000

/** What `createLocks` runs on: everything one instance holds and waits for, on one store. */
export class Engine
  implements LeaseHost, AcquireHost, AttemptHost, WaitQueueHost<Acquisition>, ReleaseHost, ClosingHost
{
  readonly store: Store
  readonly world: World
  readonly batcher: Batcher
  readonly cleanup: Cleanup
  readonly events: Events
  readonly identity: Identity
  /** The timers of all leases: when each is renewed, or has reached its deadline. */
  readonly heartbeats: Timers
  /** Renews the leases that are due, together in few calls. */
  readonly heartbeat: Heartbeat
  readonly stalls: StallMonitor
  /** When waits end or ask again. They keep the process alive: callers await them. */
  readonly waits: Timers
  readonly subscriptions: Subscriptions
  readonly revocations: Revocations
  readonly ordered: OrderedRequests
  readonly queueHeartbeat: QueueHeartbeat
  readonly answersAtOnce: boolean
  readonly unordered: boolean
  /** What this instance believes to hold: of each owner its latest lease. */
  readonly held: LeaseList<Lease> = new LeaseList()
  closingReason: ClosedError | undefined = undefined

  readonly #queues = new TransientMap<string, WaitQueue<Acquisition>>()
  /** Made with the first: most instances never steal. */
  #steals: Steals | undefined = undefined
  readonly #closing: Closing
  readonly #unsubscribe: (() => void) | undefined

  constructor(store: Store, world: World, onCall?: (facts: CallFacts) => void) {
    this.store = store
    this.world = world
    this.events = new Events(store.name)
    this.batcher = new Batcher(store, world, onCall)
    this.cleanup = new Cleanup(this.batcher, world)
    this.identity = new Identity(world)
    this.heartbeats = new Timers(world)
    this.heartbeat = new Heartbeat(this.batcher, world)
    this.stalls = new StallMonitor(world, () => this.held.size > 0)
    this.waits = new Timers(world, true)
    const onError = (error: unknown): void => this.#subscribeFailed(error)
    const onGrant = (key: string | undefined, event: StoreEvent): void => this.#grantPushed(key, event)
    this.subscriptions = new Subscriptions(store, this.heartbeats, { onError, onGrant })
    const find = (owner: string): Lease | undefined => this.held.find(owner)
    this.revocations = new Revocations(store, { timers: this.heartbeats, world, find, onError })
    this.ordered = new OrderedRequests(this.batcher)
    this.queueHeartbeat = QueueHeartbeat.of(store, this.batcher, world)
    this.answersAtOnce = this.batcher.answersAtOnce
    this.unordered = !store.features.queue && !store.blocks
    this.#closing = new Closing(this)
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
    const queue = this.queueOf(request.key)
    if (queue || !this.answersAtOnce) return this.#enqueue(request, queue)
    const sentAt = this.world.now()
    const claim = waitingClaimOf(request, this.identity)
    const answer = this.batcher.acquire(claim) as Answer
    if (answer.granted !== true) return this.#enqueue(request, undefined, claim, answer)
    return Promise.resolve(this.hold(request, answer, sentAt, sentAt, this.preallocate(request), sentAt))
  }

  /** `claim`, `answer`: the store was asked already, and did not grant. */
  #enqueue(request: AcquireRequest, present?: WaitQueue<Acquisition>, claim?: Claim, answer?: Answer): Promise<Lock> {
    const since = this.world.now()
    const queue = present ?? new WaitQueue(this, request)
    if (!present) this.#queues.set(request.key, queue)
    const acquisition = new Acquisition(this, queue, request, since, claim)
    queue.enqueue(acquisition)
    if (answer?.granted === false) acquisition.beginRefused(answer, since)
    else queue.pump()
    if (!acquisition.begun) {
      acquisition.limitWait()
      queue.retryFirst()
      // The record that it seeks may have been written meanwhile: the first acquisition in the queue asks for all.
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

  /** One attempt at all of them: the locks, or why not, as far as that is known. Rejects when the caller aborts. */
  async acquireTogether(requests: readonly AcquireRequest[]): Promise<Lock[] | NotTogether> {
    const refused = this.#refuseEarly(requests[0] as AcquireRequest)
    if (refused) return refused
    const claims = requests.map((request) => claimOf(request, this.identity, undefined))
    return acquireTogether(this, requests, claims)
  }

  /** The wait is over: what the caller is told. */
  timedOut(request: AcquireRequest, facts: { waitedMs: number; heldBy: string | undefined }): LockTimeoutError {
    this.events.emit('timeout', () => ({ ...requestFacts(request), ...facts }))
    return new LockTimeoutError(request.name, facts)
  }

  /** Asks what a store may or may not be able to answer: to look, or to break glass. */
  read<T>(
    what: string,
    call: (store: Store) => Awaitable<T> | undefined,
    kind: 'read' | 'revoke' = 'read',
  ): Promise<T> {
    return readStore(this.batcher, what, call, kind)
  }

  /** Break glass: ends every lease of this key. Holders in this instance know at once, whatever wake-ups the store has. */
  async revoke(key: string): Promise<HolderView[]> {
    const cut = await this.read('forceRelease', (store) => store.revoke?.(key), 'revoke')
    for (const { owner, token } of cut) {
      const lease = this.held.find(owner)
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
    const before = request.owner === undefined ? undefined : this.held.find(grant.owner)
    if (before) this.held.remove(before)
    lease.owner = grant.owner
    this.held.add(lease)
    this.revocations.begin()
    lease.begin(grant, sentAt, now, request.since ?? since)
    if (lease.isOpen && isHoldTraced()) traceHold(lease)
    if (this.events.isHeard('acquired')) emitAcquired(lease)
    this.revocations.loseIfEnded(lease)
    if (request.steal) (this.#steals ??= new Steals()).took(lease, this.held.all())
    else this.#steals?.loseIfStolen(lease)
    return lock
  }

  /** The lock that a grant will complete. */
  preallocate(request: AcquireRequest): Lock {
    return new Lock(new Lease(this, request))
  }

  release(lease: Lease): Promise<boolean> {
    return release(this, lease)
  }

  retired(lease: Lease): void {
    if (lease.trace) traceHoldEnd(lease)
    this.heartbeats.clear(lease)
    // Released to the store, or lost: the next waiter has to ask.
    if (this.#queues.size > 0 && !lease.successor) this.#queues.get(lease.key)?.leaseEnded(lease)
    if (!this.held.remove(lease)) return
    this.revocations.end()
    if (this.closingReason) this.#closing.leaseEnded()
  }

  queueOf(key: string): WaitQueue<Acquisition> | undefined {
    return this.#queues.size === 0 ? undefined : this.#queues.get(key)
  }

  queueEmptied(queue: WaitQueue<Acquisition>): void {
    if (this.#queues.get(queue.key) === queue) this.#queues.delete(queue.key)
  }

  releaseAll(): Promise<void> {
    return this.#closing.releaseAll()
  }

  /** No new grants; signals abort, and work may finish while its leases are renewed; then everything is released. */
  close(graceMs: number): Promise<void> {
    return this.#closing.close(graceMs)
  }

  stop(): void {
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

  async #once(request: AcquireRequest): Promise<Lock> {
    const outcome = await this.#attempt(request)
    if (outcome instanceof Lock) return outcome
    throw this.timedOut(request, { waitedMs: 0, heldBy: outcome.heldBy })
  }

  #attempt(request: AcquireRequest): ReturnType<typeof attempt> {
    return attempt(this, request, claimOf(request, this.identity, undefined))
  }

  #verify(affected: ((key: string) => boolean) | undefined): void {
    const now = this.world.now()
    for (const lease of this.held.all()) {
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
    const nobody = { name: '', kind: 'lock', metadata: undefined }
    this.events.emit('error', () => ({ ...nobody, doing: 'acquire', error: explained }))
  }
}
