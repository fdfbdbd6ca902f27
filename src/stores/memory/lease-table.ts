/**
 * The rule of the store contract on a map from key to holders and waiters.
 *
 * @module
 */
import type { Answer, Blocker, Claim, Grant, LeaseId, Released, Renewal, Renewed } from '../../store.js'
import type { World } from '../../util/world.js'
import {
  type KeyState,
  type MemoryHolder,
  addHolder,
  admits,
  allHolders,
  dropExpiredWaiters,
  enqueue,
  entriesAhead,
  findHolder,
  firstHolderToEnd,
  fits,
  isUnused,
  removeHolder,
} from './key-state.js'
import type { MemoryWakeups } from './wakeups.js'

/** Keys that are kept although they may be unused: the next claim of such a key needs no new state. More would only cost memory. */
const MOST_UNUSED = 1_000

/**
 * How often, in milliseconds, expired leases of keys that no call names any more are dropped. Shorter would cost processor time,
 * longer would keep memory.
 */
const SWEEP_MS = 10_000

/**
 * How often, in milliseconds, tokens are compared with the clock. At each grant it would cost 2 to 7 % of a lock: V8 leaves compiled code
 * to make a bigint of a number. Longer would leave tokens further behind the clock.
 */
const TOKEN_CLOCK_MS = 1

const RELEASED: Released = { outcome: 'released' }
const GONE: { outcome: 'gone' } = { outcome: 'gone' }

/** All keys. Events are posted to `wakeups` and delivered by the caller when it is done; an atomic acquire and the sweep deliver themselves. */
export class MemoryLeaseTable {
  readonly #world: World
  readonly #wakeups: MemoryWakeups
  readonly #keys = new Map<string, KeyState>()
  /** The newest token of any key: one counter for all, so that nothing has to be kept per name. */
  #lastToken = 0n
  /** When `#lastToken` is compared with the clock again. */
  #tokenClockAt = Number.NEGATIVE_INFINITY
  /** How often a key lost its last holder since unused keys were last dropped. */
  #becameUnused = 0
  #isSweepPlanned = false
  #behindAnswer: Renewed = GONE
  #behindAnswerToken = -1n

  constructor(world: World, wakeups: MemoryWakeups) {
    this.#world = world
    this.#wakeups = wakeups
  }

