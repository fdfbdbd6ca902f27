/**
 * The connection for heartbeats and releases: opened by leasehold, beside the user's own, which may all be busy with the work
 * that the locks protect.
 *
 * @module
 */
import { realWorld } from '../../util/world.js'

/** One open connection. It carries one message at a time. */
export interface OwnSession {
  /**
   * Runs statements in one simple-protocol message, which is one transaction, and then `afterwards`, one statement, in a second
   * transaction of the same message. Settles with the last value of the first transaction; the outcome of the second is dropped.
   */
  send(sql: string, afterwards?: string): Promise<string | undefined>
  /** Sets whether the connection keeps the process alive. */
  keepAlive(on: boolean): void
  /** The connection is ended when it has carried nothing for this many milliseconds. Undefined: it stays open. */
  readonly idleMs?: number | undefined
  /** Ends the connection, whatever its state, within a second. */
  end(): Promise<void>
}

/**
 * Two transactions in one simple-protocol message. Statements of one message share a transaction that BEGIN turns into one that
 * COMMIT may end; COMMIT alone would write a warning into the server's log each time. An error before COMMIT undoes the first
 * and skips the rest, and the session is never left in a transaction.
 *
 * Written as two messages at once, the second could still be under way when PgBouncer in transaction mode sees the end of this
 * connection and takes the backend for free: the next client to get that backend would receive the answer to the second message
 * for a statement of its own. Sent when the first was answered, the second would come a round trip later.
 */
export function inTwoTransactions(sql: string, afterwards: string): string {
  return `${sql};BEGIN;COMMIT;${afterwards}`
}

/** The connection could not be opened, so nothing was sent. */
export class NotConnectedError extends Error {}

/**
 * Bounds how long a message on a connection that broke stays unanswered, in milliseconds. postgres.js may forget it, and its
 * caller would wait for the whole time limit.
 */
const BROKEN_MS = 50

/** After a failed attempt to connect, calls fail at once for this many milliseconds, so that they take the user's pool without delay. */
const PAUSE_MS = 1_000

/** Bounds how long `close()` waits for messages that are under way, in milliseconds. Longer, and a server that is gone delays the end of a process. */
const CLOSE_MS = 500

export interface MessageOptions {
  /** Overtakes messages that are not urgent. */
  urgent?: boolean
  /** The statement of a second transaction, see `OwnSession.send`. */
  afterwards?: string | undefined
}

interface PendingMessage {
  sql: string
  afterwards: string | undefined
  timeoutMs: number
  resolve: (value: string | undefined) => void
  reject: (error: unknown) => void
}

/**
 * One connection for all stores on one client, opened by the first call and again after it broke. Heartbeats overtake
 * releases: a late heartbeat loses a lock, a late release only delays a waiter.
 */
export class OwnConnection {
  readonly #open: (broken: () => void) => Promise<OwnSession>
  readonly #urgent: PendingMessage[] = []
  readonly #others: PendingMessage[] = []
  #session: Promise<OwnSession> | undefined
  /** The same once it is open: a message that finds it leaves in the turn of its call. */
  #opened: OwnSession | undefined
  /** Fails the message that is under way, because its connection broke. */
  #fail: (() => void) | undefined
  #busy = false
  #cancelIdle = (): void => {}
  /** Settles when all messages have been answered. */
  #working: Promise<void> = Promise.resolve()
  #notBefore = 0
  #users = 0

  constructor(open: (broken: () => void) => Promise<OwnSession>) {
    this.#open = open
  }

