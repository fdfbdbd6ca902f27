import { ALL } from '../store.js'
import type { World } from '../util/world.js'
import type { Lease } from './lease.js'
import type { AcquireRequest } from './request.js'
import { QUEUE_MS } from './retry-delay.js'
import { Alarm, type Timers } from './timers.js'

/**
 * How many locks of this process one grant may serve, itself included. More makes other processes wait for longer and gains
 * little: one call to the store in so many locks is below a tenth of their cost.
 */
export const TENANCY_TOKENS = 32

/**
 * How long after its grant a lease may be passed on. Shorter than the time after which a lease that was handed off is renewed, so
 * that a turn of short locks needs no renewal. Locks that are held for longer go through the store one by one, in turns with
 * other processes: there a round trip counts for little, and a turn of many such locks would last for seconds.
 */
export const TENANCY_MS = 15

/** A lease is passed on only if this share is left of its ttl, or of what a hand-off by the store lasts. */
const PASS_ON_SHARE = 0.5

/** Whether a lock of this request may be passed on inside the process at all: plain exclusive locks that are renewed. */
export function mayBePassedOn(request: AcquireRequest): boolean {
  const { kind, weight, autoRenew, maxHoldMs, owner, announce, queueInStore, steal, since, onRefusal } = request
  if (kind !== 'lock' || weight !== ALL || !autoRenew || maxHoldMs !== undefined || owner !== undefined) return false
  // `since`: one of several names that are acquired together, which must not wait for the turns of one of them.
  return !announce && !queueInStore && !steal && since === undefined && onRefusal === undefined
}

/** Whether the lease that was granted to `before` is what `next` asks for: the store keeps the ttl and the value of the first. */
export function isSameLease(before: AcquireRequest, next: AcquireRequest): boolean {
  return before.ttlMs === next.ttlMs && before.value === next.value && mayBePassedOn(before) && mayBePassedOn(next)
}

/** What a tenancy needs from its instance, and from the queue of its key. */
export interface TenancyHost {
  readonly world: World
  readonly waits: Timers
  /** The store answers at once: a waiter that asks when the lock is released loses no time by that. */
  readonly answersAtOnce: boolean
}

export interface TenancyQueue {
  tenancy: Tenancy | undefined
  /** The lease is passed on no more: the next waiter has to ask the store. */
  tenancyEnded(): void
}

/**
 * One grant of the store that serves several locks of this process, one after the other: each release passes the lease on to the
 * next waiter, with the next of the tokens that the store has reserved. It ends when tokens or time are used up, when the lease is
 * released to the store or lost, and when the next waiter wants something else.
 */
export class Tenancy {
  /** The lease of the lock that has its turn. */
  lease: Lease
  readonly #host: TenancyHost
  readonly #queue: TenancyQueue
  readonly #until: number
  /** From then on the next waiter enters the store's queue, in time before the lock is released. */
  readonly #alarm: Alarm
  #left: number

  constructor(host: TenancyHost, queue: TenancyQueue, lease: Lease, tokens: number) {
    this.#host = host
    this.#queue = queue
    this.lease = lease
    this.#left = Math.min(tokens, TENANCY_TOKENS) - 1
    this.#until = host.world.now() + TENANCY_MS
    this.#alarm = new Alarm(() => this.end())
    host.waits.set(this.#alarm, this.#until, TENANCY_MS)
  }

  /** Whether the lease would be passed on to this request when it is released. */
  suits(request: AcquireRequest): boolean {
    // Requests without options are built once per name, and this one was compared when the tenancy began.
    return request === this.lease.request || isSameLease(this.lease.request, request)
  }

  /** Whether the lease may be passed on to this request now. */
  admits(request: AcquireRequest, now: number): boolean {
    return (
      this.#left > 0 &&
      now < this.#until &&
      !request.signal?.aborted &&
      this.suits(request) &&
      this.lease.isAsGranted &&
      this.#isEnoughLeft(now)
    )
  }

  #isEnoughLeft(now: number): boolean {
    const { deadline, ttlMs } = this.lease
    return deadline - now >= Math.min(ttlMs, QUEUE_MS) * PASS_ON_SHARE
  }

  /**
   * `next`: what the waiter behind asks for. If it cannot be passed the lease, it asks the store while this lock is held; where the
   * store answers at once, when this lock is released: it gets the lease then, unless others have a queue entry.
   */
  passedTo(lease: Lease, next: AcquireRequest | undefined): void {
    this.lease = lease
    this.#left--
    if ((this.#left === 0 && !this.#host.answersAtOnce) || (next && !this.suits(next))) this.end()
  }

  end(): void {
    this.#host.waits.clear(this.#alarm)
    this.#queue.tenancyEnded()
  }
}

/** Begins if the store reserved tokens with the grant, and `next`, which waits behind it, wants the same lease. */
export function beginTenancy(
  host: TenancyHost,
  queue: TenancyQueue,
  lease: Lease,
  tokens: number,
  next: AcquireRequest | undefined,
): void {
  if (!Number.isSafeInteger(tokens) || tokens < 2 || !next || !isSameLease(lease.request, next)) return
  if (!lease.isOpen) return
  queue.tenancy?.end()
  queue.tenancy = new Tenancy(host, queue, lease, tokens)
}
