import { ClosedError, type LeaseholdError, LockLostError, LockTimeoutError, UnsupportedError } from '../errors.js'
import type { World } from '../kit/world.js'
import type { Answer, Awaitable, Claim, Grant, Released, Store } from '../store.js'
import type { Ask } from './ask.js'
import { attempt } from './attempt.js'
import { Bells } from './bells.js'
import { CleanUp } from './clean-up.js'
import { Courier } from './courier.js'
import { Events } from './events.js'
import { withFrames } from './frames.js'
import { Identity } from './identity.js'
import { type Given, Lease, driftOf } from './lease.js'
import { Line } from './line.js'
import { Lock, leaseOf } from './lock.js'
import { PLACE_MS } from './patience.js'
import { Timers } from './timers.js'
import { Waiter } from './waiter.js'

const YES: Promise<boolean> = Promise.resolve(true)
const NO: Promise<boolean> = Promise.resolve(false)

/** What `createLocks` runs on: everything one instance holds and waits for, on one store. */
export class Engine {
  readonly store: Store
  readonly world: World
  readonly courier: Courier
  readonly cleanUp: CleanUp
  readonly events: Events = new Events()
  readonly identity: Identity
  /** When leases are due. Every held lease is in here exactly once. */
  readonly beats: Timers
  /** When waits end or look again. They keep the process alive: somebody awaits them. */
  readonly waits: Timers
  readonly bells: Bells
  closingReason: ClosedError | undefined = undefined

  readonly #lines = new Map<string, Line>()
  readonly #immediate: boolean
  /** Nobody keeps an order between processes: neither a line nor the server's own queue. */
  readonly #unordered: boolean
  readonly #unsubscribe: (() => void) | undefined
  #onIdle: (() => void) | undefined
  #endGrace: (() => void) | undefined
  #closed: Promise<void> | undefined

