/**
 * The holders and the queue of one key. Functions instead of methods, so that a key is a plain object of three fields.
 *
 * @module
 */
import type { Claim } from '../../store.js'

export interface MemoryHolder {
  owner: string
  weight: number
  capacity: number
  expiresAt: number
  token: bigint
  since: number
  value: string | undefined
  announce: boolean
}

/** A queue entry. */
export interface MemoryWaiter {
  claim: Claim
  queueMs: number
  expiresAt: number
  since: number
}

/** Two or more holders of one key. Their weight and the first end are kept, so that a claim beside 100,000 readers walks none. */
export class HolderMap {
  readonly #byOwner = new Map<string, MemoryHolder>()
  weight = 0
  /** The holder that ends first, as far as is known: renewals only move ends away from now. */
  #first: MemoryHolder | undefined
  #firstEnd = Number.POSITIVE_INFINITY

  get size(): number {
    return this.#byOwner.size
  }

  get(owner: string): MemoryHolder | undefined {
    return this.#byOwner.get(owner)
  }

  all(): MemoryHolder[] {
    return [...this.#byOwner.values()]
  }

  add(holder: MemoryHolder): void {
    this.#byOwner.set(holder.owner, holder)
    this.weight += holder.weight
    this.#compare(holder)
  }

  delete(holder: MemoryHolder): void {
    if (this.#byOwner.delete(holder.owner)) this.weight -= holder.weight
  }

  first(): MemoryHolder | undefined {
    const known = this.#first
    const isCurrent = known && known.expiresAt === this.#firstEnd && this.#byOwner.get(known.owner) === known
    if (!isCurrent) {
      this.#first = undefined
      this.#firstEnd = Number.POSITIVE_INFINITY
      for (const holder of this.#byOwner.values()) this.#compare(holder)
    }
    return this.#first
  }

  /** A walk only if one may have ended since the last. */
  expired(now: number): MemoryHolder[] {
    if (this.#firstEnd > now) return []
    const expired = this.all().filter(({ expiresAt }) => expiresAt <= now)
    if (expired.length === 0) this.first()
    return expired
  }

  #compare(holder: MemoryHolder): void {
    if (holder.expiresAt >= this.#firstEnd && this.#first) return
    this.#first = holder
    this.#firstEnd = holder.expiresAt
  }
}

/** What the store knows of one key. Deleted some time after its last holder and waiter are gone. */
export interface KeyState {
  holders: HolderMap | undefined
  /** The usual case, one holder, without a map. Either this or `holders` is set, or none. */
  sole: MemoryHolder | undefined
  /** By owner, first come, first served: a Map keeps the order of insertion. */
  waiters: Map<string, MemoryWaiter> | undefined
}

export function findHolder(state: KeyState | undefined, owner: string): MemoryHolder | undefined {
  if (!state) return undefined
  if (state.sole) return state.sole.owner === owner ? state.sole : undefined
  return state.holders?.get(owner)
}

export function allHolders(state: KeyState): MemoryHolder[] {
  return state.sole ? [state.sole] : (state.holders?.all() ?? [])
}

/** The holder whose lease ends first determines how long a waiter may have to wait. */
export function firstHolderToEnd(state: KeyState | undefined): MemoryHolder | undefined {
  return state?.sole ?? state?.holders?.first()
}

export function addHolder(state: KeyState, holder: MemoryHolder): void {
  if (!state.holders && !state.sole) state.sole = holder
  else {
    state.holders ??= new HolderMap()
    if (state.sole) state.holders.add(state.sole)
    state.sole = undefined
    state.holders.add(holder)
  }
}

export function removeHolder(state: KeyState, holder: MemoryHolder): void {
  if (state.sole === holder) state.sole = undefined
  else if (state.holders) {
    state.holders.delete(holder)
    if (state.holders.size === 0) state.holders = undefined
  }
}

/** Whether the claim fits beside the present holders. */
export function fits(state: KeyState, claim: Claim): boolean {
  return claim.capacity - claim.weight - (state.sole?.weight ?? state.holders?.weight ?? 0) >= 0
}

/** Whether the claim fits, and no other owner's entry is ahead in the queue. */
export function admits(state: KeyState | undefined, claim: Claim): boolean {
  if (!state) return true
  if (state.waiters && state.waiters.size > 0 && state.waiters.keys().next().value !== claim.owner) return false
  return fits(state, claim)
}

export function enqueue(state: KeyState, claim: Claim, queueMs: number, now: number): void {
  state.waiters ??= new Map()
  const waiter = state.waiters.get(claim.owner)
  if (waiter && waiter.expiresAt > now) {
    waiter.expiresAt = now + queueMs
    return
  }
  // An expired entry that was not removed yet has lost its turn: without the delete the new one would keep its position.
  state.waiters.delete(claim.owner)
  state.waiters.set(claim.owner, { claim, queueMs, expiresAt: now + queueMs, since: now })
}

/** Exact for a first request, of which there are many, and for the first waiter; the others only learn that they are not first. */
export function entriesAhead(state: KeyState | undefined, owner: string): number {
  const waiters = state?.waiters
  if (!waiters) return 0
  if (!waiters.has(owner)) return waiters.size
  return waiters.keys().next().value === owner ? 0 : Math.max(waiters.size - 1, 1)
}

/** Only from the front: an expired entry further behind delays no waiter yet, and walking the queue would cost each of them. */
export function dropExpiredWaiters(waiters: Map<string, MemoryWaiter>, now: number): void {
  for (const [owner, { expiresAt }] of waiters) {
    if (expiresAt > now) break
    waiters.delete(owner)
  }
}

/** Without holders and waiters: the key may be forgotten. */
export function isUnused({ sole, holders, waiters }: KeyState): boolean {
  return !sole && !holders && !waiters?.size
}