  /** Rejects with `NotConnectedError` if nothing was sent. */
  run(
    sql: string,
    timeoutMs: number,
    { urgent = false, afterwards }: MessageOptions = {},
  ): Promise<string | undefined> {
    return new Promise((resolve, reject) => {
      const jobs = urgent ? this.#urgent : this.#others
      jobs.push({ sql, afterwards, timeoutMs, resolve, reject })
      if (!this.#busy) this.#start()
    })
  }

  /** Opens the connection, so that the first release need not wait for it. */
  warm(): void {
    if (!this.#session && !this.#busy && this.#users > 0) this.#start()
  }

  /** Counts one more store. The connection is closed with the last. */
  use(): this {
    this.#users++
    return this
  }

  async close(): Promise<void> {
    if (--this.#users > 0) return
    // The timer keeps the process alive, because the caller awaits `close()`.
    let cancel = (): void => {}
    const late = new Promise<void>((resolve) => (cancel = realWorld.after(CLOSE_MS, resolve, true)))
    await Promise.race([this.#working, late])
    cancel()
    // A store that began to use it meanwhile keeps it.
    if (this.#users <= 0) await this.#end()
  }

  async #end(): Promise<void> {
    const session = this.#session
    this.#cancelIdle()
    this.#session = this.#opened = undefined
    await session?.then(
      (open) => open.end(),
      () => {},
    )
  }

  #start(): void {
    this.#working = this.#work()
  }

  async #work(): Promise<void> {
    this.#busy = true
    this.#cancelIdle()
    const session =
      this.#opened ??
      (await this.#connect().catch((error: unknown) => new NotConnectedError(String(error), { cause: error })))
    if (session instanceof NotConnectedError) {
      for (const { reject } of [...this.#urgent.splice(0), ...this.#others.splice(0)]) reject(session)
      this.#busy = false
      return
    }
    // A session that was given up while it was being opened carries nothing: it ends before the server could answer.
    for (let job = this.#next(session); job; job = this.#next(session)) {
      const carried = this.#carryOut(job, session)
      // After the first message has left: a waiter in another process waits for it.
      session.keepAlive(true)
      if (!(await carried)) break
    }
    session.keepAlive(false)
    this.#busy = false
    if (this.#urgent.length + this.#others.length > 0) await this.#work()
    // A call that was answered after the last store had closed has opened the connection again.
    else if (this.#users <= 0) await this.#end()
    else if (session.idleMs !== undefined && this.#opened === session) {
      this.#cancelIdle = realWorld.after(session.idleMs, () => void this.#end())
    }
  }

  #next(session: OwnSession): PendingMessage | undefined {
    if (session !== this.#opened) return undefined
    return this.#urgent.shift() ?? this.#others.shift()
  }

  #connect(): Promise<OwnSession> {
    if (this.#session) return this.#session
    if (realWorld.now() < this.#notBefore) return Promise.reject(new Error('no connection could be made a moment ago'))
    const opening = this.#open(() => {
      if (this.#session === opening && this.#fail) realWorld.after(BROKEN_MS, this.#fail)
      // The connection ended before it carried anything. Without the pause it would be opened again and again, without end.
      if (this.#session === opening && !this.#opened) this.#notBefore = realWorld.now() + PAUSE_MS
      this.#forget(opening)
    })
    this.#session = opening
    opening.then(
      (session) => {
        if (this.#session === opening) this.#opened = session
      },
      () => {
        this.#notBefore = realWorld.now() + PAUSE_MS
        this.#forget(opening)
      },
    )
    return opening
  }

  #forget(session: Promise<OwnSession>): void {
    if (this.#session === session) this.#session = this.#opened = undefined
  }

  /** Resolves with whether the connection can carry the next message. */
  #carryOut({ sql, afterwards, timeoutMs, resolve, reject }: PendingMessage, session: OwnSession): Promise<boolean> {
    const current = this.#session
    // Sent before anything is made that only its answer needs.
    const answer = session.send(sql, afterwards)
    return new Promise((done) => {
      const fail = (why: string): void => {
        settled()
        if (current) this.#forget(current)
        void session.end()
        reject(new Error(why))
        done(false)
      }
      // A connection whose packets are dropped never answers, and every other message would wait behind it.
      const cancel = realWorld.after(timeoutMs * 1.5, () => fail('the server did not answer'))
      const broke = (): void => {
        if (this.#fail === broke) fail('the connection was closed')
      }
      const settled = (): void => {
        cancel()
        if (this.#fail === broke) this.#fail = undefined
      }
      this.#fail = broke
      answer.then(
        (value) => {
          settled()
          resolve(value)
          done(this.#session === current)
        },
        (error: unknown) => {
          settled()
          reject(error)
          done(this.#session === current)
        },
      )
    })
  }
}

const shared = new WeakMap<object, OwnConnection>()

/** The connection that belongs to this client. */
export function ownConnectionOf(client: object, open: (broken: () => void) => Promise<OwnSession>): OwnConnection {
  let dedicated = shared.get(client)
  if (!dedicated) shared.set(client, (dedicated = new OwnConnection(open)))
  return dedicated.use()
}