  constructor(store: Store, world: World) {
    this.store = store
    this.world = world
    this.courier = new Courier(store, world, (claim, grant) => this.#stray(claim, grant))
    this.cleanUp = new CleanUp(this.courier, world)
    this.identity = new Identity(world)
    this.beats = new Timers(world)
    this.waits = new Timers(world, true)
    this.bells = new Bells(store, this.beats, (key, owner) => this.#find(key, owner)?.lose('revoked'))
    this.#immediate = store.immediate === true
    this.#unordered = !store.features.line && !store.blocks
    this.#unsubscribe = store.onDoubt?.(() => this.#verifyAll())
  }

  /** Waits for `ask.waitMs`; rejects with `LockTimeoutError` if it stayed busy. */
  acquire(ask: Ask): Promise<Lock> {
    const refused = this.#refuseEarly(ask)
    if (refused) return refused
    // Who takes it by force does not stand in line for it.
    if (ask.waitMs === 0 || ask.steal) return this.#once(ask)
    const claim = this.#claim(ask, PLACE_MS)
    let line = this.#lines.size === 0 ? undefined : this.#lines.get(ask.key)
    let answer: Answer | undefined
    if (!line && this.#immediate) {
      answer = this.courier.acquire(claim) as Answer
      if (answer.granted === true && answer.decidedAt !== undefined) {
        return Promise.resolve(this.hold(ask, answer, answer.decidedAt, answer.decidedAt))
      }
    }
    const since = this.world.now()
    if (!line) this.#lines.set(ask.key, (line = new Line(this, ask)))
    const waiter = new Waiter(this, line, ask, claim, since)
    line.join(waiter)
    if (answer?.granted === false) waiter.hearFirst(answer, since)
    else line.pump()
    if (!waiter.asking) waiter.limitWait()
    return withFrames(waiter.promise)
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

  /** One attempt at all of them. Undefined if they cannot be had together right now. */
  async acquireTogether(asks: readonly Ask[]): Promise<Lock[] | undefined> {
    const refused = this.#refuseEarly(asks[0] as Ask)
    if (refused) return refused
    const claims = asks.map((ask) => this.#claim(ask, undefined))
    const sentAt = this.world.now()
    const answers = await this.cleanUp.lookAfter(this.courier.acquireTogether(claims))
    const usable =
      !this.closingReason && answers.every((answer) => answer.granted === true && !this.stale(answer, sentAt))
    if (usable) return asks.map((ask, i) => this.hold(ask, answers[i] as Grant, sentAt, sentAt))
    for (const [i, answer] of answers.entries()) {
      const owner = answer.granted === true ? answer.owner : (claims[i] as Claim).owner
      if (answer.granted !== false) void this.cleanUp.letGo({ key: (asks[i] as Ask).key, owner })
    }
    return undefined
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

  /** Those in this process who wait, in no particular order between names. */
  *waiting(): Generator<Waiter> {
    // Whoever was just handed what it waited for may not have left the line yet.
    for (const line of this.#lines.values()) for (const waiter of line) if (!waiter.settled) yield waiter
  }

  /** A grant becomes a lock. */
  hold(ask: Ask, grant: Given, sentAt: number, since: number, lock: Lock = this.blank(ask)): Lock {
    const lease = leaseOf(lock)
    lease.begin(grant, sentAt)
    if (this.events.has('acquired'))
      this.events.emit('acquired', () => ({ ...lease.facts(), waitedMs: this.world.now() - since }))
    return lock
  }

  /** What a grant will make a lock of. */
  blank(ask: Ask): Lock {
    return new Lock(new Lease(this, ask))
  }

  /** Whether a grant came too late to be of any use. */
  stale(grant: Grant, sentAt: number): boolean {
    return sentAt + grant.ttlMs - driftOf(grant.ttlMs) <= this.world.now()
  }

  release(lease: Lease): Promise<boolean> {
    if (lease.loss) {
      // What remains of it in the store, if anything, is in the way of others.
      if (lease.loss.why !== 'gone' && lease.loss.why !== 'revoked') void this.cleanUp.letGo(lease)
      return NO
    }
    if (!this.#immediate) return this.#giveBack(lease)
    // A store in this process judges by the same clock, and says so itself if it is too late.
    lease.end()
    const answer = this.courier.release(lease) as Released
    return this.#wasReleased(lease, answer) ? YES : NO
  }

  /** Somebody may wait for it: so first it is sent, then everything else. If its time was over by then, it is a loss all the same. */
  #giveBack(lease: Lease): Promise<boolean> {
    const answered = new Promise<boolean>((resolve) => {
      this.courier.giveBack(lease, (answer) => resolve(this.#wasReleased(lease, answer)))
    })
    lease.givenBack = answered
    lease.settle()
    if (lease.loss) return NO
    lease.end()
    if (this.#unordered) this.bells.expect(lease.key)
    return answered
  }

  /** Whether we believe to hold this very grant. */
  holds(key: string, owner: string): boolean {
    return this.#find(key, owner) !== undefined
  }

  retired(lease: Lease): void {
    this.beats.clear(lease)
    this.#onIdle?.()
  }

  disbanded(line: Line): void {
    if (this.#lines.get(line.key) === line) this.#lines.delete(line.key)
  }

  *leases(): Generator<Lease> {
    for (const item of this.beats) if (item instanceof Lease) yield item
  }

  async releaseAll(): Promise<void> {
    await Promise.all(
      [...this.leases()].map((lease) => {
        // Whoever works under it did not let go, and has to hear of it before another can hold it.
        lease.tell(new LockLostError(lease.ask.name, 'released'))
        return this.release(lease)
      }),
    )
  }

  /** No new grants; work is told to end and may do so while leases are renewed; then everything is released. */
  close(graceMs: number): Promise<void> {
    // A second call may shorten the time that the first one gave, and never prolongs it.
    if (this.#closed && this.#endGrace) this.world.after(graceMs, this.#endGrace, true)
    this.#closed ??= this.#close(graceMs)
    return this.#closed
  }

  async #close(graceMs: number): Promise<void> {
    this.closingReason = new ClosedError('closing: locks.close() was called')
    for (const line of [...this.#lines.values()]) for (const waiter of line) waiter.fail(this.closingReason)
    for (const lease of [...this.leases()]) lease.tell(this.closingReason)
    await this.#idle(graceMs)
    await this.releaseAll()
    // What was asked before may be answered only now, and has to be given back.
    await this.cleanUp.finish()
    this.bells.close()
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
      if (answer.outcome === 'unknown') void this.cleanUp.letGo(lease)
      return false
    }
    if (answer.outcome === 'released') {
      if (answer.awaited && this.#unordered) this.bells.attend(lease.key, this.world.now())
      if (this.events.has('released')) this.events.emit('released', () => ({ ...lease.facts(), heldMs: lease.heldMs }))
      return true
    }
    if (answer.outcome === 'gone') lease.wasGone()
    else {
      const { name, kind } = lease.ask
      const error = answer.error as LeaseholdError
      this.events.emit('error', () => ({ name, kind, doing: 'release', error }))
      void this.cleanUp.letGo(lease)
    }
    return false
  }

  /**
   * A grant whose asker was told «unknown» long ago must not stay until its time passes. But the asker may have asked
   * again as the same owner, and hold it by now or be about to: then it is not astray.
   */
  #stray({ key, owner }: Claim, grant: Grant): void {
    const waits = [...(this.#lines.get(key) ?? [])].some((waiter) => waiter.owner === owner)
    if (!waits && !this.holds(key, grant.owner)) void this.courier.release({ key, owner: grant.owner })
  }

  #find(key: string, owner: string): Lease | undefined {
    for (const lease of this.leases()) if (lease.owner === owner && lease.ask.key === key) return lease
    return undefined
  }

  #verifyAll(): void {
    for (const lease of [...this.leases()]) void lease.verify()
  }

  async #idle(graceMs: number): Promise<void> {
    const busy = (): boolean => !this.leases().next().done
    if (!busy()) return
    await new Promise<void>((resolve) => {
      const cancel = this.world.after(graceMs, resolve, true)
      this.#endGrace = () => {
        cancel()
        resolve()
      }
      this.#onIdle = () => {
        if (busy()) return
        cancel()
        resolve()
      }
    })
    this.#onIdle = this.#endGrace = undefined
  }
}
