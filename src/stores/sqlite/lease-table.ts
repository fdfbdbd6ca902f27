/**
 * The rule of the store contract, in SQL: which owner holds what, and which claim is granted next. Everything here happens
 * inside one write transaction, with one reading of the clock.
 *
 * @module
 */
import {
  ALL,
  type Answer,
  type Claim,
  type Grant,
  type LeaseId,
  type Released,
  type Renewal,
  type Renewed,
  type StoreEvent,
} from '../../store.js'
import type { SqliteStatements } from './statements.js'
import { type SubscriberFor, WaiterTable } from './waiter-table.js'

/** `revoked` goes to processes that subscribe to revocations, whatever the key; the rest to subscribers of the key. */
export type SqliteEvent = StoreEvent | { type: 'revoked'; owner: string; token: bigint }

/** What is sent after the commit: to this subscriber, or to every subscriber of the key. */
export interface PendingNotification {
  key: string
  event: SqliteEvent
  subscriber: string | undefined
}

/** What one statement tells of a key. `firstEnd`, `firstWaiterEnd`: when the first lease or queue entry ends; null: there is none. */
interface KeyOverview {
  boot: string
  lastToken: number
  holding: number
  held: number
  firstEnd: number | null
  firstWaiterEnd: number | null
}

interface FirstWaiter {
  owner: string
  /** 0: it would be granted now. Undefined: it is not known when. */
  blockedMs: number | undefined
}

interface HolderState {
  weight: number
  token: number
  announce: number
  expiresAt: number
}

/** What a grant stores; both a claim and a queue entry have it. */
interface Grantable {
  owner: string
  weight: number
  capacity: number
  value?: string | null | undefined
  announce?: boolean | number | undefined
  tokens?: number | undefined
}

/**
 * How many tokens a hand-off reserves: the queue does not tell whether the waiter would pass the lease on inside its process. One
 * hand-off takes about as many microseconds, so that tokens run ahead of the clock by milliseconds at most.
 */
const HANDOFF_TOKENS = 32

const GONE: { outcome: 'gone' } = { outcome: 'gone' }
const RELEASED: Released = { outcome: 'released' }

/** What the table needs from its connection. */
export interface LeaseTableContext {
  wallMicros: () => number
  subscriberFor: SubscriberFor
  /** Throws if the times in this file are those of another machine. */
  checkBoot: (boot: string) => void
}

/** A token as the file stores it. One too large for a number belongs to no grant in the file, and stays unequal to all of them. */
export function storedToken(token: bigint | undefined): number | null {
  return token === undefined ? null : Number(token)
}

/** One transaction's view of holders and waiters. */
export class LeaseTable {
  readonly now: number
  readonly notifications: PendingNotification[] = []
  /** Undefined: no call of this transaction has read it yet. */
  lastToken: number | undefined
  readonly #sql: SqliteStatements
  readonly #waiters: WaiterTable
  readonly #context: LeaseTableContext
  /** The first waiter of each key whose entries were renewed in this transaction: read once, not once per entry. */
  #firstWaiters: Map<string, FirstWaiter | undefined> | undefined

  constructor(sql: SqliteStatements, now: number, context: LeaseTableContext) {
    this.#sql = sql
    this.now = now
    this.#context = context
    this.#waiters = new WaiterTable(sql, now, context.subscriberFor)
  }

