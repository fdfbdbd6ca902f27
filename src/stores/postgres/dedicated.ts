/**
 * The connection on which heartbeats and releases travel: opened by the store, beside the user's own.
 *
 * @module
 */
import { realWorld } from '../../kit/world.js'

/** One open connection. It is used for one thing at a time. */
export interface Session {
  /**
   * Runs statements in one simple-protocol message, and then, without waiting for the answer, those of a second one. Settles
   * with the last value of the first message; nobody hears what became of the second.
   */
  send(sql: string, afterwards?: string): Promise<string | undefined>
  /** Whether it keeps the process alive. */
  keepAlive(on: boolean): void
  /** Ends it, however it stands, within a moment. */
  end(): Promise<void>
}

/** The connection could not be opened, so nothing was sent. */
export class NotConnectedError extends Error {}

/** Whoever waits for an answer on a connection that broke is told so by then, also where the library forgets it. */
const BROKEN_MS = 50

/** After a failed attempt, calls fail at once for so long: the caller has another way, which must not wait for this one. */
const PAUSE_MS = 1_000

export interface JobOptions {
  /** Goes before what is not. */
  urgent?: boolean
  /** A second message, see `Session.send`. */
  afterwards?: string | undefined
}

interface Job {
  sql: string
  afterwards: string | undefined
  timeoutMs: number
  resolve: (value: string | undefined) => void
  reject: (error: unknown) => void
}

/**
 * One connection, opened by the first call and again after it broke, for all stores on one client. Heartbeats go
 * before releases.
 */
export class Dedicated {
  readonly #open: (broken: () => void) => Promise<Session>
  readonly #urgent: Job[] = []
  readonly #others: Job[] = []
  #session: Promise<Session> | undefined
  /** Fails the call that is out, with its connection. */
  #fail: (() => void) | undefined
  #busy = false
  #notBefore = 0
  #users = 0

  constructor(open: (broken: () => void) => Promise<Session>) {
    this.#open = open
  }

  /** Rejects with `NotConnectedError` if nothing was sent. */
  run(sql: string, timeoutMs: number, { urgent = false, afterwards }: JobOptions = {}): Promise<string | undefined> {
    return new Promise((resolve, reject) => {
      const jobs = urgent ? this.#urgent : this.#others
      jobs.push({ sql, afterwards, timeoutMs, resolve, reject })
      if (!this.#busy) void this.#work()
    })
  }

  /** Opens it, so that the first release need not wait for that. */
  warm(): void {
    if (!this.#session && !this.#busy) void this.#work()
  }

  /** One more store uses it. It is closed with the last. */
  use(): this {
    this.#users++
    return this
  }

  async close(): Promise<void> {
    if (--this.#users > 0) return
    const session = this.#session
    this.#session = undefined
    await session?.then(
      (open) => open.end(),
      () => {},
    )
  }

  async #work(): Promise<void> {
    this.#busy = true
    const session = await this.#connect().catch(
      (error: unknown) => new NotConnectedError(String(error), { cause: error }),
    )
    if (session instanceof NotConnectedError) {
      for (const { reject } of [...this.#urgent.splice(0), ...this.#others.splice(0)]) reject(session)
      this.#busy = false
      return
    }
    session.keepAlive(true)
    for (let job = this.#next(); job; job = this.#next()) {
      if (!(await this.#carryOut(job, session))) break
    }
    session.keepAlive(false)
    this.#busy = false
    if (this.#urgent.length + this.#others.length > 0) void this.#work()
  }

  #next(): Job | undefined {
    return this.#urgent.shift() ?? this.#others.shift()
  }

  #connect(): Promise<Session> {
    if (this.#session) return this.#session
    if (realWorld.now() < this.#notBefore) return Promise.reject(new Error('it could not be opened a moment ago'))
    const opening = this.#open(() => {
      if (this.#session === opening && this.#fail) realWorld.after(BROKEN_MS, this.#fail)
      this.#forget(opening)
    })
    this.#session = opening
    opening.catch(() => {
      this.#notBefore = realWorld.now() + PAUSE_MS
      this.#forget(opening)
    })
    return opening
  }

  #forget(session: Promise<Session>): void {
    if (this.#session === session) this.#session = undefined
  }

  /** Whether the connection is still of use. */
  #carryOut({ sql, afterwards, timeoutMs, resolve, reject }: Job, session: Session): Promise<boolean> {
    const current = this.#session
    return new Promise((done) => {
      const fail = (why: string): void => {
        settled()
        if (current) this.#forget(current)
        void session.end()
        reject(new Error(why))
        done(false)
      }
      // A connection into a black hole never answers, and everything else would wait behind it.
      const cancel = realWorld.after(timeoutMs * 1.5, () => fail('the server did not answer'))
      const broke = (): void => {
        if (this.#fail === broke) fail('the connection was closed')
      }
      const settled = (): void => {
        cancel()
        if (this.#fail === broke) this.#fail = undefined
      }
      this.#fail = broke
      session.send(sql, afterwards).then(
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

const shared = new WeakMap<object, Dedicated>()

/** The one of this client. */
export function dedicatedOf(client: object, open: (broken: () => void) => Promise<Session>): Dedicated {
  let dedicated = shared.get(client)
  if (!dedicated) shared.set(client, (dedicated = new Dedicated(open)))
  return dedicated.use()
}
