import { errorCode } from '../../clients/postgres/errors.js'
import { ClosedError } from '../../errors.js'
import type { Blocker } from '../../store.js'
import { poolerError } from './errors.js'
import { AdvisorySession, type AdvisorySessionOptions } from './session.js'
import { BLOCKER, CANCEL } from './statements.js'

/** BLOCKER_MS: how long a refusal waits for the name of the blocker, which is nice to know and not worth more. */
const BLOCKER_MS = 500

/** REST_MS: pause between two looks at what is still open while no instance uses the store. Shorter costs more for nothing. */
const REST_MS = 250

/**
 * The connections of one store. Locks gather on as few of them as possible, so that others are free to wait: a session
 * that waits can neither be pinged nor release, and must hold nothing.
 */
export class AdvisorySessions {
  readonly #options: AdvisorySessionOptions
  readonly #maxSessions: number
  readonly #onLost: AdvisorySessionOptions['onLost']
  readonly #open: AdvisorySession[] = []
  #opening = 0
  /** Why the last session ended or could not be opened, until one was opened again. */
  outage: unknown
  /** Sessions that are being opened, by the class of ttl they are for; undefined: for anything. */
  readonly #pending = new Map<number | undefined, Promise<AdvisorySession>>()
  /** Set while no instance uses the store, and sessions are still open: cancels the next look at them. */
  #cancelRest: (() => void) | undefined
  #closed: Promise<void> | undefined