  keys(): string[] {
    return [...this.#keys.keys()]
  }

  /**
   * The rule, for one claim. A lease that expires notifies no waiter, so the first claim after it also grants to every
   * waiter that fits now: otherwise ten readers behind a dead writer would be granted one by one, each at its next poll.
   */
  acquire(claim: Claim, now: number): Answer {
    const state = this.liveState(claim.key, now)
    if (!state?.waiters || state.waiters.size === 0) return this.#decide(state, claim, now)
    this.#serveBefore(state, claim, now)
    const answer = this.#decide(state, claim, now)
    if (answer.granted) this.#serve(claim.key, state, now)
    return answer
  }

  /** All or none: grants one after the other, and takes all back if one was refused. No queue entry is added. */
  acquireAtomically(claims: readonly Claim[], now: number): Answer[] {
    const states = claims.map((claim) => this.liveState(claim.key, now))
    for (const [i, claim] of claims.entries()) this.#serveBefore(states[i], claim, now)
    const { posted } = this.#wakeups
    const held = claims.map(({ owner }, i) => findHolder(states[i], owner) !== undefined)
    const answers = claims.map((claim) =>
      this.#decide(this.#keys.get(claim.key), { ...claim, queueMs: undefined }, now),
    )
    const granted = answers.every((answer) => answer.granted)
    if (!granted) {
      for (const [i, { key, owner }] of claims.entries()) {
        const state = this.#keys.get(key)
        const holder = findHolder(state, owner)
        if (state && holder && !held[i]) this.#end(key, state, holder)
      }
      // Grants that were taken back are not announced; those to waiters that were served before are.
      this.#wakeups.undoPosts(posted)
    }
    for (const { key } of claims) this.#serve(key, this.#keys.get(key), now)
    this.#wakeups.deliver()
    if (granted) return answers
    return claims.map((claim) => this.#refusal(this.#keys.get(claim.key), claim))
  }

  #decide(known: KeyState | undefined, claim: Claim, now: number): Answer {
    let state = known
    const held = findHolder(state, claim.owner)
    if (held) {
      held.expiresAt = Math.max(held.expiresAt, now + claim.ttlMs)
      return { granted: true, owner: claim.owner, token: held.token, ttlMs: claim.ttlMs }
    }
    if (claim.steal && state) this.#evict(claim.key, state)
    if (claim.steal || admits(state, claim)) {
      state?.waiters?.delete(claim.owner)
      if (!state) this.#keys.set(claim.key, (state = { holders: undefined, sole: undefined, waiters: undefined }))
      return this.#grant(state, claim, now, claim.ttlMs)
    }
    if (claim.queueMs !== undefined) enqueue(state as KeyState, claim, claim.queueMs, now)
    return this.#refusal(state, claim)
  }

  #grant(state: KeyState, claim: Claim, now: number, ttlMs: number): Grant {
    const { tokens } = claim
    const token = this.#nextToken(now)
    this.#lastToken = tokens === undefined ? token : token + BigInt(tokens - 1)
    addHolder(state, {
      owner: claim.owner,
      weight: claim.weight,
      capacity: claim.capacity,
      expiresAt: now + ttlMs,
      token,
      since: now,
      value: claim.value,
      announce: claim.announce === true,
    })
    if (claim.announce) this.#wakeups.post(claim.key, { type: 'changed' })
    if (!this.#isSweepPlanned) this.#planSweep()
    return { granted: true, owner: claim.owner, token, ttlMs, tokens }
  }

  /** Larger than every earlier one, and no further than `TOKEN_CLOCK_MS` behind the clock in µs, so that tokens grow over a restart too. */
  #nextToken(now: number): bigint {
    const next = this.#lastToken + 1n
    if (now < this.#tokenClockAt) return next
    this.#tokenClockAt = now + TOKEN_CLOCK_MS
    const clock = BigInt(Math.floor(now * 1_000))
    return clock > next ? clock : next
  }

  #refusal(state: KeyState | undefined, claim: Claim): Answer {
    const ahead = entriesAhead(state, claim.owner)
    const newest = this.#lastToken
    const holder = firstHolderToEnd(state)
    if (!holder) return { granted: false, ahead, newest }
    const { owner, token, value, expiresAt } = holder
    const blocker: Blocker = { owner, token, value, ttlMs: Math.max(expiresAt - this.#world.now(), 0) }
    return { granted: false, ahead, newest, blocker }
  }

  renew(state: KeyState | undefined, { key, owner, token, ttlMs, value }: Renewal, now: number): Renewed {
    const holder = findHolder(state, owner)
    if (!holder || (token ?? holder.token) !== holder.token) return GONE
    holder.expiresAt = Math.max(holder.expiresAt, now + ttlMs)
    if (value !== undefined) {
      holder.value = value
      this.#wakeups.post(key, { type: 'changed' })
    }
    return { outcome: 'ours', ttlMs }
  }

  renewQueued(state: KeyState | undefined, { owner, ttlMs }: Renewal, now: number): Renewed {
    const holder = findHolder(state, owner)
    if (holder) return { outcome: 'granted', token: holder.token, ttlMs: holder.expiresAt - now }
    const waiter = state?.waiters?.get(owner)
    if (!state || !waiter || waiter.expiresAt <= now) return GONE
    waiter.expiresAt = Math.max(waiter.expiresAt, now + ttlMs)
    if (state.waiters?.keys().next().value !== owner) return this.#behind()
    const newest = this.#lastToken
    if (fits(state, waiter.claim)) return { outcome: 'waiting', ahead: 0, newest, blockedMs: 0 }
    const blocker = firstHolderToEnd(state)
    return { outcome: 'waiting', ahead: 0, newest, blockedMs: blocker ? blocker.expiresAt - now : Infinity }
  }

  /** One answer for all waiters but the first: an object for each of ten thousand would cost several percent of a core. */
  #behind(): Renewed {
    if (this.#behindAnswerToken !== this.#lastToken) {
      this.#behindAnswerToken = this.#lastToken
      this.#behindAnswer = { outcome: 'waiting', ahead: 1, newest: this.#lastToken }
    }
    return this.#behindAnswer
  }

  release({ key, owner, token }: LeaseId, now: number): Released {
    const state = this.liveState(key, now)
    if (!state) return GONE
    const holder = findHolder(state, owner)
    if (token !== undefined && holder?.token !== token) return GONE
    const waiter = token === undefined ? state.waiters?.get(owner) : undefined
    const waited = waiter !== undefined && waiter.expiresAt > now
    if (waiter) state.waiters?.delete(owner)
    if (holder) this.#end(key, state, holder)
    else if (!waited) return GONE
    if (state.waiters && state.waiters.size > 0) this.#serve(key, state, now)
    if (!state.sole && !state.holders) this.#dropUnusedIfMany()
    return RELEASED
  }

  /** The state of a key without what expired. Grants nothing: the first waiter asks again when a lease ends. */
  liveState(key: string, now: number): KeyState | undefined {
    const state = this.#keys.get(key)
    if (!state) return undefined
    if (state.sole && state.sole.expiresAt <= now) this.#end(key, state, state.sole)
    if (state.holders) for (const holder of state.holders.expired(now)) this.#end(key, state, holder)
    if (state.waiters) dropExpiredWaiters(state.waiters, now)
    return state
  }

  /** Ends all leases of the key and grants to the next waiters. */
  revoke(key: string, state: KeyState, now: number): void {
    this.#evict(key, state)
    this.#serve(key, state, now)
  }

  /** Grants to waiters ahead of this claim that fit. Not before a steal, which would revoke their grants at once. */
  #serveBefore(state: KeyState | undefined, { key, owner, steal }: Claim, now: number): void {
    if (!steal) this.#serve(key, state, now, owner)
  }