  acquireEach(claims: readonly Claim[]): Answer[] {
    return claims.map((claim) => this.#acquire(claim, claim.queueMs))
  }

  /** All or none: grants one after the other, and rolls all back if one was refused. No queue entry is added. */
  acquireAtomically(claims: readonly Claim[]): Answer[] {
    const { lastToken } = this
    this.#sql.beginAtomic.run()
    const answers = claims.map((claim) => this.#acquire(claim, undefined))
    if (answers.every((answer) => answer.granted)) return answers
    this.#sql.undoAtomic.run()
    this.lastToken = lastToken
    this.notifications.length = 0
    this.#waiters.forgetCounts()
    return claims.map((claim) => this.#refusal(claim, this.#dropExpiredAndServe(claim.key)))
  }

  renew(renewal: Renewal): Renewed {
    if (renewal.queued) return this.#renewWaiter(renewal)
    const { key, owner, ttlMs, value } = renewal
    const token = storedToken(renewal.token)
    const { changes } =
      value === undefined
        ? this.#sql.extend.run(key, owner, this.now, ttlMs, token)
        : this.#sql.extendAndSetValue.run(key, owner, this.now, ttlMs, token, value)
    if (Number(changes) === 0) return GONE
    this.#firstWaiters?.delete(key)
    if (value !== undefined) this.#notify(key, { type: 'changed' })
    return { outcome: 'ours', ttlMs }
  }

  release({ key, owner, token }: LeaseId): Released {
    const seen = this.#dropExpired(key)
    // A token names a grant: the owner's queue entry belongs to another request, and stays.
    const waited = token === undefined && seen.firstWaiterEnd !== null && this.#waiters.remove(key, owner)
    const found = seen.holding > 0 ? this.#find(key, owner) : undefined
    const holder = found && (token ?? BigInt(found.token)) === BigInt(found.token) ? found : undefined
    if (holder) this.#sql.endHolder.run(key, owner)
    if (holder?.announce) this.#notify(key, { type: 'changed' })
    if (!waited && !holder) return GONE
    if (seen.firstWaiterEnd !== null) this.#serve(key, seen.held - (holder?.weight ?? 0))
    return RELEASED
  }

  revoke(key: string): void {
    this.#dropExpired(key)
    this.#evict(key)
    this.#serve(key)
  }

  /**
   * The rule, for one claim. A lease that expires notifies no process, so the first claim after it also grants to every
   * waiter that fits now: otherwise ten readers behind a dead writer would be granted one by one, each at its next poll.
   */
  #acquire(claim: Claim, queueMs: number | undefined): Answer {
    const { key, owner, steal } = claim
    // Waiters are not served before a steal, which would revoke their grants at once.
    const seen = steal ? this.#dropExpired(key) : this.#dropExpiredAndServe(key, owner)
    const answer = this.#decide(claim, queueMs, seen)
    if (answer.granted && seen.firstWaiterEnd !== null) this.#serve(key)
    return answer
  }

  /** Keeps a queue entry alive. Expired rows are dropped and the first waiter is read once per key, not once per entry. */
  #renewWaiter({ key, owner, ttlMs }: Renewal): Renewed {
    const first = this.#firstWaiter(key)
    if (this.#waiters.renew(key, owner, ttlMs)) {
      const newest = BigInt(this.lastToken as number)
      if (first?.owner !== owner) return { outcome: 'waiting', ahead: 1, newest }
      return { outcome: 'waiting', ahead: 0, newest, blockedMs: first.blockedMs }
    }
    const holder = this.#find(key, owner)
    if (!holder) return GONE
    return { outcome: 'granted', token: BigInt(holder.token), ttlMs: holder.expiresAt - this.now }
  }

  #firstWaiter(key: string): FirstWaiter | undefined {
    if (this.#firstWaiters?.has(key)) return this.#firstWaiters.get(key)
    const { held, firstEnd } = this.#dropExpired(key)
    const head = this.#waiters.first(key)
    let first: FirstWaiter | undefined
    if (head) {
      const fits = held + head.weight <= head.capacity
      const endsInMs = firstEnd === null ? undefined : firstEnd - this.now
      first = { owner: head.owner, blockedMs: fits ? 0 : endsInMs }
    }
    ;(this.#firstWaiters ??= new Map()).set(key, first)
    return first
  }

  #decide(claim: Claim, queueMs: number | undefined, seen: KeyOverview): Answer {
    const { key, owner, ttlMs } = claim
    if (seen.holding > 0) {
      const mine = this.#find(key, owner)
      if (mine) {
        this.#sql.extend.run(key, owner, this.now, ttlMs, null)
        return { granted: true, owner, token: BigInt(mine.token), ttlMs }
      }
    }
    if (claim.steal) {
      this.#evict(key)
    } else if (!this.#admits(claim, seen)) {
      const seq = queueMs === undefined ? undefined : this.#waiters.enqueue(claim, queueMs)
      return this.#refusal(claim, seen, seq)
    }
    if (seen.firstWaiterEnd !== null) this.#waiters.remove(key, owner)
    return this.#grant(key, claim, ttlMs)
  }

  /** Whether there is room, and no other owner's entry is ahead in the queue. */
  #admits({ key, owner, weight, capacity }: Claim, seen: KeyOverview): boolean {
    if (seen.held + weight > capacity) return false
    return seen.firstWaiterEnd === null || this.#waiters.first(key)?.owner === owner
  }