  constructor(options: AdvisorySessionOptions, maxSessions: number) {
    this.#options = {
      ...options,
      onLost: (session, error) => this.#removeLost(session, error),
      onIdle: (session) => this.#closeIdle(session),
    }
    this.#maxSessions = maxSessions
    this.#onLost = options.onLost
  }

  get open(): readonly AdvisorySession[] {
    return this.#open
  }

  /** An open session for locks of this class: never one that waits, and among the others the one with most locks. */
  ready(ttlClass?: number): AdvisorySession | undefined {
    let best: AdvisorySession | undefined
    for (const session of this.#open) {
      if (session.waiting || session.stalled || session.lost) continue
      if (ttlClass !== undefined && (session.ttlClass ?? ttlClass) !== ttlClass) continue
      if (!best || session.holdings.size > best.holdings.size) best = session
    }
    if (ttlClass !== undefined) best?.reserve(ttlClass)
    return best
  }

  any(ttlClass?: number): AdvisorySession | Promise<AdvisorySession> {
    const ready = this.ready(ttlClass)
    if (ready) return ready
    // A session that is being opened for anything serves a class as well, and one for a class serves any query.
    const pending = this.#pending.get(ttlClass) ?? this.#pending.get(undefined)
    if (pending) return pending
    if (ttlClass === undefined && this.#pending.size > 0)
      return this.#pending.values().next().value as Promise<AdvisorySession>
    const mine = this.#open.find(
      (session) => !session.waiting && (ttlClass === undefined || session.ttlClass === ttlClass),
    )
    // A class always gets a session: locks of two classes on one would outlive a frozen process for too long.
    if (this.#open.length + this.#opening < this.#maxSessions || (ttlClass !== undefined && !mine)) {
      return this.#openShared(ttlClass)
    }
    return mine ?? Promise.reject(new Error('all sessions wait for locks'))
  }

  /** Runs `work` in the same turn in which the session is found: a turn later it might have been taken to wait on. */
  async use<T>(work: (session: AdvisorySession) => T | Promise<T>, ttlClass?: number): Promise<T> {
    for (;;) {
      const found = this.any(ttlClass)
      const session = found instanceof Promise ? await found : found
      if (session.waiting || session.lost) continue
      if (ttlClass === undefined || session.reserve(ttlClass)) return work(session)
    }
  }

  /** A session that waits can neither answer the queries of other processes nor cancel a wait, so one has to stay free. */
  keepOneListening(): void {
    if (!this.#open.some((session) => !session.waiting)) void (this.any() as Promise<AdvisorySession>).catch(() => {})
  }

  /** A session to wait on, or undefined if there is none to spare: one always stays for everything else. */
  async reserveForWait(ttlClass: number): Promise<AdvisorySession | undefined> {
    const waiting = this.#open.filter((session) => session.waiting).length
    if (waiting + this.#opening >= this.#maxSessions - 1) return undefined
    const free = this.#open.find((session) => session.free)
    if (free) {
      free.waiting = true
      free.ttlClass = ttlClass
      return free
    }
    if (this.#open.length + this.#opening >= this.#maxSessions + this.#furtherClasses()) return undefined
    try {
      return await this.#openAnother(ttlClass, true)
    } catch (error) {
      // The server takes no more connections. The open sessions go on working; the waiter has to poll.
      if (errorCode((error as Error).cause) === '53300' && this.#open.length > 0) return undefined
      throw error
    }
  }

  /** Cancels the statement with which a session waits, from another session: its own cannot send anything. */
  async cancelWait(waiting: AdvisorySession): Promise<void> {
    await this.use((other) => other.query(CANCEL, [String(waiting.pid), waiting.startedAt]))
  }

  /** Whether the server sees this session wait, and the backend that blocks it. Undefined: the server took too long. */
  async blockerOf(waiting: AdvisorySession): Promise<{ waits: boolean; blocker: Blocker | undefined } | undefined> {
    const asked = this.use((other) => other.query(BLOCKER, [String(waiting.pid)])).catch(() => [])
    const late = new Promise<[]>((resolve) => this.#options.world.after(BLOCKER_MS, () => resolve([])))
    const [row] = await Promise.race([asked, late])
    if (!row) return undefined
    const [waits, pid, application, address] = row
    const owner = `${application || 'session'} pid ${pid}${address ? ` at ${address}` : ''}`
    return { waits: waits !== 'f', blocker: pid ? { owner } : undefined }
  }

  /** No instance uses the store: ends all sessions as soon as nothing is asked of them, until `attend()`. */
  rest(): void {
    this.#cancelRest?.()
    for (const session of [...this.#open]) if (session.free) this.#end(session)
    const later = this.#open.length + this.#opening > 0 && !this.#closed
    this.#cancelRest = later ? this.#options.world.after(REST_MS, () => this.rest()) : undefined
  }

  /** The store is used again. */
  attend(): void {
    this.#cancelRest?.()
    this.#cancelRest = undefined
  }

  close(): Promise<void> {
    this.#closed ??= Promise.all(this.#open.splice(0).map((session) => session.close())).then(() => {})
    return this.#closed
  }

  #openShared(ttlClass: number | undefined): Promise<AdvisorySession> {
    const opening = this.#openAnother(ttlClass).finally(() => this.#pending.delete(ttlClass))
    this.#pending.set(ttlClass, opening)
    return opening
  }

  /** Sessions that exist only because what is held has several classes do not count against the sessions to wait on. */
  #furtherClasses(): number {
    const holding = this.#open.filter((session) => !session.waiting && session.ttlClass !== undefined)
    return Math.max(new Set(holding.map((session) => session.ttlClass)).size - 1, 0)
  }

  async #openAnother(ttlClass: number | undefined, waiting = false): Promise<AdvisorySession> {
    if (this.#closed) throw new ClosedError('the store was closed')
    this.#opening++
    try {
      const session = await AdvisorySession.open(this.#options)
      if (session.lost) throw session.lost
      if (this.#closed) {
        await session.close()
        throw new ClosedError('the store was closed')
      }
      if (this.#open.some(({ pid, startedAt }) => pid === session.pid && startedAt === session.startedAt)) {
        const error = poolerError()
        session.fail(error)
        throw error
      }
      session.waiting = waiting
      session.ttlClass = ttlClass
      this.#open.push(session)
      this.outage = undefined
      return session
    } catch (error) {
      if (!(error instanceof ClosedError)) this.outage = error
      throw error
    } finally {
      this.#opening--
    }
  }

  #removeLost(session: AdvisorySession, error: Parameters<AdvisorySessionOptions['onLost']>[1]): void {
    const at = this.#open.indexOf(session)
    if (at >= 0) this.#open.splice(at, 1)
    this.outage = error
    this.#onLost(session, error)
  }

  /** Closes a session that has been idle, but never the last one: opening one takes longer than a whole acquisition. */
  #closeIdle(session: AdvisorySession): void {
    if (session.free && this.#open.length > 1) this.#end(session)
  }

  #end(session: AdvisorySession): void {
    this.#open.splice(this.#open.indexOf(session), 1)
    void session.close()
  }
}
