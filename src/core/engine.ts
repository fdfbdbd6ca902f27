import { ClosedError, type LeaseholdError, LockLostError, LockTimeoutError, UnsupportedError } from '../errors.js'
import type { World } from '../kit/world.js'
import type { Answer, Awaitable, Claim, Grant, HolderView, Released, Store } from '../store.js'
import { Acquisition } from './acquisition.js'
import type { Ask } from './ask.js'
import { attempt, unlessAborted } from './attempt.js'
import { Cleanup } from './cleanup.js'
import { Courier } from './courier.js'
import { Events } from './events.js'
import { withFrames } from './frames.js'
import { Identity } from './identity.js'
import { type Given, Lease, driftOf } from './lease.js'
import { Lock, leaseOf } from './lock.js'
import { OrderedRequests } from './ordered-requests.js'
import { QueueHeartbeat } from './queue-heartbeat.js'
import { QUEUE_MS } from './retry-delay.js'
import { Revocations } from './revocations.js'
import { Subscriptions } from './subscriptions.js'
import { Timers } from './timers.js'
import { WaitQueue } from './wait-queue.js'

const YES: Promise<boolean> = Promise.resolve(true)
const NO: Promise<boolean> = Promise.resolve(false)

/** So many steals are remembered: an answer that they overtook arrives within seconds. */
const MOST_STOLEN = 1_000

/** Leases are verified at most this often, however often a client reports trouble: a flood would only make it worse. */
const VERIFY_EVERY_MS = 1_000

/** What `createLocks` runs on: everything one instance holds and waits for, on one store. */
export class Engine {
  readonly store: Store
  readonly world: World
  readonly courier: Courier
  readonly cleanup: Cleanup
  readonly events: Events = new Events()
  readonly identity: Identity
  /** When leases are due. */
  readonly beats: Timers
  /** When waits end or ask again. They keep the process alive: somebody awaits them. */
  readonly waits: Timers
  readonly subscriptions: Subscriptions
  readonly revocations: Revocations
  readonly ordered: OrderedRequests
  readonly queueHeartbeat: QueueHeartbeat
  closingReason: ClosedError | undefined = undefined

  readonly #queues = new Map<string, WaitQueue>()
  /** By key, the token of the last steal of this instance: what was granted before that was taken away. */
  readonly #stolen = new Map<string, bigint>()
  /** What this instance believes to hold, by owner. */
  readonly #leases = new Map<string, Lease>()
  readonly #immediate: boolean
  /** Nobody keeps an order between processes: neither a queue nor the server's own. */
  readonly #unordered: boolean
  readonly #unsubscribe: (() => void) | undefined
  #onIdle: (() => void) | undefined
  #closed: Promise<void> | undefined

  constructor(store: Store, world: World) {
    this.store = store
    this.world = world
    this.courier = new Courier(store, world)
    this.cleanup = new Cleanup(this.courier, world)
    this.identity = new Identity(world)
    this.beats = new Timers(world)
    this.waits = new Timers(world, true)
    const onError = (error: unknown): void => this.#subscribeFailed(error)
    this.subscriptions = new Subscriptions(store, this.beats, onError)
    const find = (owner: string): Lease | undefined => this.#leases.get(owner)
    this.revocations = new Revocations(store, { timers: this.beats, world, find, onError })
    this.ordered = new OrderedRequests(this.courier)
    this.queueHeartbeat = QueueHeartbeat.of(store, this.courier, world)
    this.#immediate = store.immediate === true
    this.#unordered = !store.features.line && !store.blocks
    this.#unsubscribe = store.onDoubt?.((affected) => this.#verify(affected))
  }

  /** Waits for `ask.waitMs`; rejects with `LockTimeoutError` if it stayed busy. */
  acquire(ask: Ask): Promise<Lock> {
    const refused = this.#refuseEarly(ask)
    if (refused) return refused
    // A steal does not queue for what it takes by force.
    if (ask.waitMs === 0 || ask.steal) return this.#once(ask)
    // Most callers that look for a record find it: a queue entry would only have to be given back.
    const claim = this.#claim(ask, ask.onRefusal ? undefined : QUEUE_MS)
    let queue = this.#queues.size === 0 ? undefined : this.#queues.get(ask.key)
    let answer: Answer | undefined
    if (!queue && this.#immediate) {
      answer = this.courier.acquire(claim) as Answer
      if (answer.granted === true && answer.decidedAt !== undefined) {
        return Promise.resolve(this.hold(ask, answer, answer.decidedAt, answer.decidedAt))
      }
    }
    const since = this.world.now()
    if (!queue) this.#queues.set(ask.key, (queue = new WaitQueue(this, ask)))
    const acquisition = new Acquisition(this, queue, ask, claim, since)
    queue.join(acquisition)
    if (answer?.granted === false) acquisition.beginRefused(answer, since)
    else queue.pump()
    if (!acquisition.begun) {
      acquisition.limitWait()
      // It seeks a record that may be there already: the first one looks for all of them.
      if (ask.onRefusal) queue.askFirst()
    }
    return withFrames(acquisition.promise)
  }