  #grant(key: string, { owner, weight, capacity, value, announce, tokens }: Grantable, ttlMs: number): Grant {
    // The clock alone may stand still or go back, and the counter alone is lost with the file.
    const token = Math.max((this.lastToken as number) + 1, this.#context.wallMicros())
    this.lastToken = token
    const { now } = this
    const flag = announce ? 1 : 0
    this.#sql.addHolder.run(key, owner, weight, capacity, now + ttlMs, ttlMs, now, token, flag, value ?? null)
    if (announce) this.#notify(key, { type: 'changed' })
    if (tokens !== undefined) {
      this.lastToken = token + tokens - 1
      // Behind the insert, whose trigger writes the token of the grant.
      this.#sql.reserveTokens.run(this.lastToken)
    }
    return { granted: true, owner, token: BigInt(token), ttlMs, tokens }
  }

  #refusal({ key, owner }: Claim, seen: KeyOverview, seq?: number): Answer {
    // `seen` was read before the claim got a queue entry of its own.
    const isQueueEmpty = seq === undefined && seen.firstWaiterEnd === null
    const ahead = isQueueEmpty ? 0 : this.#waiters.ahead(key, seq ?? this.#waiters.seqOf(key, owner))
    const newest = BigInt(this.lastToken as number)
    if (seen.holding === 0) return { granted: false, ahead, newest }
    const holder = this.#sql.firstToEnd.get(key) as {
      owner: string
      token: number
      value: string | null
      expiresAt: number
    }
    const blocker = {
      owner: holder.owner,
      token: BigInt(holder.token),
      value: holder.value ?? undefined,
      ttlMs: Math.max(holder.expiresAt - this.now, 0),
    }
    return { granted: false, ahead, newest, blocker }
  }

  /** Drops expired leases and queue entries of this key. Grants nothing: the first waiter asks again when a lease ends. */
  #dropExpired(key: string): KeyOverview {
    const { now } = this
    const seen = this.#overview(key)
    if (this.lastToken === undefined) {
      this.#context.checkBoot(seen.boot)
      this.lastToken = seen.lastToken
    }
    const holderEnded = seen.firstEnd !== null && seen.firstEnd <= now
    const waiterEnded = seen.firstWaiterEnd !== null && seen.firstWaiterEnd <= now
    if (!holderEnded && !waiterEnded) return seen
    if (holderEnded) {
      for (const { announce } of this.#sql.expireHolders.all(key, now) as { announce: number }[]) {
        if (announce) this.#notify(key, { type: 'changed' })
      }
    }
    if (waiterEnded) this.#waiters.dropExpired(key)
    return this.#overview(key)
  }

  /** The same, and grants to the waiters ahead of this owner that fit now: a newcomer must not overtake them. */
  #dropExpiredAndServe(key: string, owner?: string): KeyOverview {
    const seen = this.#dropExpired(key)
    if (seen.firstWaiterEnd === null || !this.#serve(key, seen.held, owner)) return seen
    return this.#overview(key)
  }

  /**
   * Hands the lease to the first waiters while there is room: they need no second request, and no newcomer can race them.
   * Stops before the owner whose claim is being answered, which gets its full ttl instead. True if a waiter was granted.
   */
  #serve(key: string, alreadyHeld?: number, before?: string): boolean {
    let held = alreadyHeld ?? this.#overview(key).held
    for (let served = false; ; served = true) {
      const head = this.#waiters.first(key)
      if (!head || head.owner === before || held + head.weight > head.capacity) return served
      this.#waiters.remove(key, head.owner)
      // A hand-off lasts no longer than the queue entry did: a waiter that has died meanwhile must not block for a whole ttl.
      const ttlMs = Math.min(head.queueMs, head.ttlMs)
      const tokens = head.weight === ALL ? HANDOFF_TOKENS : undefined
      const { token } = this.#grant(key, { ...head, tokens }, ttlMs)
      this.#notify(key, { type: 'granted', owner: head.owner, token, ttlMs, tokens }, head.subscriber)
      held += head.weight
    }
  }

  #overview(key: string): KeyOverview {
    return this.#sql.overview.get(key) as KeyOverview
  }

  #evict(key: string): void {
    const evicted = this.#sql.endHolders.all(key) as { owner: string; announce: number; token: number }[]
    for (const { owner, announce, token } of evicted.sort((a, b) => a.token - b.token)) {
      this.#notify(key, { type: 'revoked', owner, token: BigInt(token) })
      if (announce) this.#notify(key, { type: 'changed' })
    }
  }

  #find(key: string, owner: string): HolderState | undefined {
    return this.#sql.findHolder.get(key, owner) as HolderState | undefined
  }

  #notify(key: string, event: SqliteEvent, subscriber?: string | null): void {
    this.notifications.push({ key, event, subscriber: subscriber ?? undefined })
  }
}
