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
  #first: Promise<Session> | undefined
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

  /** One that is there already: never one that waits, and among the others the one with most locks. */
  ready(): Session | undefined {
    let best: Session | undefined
    for (const session of this.#open) {
      if (session.waiting || session.stalled || session.lost) continue
      if (!best || session.holdings.size > best.holdings.size) best = session
    }
    return best
  }

  any(): Session | Promise<Session> {
    const ready = this.ready()
    if (ready) return ready
    if (this.#open.length + this.#opening < this.#most) return (this.#first ??= this.#openFirst())
    if (this.#first) return this.#first
    const stuck = this.#open.find((session) => !session.waiting)
    return stuck ?? Promise.reject(new Error('all sessions wait for locks'))
  }

  /** Does something on a session at once: a moment later it might have been taken to wait on. */
  async use<T>(work: (session: Session) => T | Promise<T>): Promise<T> {
    for (;;) {
      const found = this.any()
      const session = found instanceof Promise ? await found : found
      if (!session.waiting && !session.lost) return work(session)
    }
  }

  /** Somebody has to hear questions and cancel waits while others wait. */
  keepOneAwake(): void {
    if (!this.#open.some((session) => !session.waiting)) void (this.any() as Promise<Session>).catch(() => {})
  }

  /** One to wait on, or undefined if there are none to spare: one always stays for everything else. */
  async toWait(): Promise<Session | undefined> {
    const waiting = this.#open.filter((session) => session.waiting).length
    if (waiting + this.#opening >= this.#most - 1) return undefined
    const free = this.#open.find((session) => session.free)
    if (free) {
      free.waiting = true
      return free
    }
    if (this.#open.length + this.#opening >= this.#most) return undefined
    try {
      return await this.#openAnother(true)
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

  async #openFirst(): Promise<Session> {
    try {
      return await this.#openAnother()
    } finally {
      this.#first = undefined
    }
  }

  async #openAnother(waiting = false): Promise<Session> {
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
