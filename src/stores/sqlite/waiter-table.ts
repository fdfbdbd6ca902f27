/**
 * The queues of all keys, as one write transaction sees them. First come, first served: `seq` is the order of arrival.
 *
 * @module
 */
import type { Claim } from '../../store.js'
import type { SqliteStatements } from './statements.js'

/** The queue entry of a waiter, as far as a grant needs it. */
export interface WaiterRow {
  owner: string
  weight: number
  capacity: number
  queueMs: number
  ttlMs: number
  announce: number
  subscriber: string | null
  value: string | null
}

/** The id of the subscriber that gets a grant of this key to a waiter of this process; null: this process subscribes to none. */
export type SubscriberFor = (key: string) => string | null

/** Larger than the `seq` of every queue entry. */
const END_OF_QUEUE = Number.MAX_SAFE_INTEGER

export class WaiterTable {
  readonly #sql: SqliteStatements
  readonly #now: number
  readonly #subscriberFor: SubscriberFor
  /** The last count of entries ahead, by key: a batch of waiters of one key counts its queue once, not once per waiter. */
  #counted: Map<string, { seq: number; ahead: number }> | undefined

  constructor(sql: SqliteStatements, now: number, subscriberFor: SubscriberFor) {
    this.#sql = sql
    this.#now = now
    this.#subscriberFor = subscriberFor
  }

  first(key: string): WaiterRow | undefined {
    return this.#sql.head.get(key) as WaiterRow | undefined
  }

  seqOf(key: string, owner: string): number | undefined {
    return (this.#sql.findWaiter.get(key, owner) as { seq: number } | undefined)?.seq
  }

  /** Adds a queue entry, or refreshes the one that this owner has. Returns its `seq`. */
  enqueue(claim: Claim, queueMs: number): number {
    const { key, owner, weight, capacity, ttlMs, value, announce } = claim
    const now = this.#now
    const end = now + queueMs
    const subscriber = this.#subscriberFor(key)
    const kept = this.seqOf(key, owner)
    if (kept !== undefined) {
      this.#sql.keepWaiter.run(key, kept, end, subscriber)
      return kept
    }
    const { seq } = this.#sql.nextSeq.get(key) as { seq: number }
    const flag = announce ? 1 : 0
    this.#sql.addWaiter.run(
      key,
      seq,
      owner,
      weight,
      capacity,
      end,
      queueMs,
      ttlMs,
      now,
      flag,
      subscriber,
      value ?? null,
    )
    return seq
  }

  /** False: the owner has no live queue entry. */
  renew(key: string, owner: string, ttlMs: number): boolean {
    const { changes } = this.#sql.renewWaiter.run(key, owner, this.#now, ttlMs, this.#subscriberFor(key))
    return Number(changes) > 0
  }

  /** False: the owner had no queue entry. */
  remove(key: string, owner: string): boolean {
    const removed = Number(this.#sql.endWaiter.run(key, owner).changes) > 0
    if (removed) this.#counted?.delete(key)
    return removed
  }

  dropExpired(key: string): void {
    this.#sql.expireWaiters.run(key, this.#now)
    this.#counted?.delete(key)
  }

  /**
   * How many entries are ahead of this `seq`; without one: how many there are. Waiters that ask in one batch mostly follow
   * each other in the queue, so the count continues from where the last one ended.
   */
  ahead(key: string, seq: number = END_OF_QUEUE): number {
    const last = this.#counted?.get(key)
    const from = last && last.seq <= seq ? last : { seq: 0, ahead: 0 }
    const { n } = this.#sql.countWaiters.get(key, from.seq, seq) as { n: number }
    const ahead = from.ahead + n
    if (seq !== END_OF_QUEUE) (this.#counted ??= new Map()).set(key, { seq, ahead })
    return ahead
  }

  /** After a rollback to a savepoint the counts may include entries that are gone. */
  forgetCounts(): void {
    this.#counted = undefined
  }
}
