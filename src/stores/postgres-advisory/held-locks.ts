import type { Answer, Blocker, Claim, Grant, LeaseId, Refusal } from '../../store.js'
import type { World } from '../../util/world.js'
import { toLeaseholdError } from './errors.js'
import type { LockId } from './keys.js'
import { type HeldOnSession, ttlClassOf } from './locking.js'
import type { AdvisorySession } from './session.js'

/** What one owner holds. */
export interface Holding extends HeldOnSession {
  readonly key: string
  readonly owner: string
  readonly shared: boolean
  readonly token: bigint
  /** By the clock of this process. */
  readonly since: number
  readonly session: AdvisorySession
  /** A live process unlocks by itself what nobody renews; a frozen one loses its session. */
  deadline: number
  value: string | undefined
}

/** What identifies a grant or a queue entry: keys contain no NUL. */
export function identOf({ key, owner }: { key: string; owner: string }): string {
  return `${key}\0${owner}`
}

/**
 * A lock as this process sees it. PostgreSQL lets a session take its own lock again, so who excludes whom on one session
 * is decided here. One caller at a time may change it.
 */
export class HeldLock {
  readonly id: LockId
  readonly holders: Map<string, Holding> = new Map()
  readonly #heldLocks: HeldLocks
  readonly #queue: (() => void)[] = []
  #busy = false

  constructor(heldLocks: HeldLocks, id: LockId) {
    this.#heldLocks = heldLocks
    this.id = id
  }

  /** Waits for the callers who are about to change it. Undefined if there is none: a promise would cost a turn. */
  enter(): Promise<void> | undefined {
    if (this.#busy) return new Promise((resolve) => this.#queue.push(resolve))
    this.#busy = true
    return undefined
  }

  leave(): void {
    const next = this.#queue.shift()
    if (next) return next()
    this.#busy = false
    this.#heldLocks.forget(this)
  }

  get idle(): boolean {
    return !this.#busy && this.holders.size === 0
  }

  /** One of the holders in this process, if it excludes such a claim. */
  obstacle(shared: boolean): Holding | undefined {
    const [holder] = this.holders.values()
    return holder && !(shared && holder.shared) ? holder : undefined
  }

  isHeldOn(session: AdvisorySession): boolean {
    for (const holding of this.holders.values()) if (holding.session === session) return true
    return false
  }
}

/** Everything this process holds. */
export class HeldLocks {
  readonly #world: World
  readonly #locks = new Map<string, HeldLock>()
  readonly #holdings = new Map<string, Holding>()
  readonly #onExpired: (holding: Holding) => void
  #checkAt = Number.POSITIVE_INFINITY
  #cancelCheck: (() => void) | undefined

  constructor(world: World, onExpired: (holding: Holding) => void) {
    this.#world = world
    this.#onExpired = onExpired
  }

  /** Created if this process has neither held nor asked for it yet; `forget` drops it again. */
  lock(id: LockId): HeldLock {
    let lock = this.#locks.get(id.text)
    if (!lock) this.#locks.set(id.text, (lock = new HeldLock(this, id)))
    return lock
  }

  peek(id: LockId): HeldLock | undefined {
    return this.#locks.get(id.text)
  }

  forget(lock: HeldLock): void {
    if (lock.idle && this.#locks.get(lock.id.text) === lock) this.#locks.delete(lock.id.text)
  }

  /** With a token: that very grant. */
  find(lease: Pick<LeaseId, 'key' | 'owner' | 'token'>): Holding | undefined {
    const holding = this.#holdings.get(identOf(lease))
    return lease.token === undefined || holding?.token === lease.token ? holding : undefined
  }

  get holdings(): IterableIterator<Holding> {
    return this.#holdings.values()
  }

  /** `sentAt`: when the statement was sent that was granted. The server counts from later than that. */
  add(claim: Claim, id: LockId, session: AdvisorySession, token: bigint, sentAt: number): Holding {
    const { key, owner, value } = claim
    const holding: Holding = {
      key,
      owner,
      id,
      shared: isShared(claim),
      token,
      since: this.#world.now(),
      session,
      deadline: sentAt + claim.ttlMs,
      value,
    }
    const ident = identOf(claim)
    this.#holdings.set(ident, holding)
    this.lock(id).holders.set(ident, holding)
    session.holdings.add(holding)
    session.ttlClass = Math.max(session.ttlClass ?? 0, ttlClassOf(claim.ttlMs))
    this.#scheduleCheck(holding.deadline)
    return holding
  }

  /** Never shortens. False: the time of the holding has already passed, although no timer has fired yet. */
  extend(holding: Holding, ttlMs: number): boolean {
    const now = this.#world.now()
    if (holding.deadline <= now) return false
    holding.deadline = Math.max(holding.deadline, now + ttlMs)
    // A lock cannot move to another session. From here on no shorter ones join it here.
    const { session } = holding
    session.ttlClass = Math.max(session.ttlClass ?? 0, ttlClassOf(ttlMs))
    return true
  }

  /** From here on it is not held, whatever the server still thinks. False: it was not held any more. */
  remove(holding: Holding): boolean {
    const ident = identOf(holding)
    if (this.#holdings.get(ident) !== holding) return false
    this.#holdings.delete(ident)
    holding.session.holdings.delete(holding)
    const lock = this.lock(holding.id)
    lock.holders.delete(ident)
    this.forget(lock)
    return true
  }

  /** Removes and returns everything that was held on a session. */
  removeAllOn(session: AdvisorySession): Holding[] {
    const removed = [...this.#holdings.values()].filter((holding) => holding.session === session)
    for (const holding of removed) this.remove(holding)
    return removed
  }

  stop(): void {
    this.#cancelCheck?.()
    this.#checkAt = Number.NEGATIVE_INFINITY
  }

  /** One timer for all holdings: those that are renewed or released in time cost nothing here. */
  #scheduleCheck(deadline: number): void {
    if (deadline >= this.#checkAt) return
    this.#cancelCheck?.()
    this.#checkAt = deadline
    this.#cancelCheck = this.#world.after(deadline - this.#world.now() + 1, () => this.#check())
  }

  #check(): void {
    const now = this.#world.now()
    this.#checkAt = Number.POSITIVE_INFINITY
    let next = Number.POSITIVE_INFINITY
    for (const holding of [...this.#holdings.values()]) {
      if (holding.deadline <= now) this.#onExpired(holding)
      else next = Math.min(next, holding.deadline)
    }
    if (next < Number.POSITIVE_INFINITY) this.#scheduleCheck(next)
  }
}

/** `1 of ALL` shares, `ALL of ALL` excludes. */
export function isShared({ weight, capacity }: Claim): boolean {
  return weight !== capacity
}

export function grantOf({ owner, token }: Holding, ttlMs: number): Grant {
  return { granted: true, owner, token, ttlMs }
}

export function blockerOf({ owner, token, value }: Holding): Blocker {
  return { owner, token, value }
}

/** The refusal of a claim, with the holder in this process that excludes it, if it is one of this process. */
export function refusalOf(lock: HeldLock, claim: Claim): Refusal {
  const obstacle = lock.obstacle(isShared(claim))
  return obstacle ? { granted: false, blocker: blockerOf(obstacle) } : { granted: false }
}

export function unknown(error: unknown): Answer {
  return { granted: 'unknown', error: toLeaseholdError(error) }
}
