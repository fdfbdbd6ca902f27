import type { World } from '../../kit/world.js'
import type { Claim, Grant, Lease } from '../../store.js'
import type { LockId } from './ids.js'
import type { Session } from './session.js'
import { classOf } from './ttl-class.js'

/** What one owner holds. */
export interface Holding {
  readonly key: string
  readonly owner: string
  readonly id: LockId
  readonly shared: boolean
  readonly token: bigint
  /** By the clock of this process. */
  readonly since: number
  readonly session: Session
  readonly lost: AbortController
  /** A live process lets go by itself of what nobody renews; a frozen one loses its session. */
  deadline: number
  value: string | undefined
}

/** What identifies a grant or a place: keys contain no NUL. */
export function identOf({ key, owner }: { key: string; owner: string }): string {
  return `${key}\0${owner}`
}

/**
 * A lock as this process sees it. PostgreSQL lets a session take its own lock again, so who excludes whom on one session
 * is decided here. One at a time may change it.
 */
export class Entry {
  readonly id: LockId
  readonly holders: Map<string, Holding> = new Map()
  readonly #book: Book
  readonly #queue: (() => void)[] = []
  #busy = false

  constructor(book: Book, id: LockId) {
    this.#book = book
    this.id = id
  }

  /** Wait for the others who are about to change it. Nothing to wait for, no promise. */
  enter(): Promise<void> | undefined {
    if (this.#busy) return new Promise((resolve) => this.#queue.push(resolve))
    this.#busy = true
    return undefined
  }

  leave(): void {
    const next = this.#queue.shift()
    if (next) return next()
    this.#busy = false
    this.#book.forget(this)
  }

  get idle(): boolean {
    return !this.#busy && this.holders.size === 0
  }

  /** One of those who hold it here, if that is in the way of such a claim. */
  obstacle(shared: boolean): Holding | undefined {
    const [holder] = this.holders.values()
    return holder && !(shared && holder.shared) ? holder : undefined
  }

  isHeldOn(session: Session): boolean {
    for (const holding of this.holders.values()) if (holding.session === session) return true
    return false
  }
}

/** Everything this process holds. */
export class Book {
  readonly #world: World
  readonly #entries = new Map<string, Entry>()
  readonly #holdings = new Map<string, Holding>()
  readonly #onExpired: (holding: Holding) => void
  #lookAt = Number.POSITIVE_INFINITY
  #cancelLook: (() => void) | undefined

  constructor(world: World, onExpired: (holding: Holding) => void) {
    this.#world = world
    this.#onExpired = onExpired
  }

  entry(id: LockId): Entry {
    let entry = this.#entries.get(id.text)
    if (!entry) this.#entries.set(id.text, (entry = new Entry(this, id)))
    return entry
  }

  peek(id: LockId): Entry | undefined {
    return this.#entries.get(id.text)
  }

  forget(entry: Entry): void {
    if (entry.idle && this.#entries.get(entry.id.text) === entry) this.#entries.delete(entry.id.text)
  }

  /** With a token: that very grant. */
  find(lease: Pick<Lease, 'key' | 'owner' | 'token'>): Holding | undefined {
    const holding = this.#holdings.get(identOf(lease))
    return lease.token === undefined || holding?.token === lease.token ? holding : undefined
  }

  get holdings(): IterableIterator<Holding> {
    return this.#holdings.values()
  }

  /** `sentAt`: when the statement was sent that was granted. The server counts from later than that. */
  add(claim: Claim, id: LockId, session: Session, token: bigint, sentAt: number): Holding {
    const { key, owner, value } = claim
    const holding: Holding = {
      key,
      owner,
      id,
      shared: isShared(claim),
      token,
      since: this.#world.now(),
      session,
      lost: new AbortController(),
      deadline: sentAt + claim.ttlMs,
      value,
    }
    const ident = identOf(claim)
    this.#holdings.set(ident, holding)
    this.entry(id).holders.set(ident, holding)
    session.holdings.add(holding)
    session.ttlClass = Math.max(session.ttlClass ?? 0, classOf(claim.ttlMs))
    this.#watch(holding.deadline)
    return holding
  }

  /** Never shortens. False: its time has already passed, although no timer has said so yet. */
  extend(holding: Holding, ttlMs: number): boolean {
    const now = this.#world.now()
    if (holding.deadline <= now) return false
    holding.deadline = Math.max(holding.deadline, now + ttlMs)
    // A lock cannot move to another session. From here on no shorter ones join it here.
    const { session } = holding
    session.ttlClass = Math.max(session.ttlClass ?? 0, classOf(ttlMs))
    return true
  }

  /** From here on it is not held, whatever the server still thinks. False: it was not held any more. */
  remove(holding: Holding): boolean {
    const ident = identOf(holding)
    if (this.#holdings.get(ident) !== holding) return false
    this.#holdings.delete(ident)
    holding.session.holdings.delete(holding)
    const entry = this.entry(holding.id)
    entry.holders.delete(ident)
    this.forget(entry)
    return true
  }

  stop(): void {
    this.#cancelLook?.()
    this.#lookAt = Number.NEGATIVE_INFINITY
  }

  /** One timer for all of them: leases that are renewed or released in time cost nothing here. */
  #watch(deadline: number): void {
    if (deadline >= this.#lookAt) return
    this.#cancelLook?.()
    this.#lookAt = deadline
    this.#cancelLook = this.#world.after(deadline - this.#world.now() + 1, () => this.#look())
  }

  #look(): void {
    const now = this.#world.now()
    this.#lookAt = Number.POSITIVE_INFINITY
    let next = Number.POSITIVE_INFINITY
    for (const holding of [...this.#holdings.values()]) {
      if (holding.deadline <= now) this.#onExpired(holding)
      else next = Math.min(next, holding.deadline)
    }
    if (next < Number.POSITIVE_INFINITY) this.#watch(next)
  }
}

/** `1 of ALL` shares, `ALL of ALL` excludes. */
export function isShared({ weight, capacity }: Claim): boolean {
  return weight !== capacity
}

export function grantOf({ owner, token, lost }: Holding, ttlMs: number): Grant {
  return { granted: true, owner, token, ttlMs, lost: lost.signal }
}