  /**
   * Hands the lease to the first waiters while there is room: they need no second request, and no newcomer can race them.
   * Stops before the owner whose claim is being answered, which gets its full ttl instead.
   */
  #serve(key: string, state: KeyState | undefined, now: number, before?: string): void {
    if (!state?.waiters) return
    for (const [owner, waiter] of state.waiters) {
      const expired = waiter.expiresAt <= now
      // Expiry is checked first: an expired entry of the claiming owner itself must not count as the first in the queue.
      if (!expired && (owner === before || !fits(state, waiter.claim))) return
      state.waiters.delete(owner)
      if (expired) continue
      const ttlMs = Math.min(waiter.queueMs, waiter.claim.ttlMs)
      const { token, tokens } = this.#grant(state, waiter.claim, now, ttlMs)
      this.#wakeups.post(key, { type: 'granted', owner, token, ttlMs, tokens })
    }
  }

  #evict(key: string, state: KeyState): void {
    for (const { owner, token, announce } of allHolders(state)) {
      this.#wakeups.postRevoked(key, owner, token)
      if (announce) this.#wakeups.post(key, { type: 'changed' })
    }
    state.sole = undefined
    state.holders = undefined
  }

  #end(key: string, state: KeyState, holder: MemoryHolder): void {
    removeHolder(state, holder)
    if (holder.announce) this.#wakeups.post(key, { type: 'changed' })
  }

  #dropUnusedIfMany(): void {
    // To drop keys that come back costs more than to keep them: V8 then copies the map, and what was in it survives collections.
    if (++this.#becameUnused <= MOST_UNUSED || this.#keys.size <= MOST_UNUSED) return
    this.#becameUnused = 0
    for (const [key, state] of this.#keys) if (isUnused(state)) this.#keys.delete(key)
  }

  /** Runs while any key is known. The timer does not keep the process alive. */
  #planSweep(): void {
    this.#isSweepPlanned = true
    this.#world.after(SWEEP_MS, () => {
      this.#isSweepPlanned = false
      const now = this.#world.now()
      for (const key of [...this.#keys.keys()]) {
        const state = this.liveState(key, now)
        if (state && isUnused(state)) this.#keys.delete(key)
      }
      this.#wakeups.deliver()
      if (this.#keys.size > 0) this.#planSweep()
    })
  }
}