  /** One attempt. Null when busy; rejects at once when the store fails. */
  tryAcquire(ask: Ask): Promise<Lock | null> {
    return this.#refuseEarly(ask) ?? this.#attempt(ask).then((outcome) => (outcome instanceof Lock ? outcome : null))
  }

  /** Whether the store can decide these in one call. */
  atomicFor(asks: readonly Ask[]): boolean {
    const { features, maxBatch = Number.POSITIVE_INFINITY } = this.store
    if (!features.atomic || asks.length > maxBatch) return false
    return new Set(asks.map((ask) => this.store.partition?.(ask.key))).size === 1
  }

  /** One attempt at all of them. Undefined if they cannot be had together right now. Rejects when the caller aborts. */
  async acquireTogether(asks: readonly Ask[]): Promise<Lock[] | undefined> {
    const [first] = asks as [Ask]
    const refused = this.#refuseEarly(first)
    if (refused) return refused
    const claims = asks.map((ask) => this.#claim(ask, undefined))
    const sentAt = this.world.now()
    const giveBack = (answers: readonly Answer[]): void => {
      for (const [i, answer] of answers.entries()) this.#giveBack(claims[i] as Claim, answer)
    }
    const asked = this.cleanup.track(Promise.resolve(this.courier.acquireTogether(claims, giveBack)))
    const answers = first.signal ? await unlessAborted(first.signal, asked, giveBack) : await asked
    const usable =
      !this.closingReason && answers.every((answer) => answer.granted === true && !this.stale(answer, sentAt))
    if (usable) return asks.map((ask, i) => this.hold(ask, answers[i] as Grant, sentAt, sentAt))
    giveBack(answers)
    return undefined
  }

  /** Whatever this answer may have left in the store, when nobody wants it any more. */
  #giveBack({ key, owner, ttlMs }: Claim, answer: Answer): void {
    if (answer.granted === true) void this.cleanup.release({ key, owner: answer.owner, token: answer.token }, ttlMs)
    else if (answer.granted === 'unknown') void this.cleanup.release({ key, owner }, ttlMs)
  }

  /** Asks what a store may or may not be able to answer: to look, or to break glass. */
  async look<T>(what: string, call: (store: Store) => Awaitable<T> | undefined): Promise<T> {
    let failure: unknown
    const failed = (error: unknown): undefined => {
      failure = error
      return undefined
    }
    const answer = await this.courier.within<T | undefined>(() => call(this.store) as Awaitable<T | undefined>, failed)
    if (answer !== undefined) return answer
    throw failure ?? new UnsupportedError(`${what} is not supported by the ${this.store.name} store`)
  }

