import { ClosedError } from '../../errors.js'
import { Session, type SessionOptions } from './session.js'
import { codeOf, pooled } from './trouble.js'

/**
 * The connections of one store. Locks gather on as few of them as possible, so that others are free to wait: a session
 * that waits can neither be pinged nor release, and must hold nothing.
 */
export class Sessions {
  readonly #options: SessionOptions
  readonly #most: number
  readonly #onLost: SessionOptions['onLost']
  readonly #open: Session[] = []
  #opening = 0
  /** By class of ttl; undefined: for anything. */
  readonly #first = new Map<number | undefined, Promise<Session>>()
  #closed: Promise<void> | undefined

  constructor(options: SessionOptions, most: number) {
    this.#options = {
      ...options,
      onLost: (session, error) => this.#lost(session, error),
      onIdle: (session) => this.#idle(session),
    }
    this.#most = most
    this.#onLost = options.onLost
  }

  get open(): readonly Session[] {
    return this.#open
  }

  /** One that is there already for locks of this class: never one that waits, and among the others the one with most locks. */
  ready(ttlClass?: number): Session | undefined {
    let best: Session | undefined
    for (const session of this.#open) {
      if (session.waiting || session.stalled || session.lost) continue
      if (ttlClass !== undefined && (session.ttlClass ?? ttlClass) !== ttlClass) continue
      if (!best || session.holdings.size > best.holdings.size) best = session
    }
    if (ttlClass !== undefined) best?.reserve(ttlClass)
    return best
  }

  any(ttlClass?: number): Session | Promise<Session> {
    const ready = this.ready(ttlClass)
    if (ready) return ready
    // One that is being opened for anything serves a class as well, and one for a class serves whoever only asks.
    const first = this.#first.get(ttlClass) ?? this.#first.get(undefined)
    if (first) return first
    if (ttlClass === undefined && this.#first.size > 0) return this.#first.values().next().value as Promise<Session>
    const mine = this.#open.find(
      (session) => !session.waiting && (ttlClass === undefined || session.ttlClass === ttlClass),
    )
    // A class always gets a session: locks of two classes on one would outlive a frozen process for too long.
    if (this.#open.length + this.#opening < this.#most || (ttlClass !== undefined && !mine)) {
      return this.#openFirst(ttlClass)
    }
    return mine ?? Promise.reject(new Error('all sessions wait for locks'))
  }

  /** Does something on a session at once: a moment later it might have been taken to wait on. */
  async use<T>(work: (session: Session) => T | Promise<T>, ttlClass?: number): Promise<T> {
    for (;;) {
      const found = this.any(ttlClass)
      const session = found instanceof Promise ? await found : found
      if (session.waiting || session.lost) continue
      if (ttlClass === undefined || session.reserve(ttlClass)) return work(session)
    }
  }

  /** Somebody has to hear questions and cancel waits while others wait. */
  keepOneAwake(): void {
    if (!this.#open.some((session) => !session.waiting)) void (this.any() as Promise<Session>).catch(() => {})
  }

  /** One to wait on, or undefined if there are none to spare: one always stays for everything else. */
  async toWait(ttlClass: number): Promise<Session | undefined> {
    const waiting = this.#open.filter((session) => session.waiting).length
    if (waiting + this.#opening >= this.#most - 1) return undefined
    const free = this.#open.find((session) => session.free)
    if (free) {
      free.waiting = true
      free.ttlClass = ttlClass
      return free
    }
    if (this.#open.length + this.#opening >= this.#most + this.#furtherClasses()) return undefined
    try {
      return await this.#openAnother(ttlClass, true)
    } catch (error) {
      // Those we have do go on: whoever wants to wait has to ask again and again.
      if (codeOf((error as Error).cause) === '53300' && this.#open.length > 0) return undefined
      throw error
    }
  }

  close(): Promise<void> {
    this.#closed ??= Promise.all(this.#open.splice(0).map((session) => session.close())).then(() => {})
    return this.#closed
  }

  #openFirst(ttlClass: number | undefined): Promise<Session> {
    const opening = this.#openAnother(ttlClass).finally(() => this.#first.delete(ttlClass))
    this.#first.set(ttlClass, opening)
    return opening
  }

  /** Sessions that exist only because what is held has several classes: those do not use up the room of those who wait. */
  #furtherClasses(): number {
    const holding = this.#open.filter((session) => !session.waiting && session.ttlClass !== undefined)
    return Math.max(new Set(holding.map((session) => session.ttlClass)).size - 1, 0)
  }

  async #openAnother(ttlClass: number | undefined, waiting = false): Promise<Session> {
    if (this.#closed) throw new ClosedError('the store was closed')
    this.#opening++
    try {
      const session = await Session.open(this.#options)
      if (session.lost) throw session.lost
      if (this.#closed) {
        await session.close()
        throw new ClosedError('the store was closed')
      }
      if (this.#open.some(({ pid, startedAt }) => pid === session.pid && startedAt === session.startedAt)) {
        const error = pooled()
        session.die(error)
        throw error
      }
      session.waiting = waiting
      session.ttlClass = ttlClass
      this.#open.push(session)
      return session
    } finally {
      this.#opening--
    }
  }

  #lost(session: Session, error: Parameters<SessionOptions['onLost']>[1]): void {
    const at = this.#open.indexOf(session)
    if (at >= 0) this.#open.splice(at, 1)
    this.#onLost(session, error)
  }

  /** The last one stays: opening one takes longer than all of an acquisition. */
  #idle(session: Session): void {
    if (this.#open.length < 2 || !session.free) return
    this.#open.splice(this.#open.indexOf(session), 1)
    void session.close()
  }
}