  /** Break glass: ends every lease of this key. Holders in this instance know at once, whatever wake-ups the store has. */
  async revoke(key: string): Promise<HolderView[]> {
    const cut = await this.look('forceRelease', (store) => store.revoke?.(key))
    for (const { owner } of cut) this.#leases.get(owner)?.lose('revoked')
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
  hold(ask: Ask, grant: Given, sentAt: number, since: number, lock: Lock = this.preallocate(ask)): Lock {
    const lease = leaseOf(lock)
    const now = grant.decidedAt ?? this.world.now()
    this.#leases.set(grant.owner, lease)
    this.revocations.begin()
    lease.begin(grant, sentAt, now, ask.since ?? since)
    if (this.events.has('acquired'))
      this.events.emit('acquired', () => ({ ...lease.facts(), waitedMs: lease.waitedMs }))
    if (this.revocations.wasRevoked(grant.owner)) lease.lose('revoked')
    if (ask.steal) this.#stole(lease)
    // Its answer was overtaken by that of a steal of ours, which took it away.
    else if (lease.token < (this.#stolen.get(ask.key) ?? 0n)) lease.lose('revoked')
    return lock
  }

  /** Holders in this instance know at once, whatever wake-ups the store has; those whose answer is still on its way, when it comes. */
  #stole(steal: Lease): void {
    for (const each of [...this.#leases.values()]) if (each.isOlderThan(steal)) each.lose('revoked')
    if (this.#stolen.size >= MOST_STOLEN) this.#stolen.clear()
    this.#stolen.set(steal.key, steal.token)
  }

  /** What a grant will make a lock of. */
  preallocate(ask: Ask): Lock {
    return new Lock(new Lease(this, ask))
  }

  /** Whether a grant came too late to be of any use. */
  stale(grant: Grant, sentAt: number): boolean {
    return sentAt + grant.ttlMs - driftOf(grant.ttlMs) <= this.world.now()
  }

  /** Once per lease: a second caller gets the first one's answer. */
  release(lease: Lease): Promise<boolean> {
    lease.releasing ??= this.#release(lease)
    return lease.releasing
  }

  #release(lease: Lease): Promise<boolean> {
    if (lease.loss) {
      // What remains of it in the store, if anything, is in the way of others.
      const { why } = lease.loss
      if (why !== 'gone' && why !== 'revoked' && !lease.staysInStore) void this.cleanup.release(lease, lease.ttlMs)
      return NO
    }
    if (lease.staysInStore) return this.#releaseRecorded(lease)
    if (!this.#immediate) return this.#releaseNow(lease)
    // A store in this process judges by the same clock, and says so itself if it is too late.
    lease.end()
    return this.#wasReleased(lease, this.courier.release(lease) as Released) ? YES : NO
  }

  /** Sent first, because somebody may wait for it, then everything else. If its time was over by then, it is a loss all the same. */
  #releaseNow(lease: Lease): Promise<boolean> {
    const answered = new Promise<boolean>((resolve) => {
      this.courier.giveBack(lease, (answer) => resolve(this.#wasReleased(lease, answer)))
    })
    lease.settle()
    if (lease.loss) return NO
    lease.end()
    if (this.#unordered) this.subscriptions.expectRelease(lease.key)
    return answered
  }

  /** A record is being written, or may have been: it is not ours to erase. If it was not written, the lease runs out. */
  async #releaseRecorded(lease: Lease): Promise<boolean> {
    await lease.recorded()
    if (!lease.released && !lease.loss) lease.end()
    return false
  }

  retired(lease: Lease): void {
    this.beats.clear(lease)
    if (this.#leases.get(lease.owner) !== lease) return
    this.#leases.delete(lease.owner)
    this.revocations.end()
    this.#onIdle?.()
  }

  disbanded(queue: WaitQueue): void {
    if (this.#queues.get(queue.key) === queue) this.#queues.delete(queue.key)
  }

  /** What this instance believes to hold. */
  leases(): Iterable<Lease> {
    return this.#leases.values()
  }

  async releaseAll(): Promise<void> {
    await Promise.all(
      [...this.#leases.values()].map((lease) => {
        // Work under it did not release it, and has to be told before another can hold it.
        if (!lease.staysInStore) lease.takeBack(new LockLostError(lease.ask.name, 'released'))
        return this.release(lease)
      }),
    )
  }

  /** No new grants; work is told to end and may do so while leases are renewed; then everything is released. */
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
    for (const lease of [...this.#leases.values()]) lease.tell(this.closingReason)
    await this.#idle(graceMs)
    await this.releaseAll()
    // What was asked before may be answered only now, and has to be given back.
    await this.cleanup.finish()
    this.subscriptions.closeAll()
    this.revocations.close()
    this.#unsubscribe?.()
    this.waits.stop()
    this.beats.stop()
  }

  #refuseEarly(ask: Ask): Promise<never> | undefined {
    if (this.closingReason)
      return Promise.reject(new ClosedError(`"${ask.name}" cannot be acquired: locks.close() was called`))
    if (ask.signal?.aborted) return Promise.reject(ask.signal.reason)
    return undefined
  }

  #claim(ask: Ask, placeMs: number | undefined): Claim {
    const { key, weight, capacity, ttlMs, value, announce, steal } = ask
    const owner = ask.owner ?? this.identity.next()
    return { key, owner, weight, capacity, ttlMs, value, placeMs, blockMs: undefined, announce, steal }
  }

  async #once(ask: Ask): Promise<Lock> {
    const outcome = await this.#attempt(ask)
    if (outcome instanceof Lock) return outcome
    const { name, kind } = ask
    const facts = { waitedMs: 0, heldBy: outcome.heldBy }
    this.events.emit('timeout', () => ({ name, kind, ...facts }))
    throw new LockTimeoutError(name, facts)
  }

  #attempt(ask: Ask): ReturnType<typeof attempt> {
    return attempt(this, ask, this.#claim(ask, undefined))
  }

  #wasReleased(lease: Lease, answer: Released): boolean {
    if (lease.loss) {
      if (answer.outcome === 'unknown') void this.cleanup.release(lease, lease.ttlMs)
      return false
    }
    if (answer.outcome === 'released') {
      if (answer.awaited && this.#unordered) this.subscriptions.attend(lease.key, this.world.now())
      if (this.events.has('released')) this.events.emit('released', () => ({ ...lease.facts(), heldMs: lease.heldMs }))
      return true
    }
    if (answer.outcome === 'gone') lease.wasGone()
    else {
      const { name, kind } = lease.ask
      const error = answer.error as LeaseholdError
      this.events.emit('error', () => ({ name, kind, doing: 'release', error }))
      void this.cleanup.release(lease, lease.ttlMs)
    }
    return false
  }

  #verify(affected: ((key: string) => boolean) | undefined): void {
    const now = this.world.now()
    for (const lease of [...this.#leases.values()]) {
      if (affected && !affected(lease.key)) continue
      lease.verifySoon(now, VERIFY_EVERY_MS)
    }
  }

  #subscribeFailed(error: unknown): void {
    const explained = this.courier.explain(error)
    this.events.emit('error', () => ({ name: '', kind: 'lock', doing: 'acquire', error: explained }))
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
