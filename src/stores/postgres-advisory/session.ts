import type { Holding } from './book.js'
import { end, type PgClient } from './client.js'
import type { LockId } from './ids.js'
import { IdleLimit, type SessionParts } from './idle-limit.js'
import { type Attempt, failAll, type Granted, Locking, type Unlocking } from './locking.js'
import { prepare, type Prepared, type SetupOptions } from './setup.js'
import { howTo } from './statements.js'
import type { Row } from './submission.js'
import { explain, SessionLost } from './trouble.js'
import { Wire } from './wire.js'

/** What happens around a statement that may take long. */
export interface WaitHooks {
  /** Asked at the last moment. From then on it takes a cancellation to end the wait. */
  begins(): boolean
  /** Answered. What this promises has to happen before the next statement: a late cancellation would hit that one. */
  ended(): Promise<void>
}

interface Question<T> {
  resolve(answer: T): void
  reject(error: unknown): void
}

interface Errand extends Question<Row[]> {
  text: string
  values: readonly (string | null)[]
}

export interface SessionOptions extends SetupOptions {
  /** A statement that takes longer is not going to be answered, unless it waits for a lock. */
  timeoutMs: number
  onLost(session: Session, error: SessionLost): void
  /** Holds nothing and has had nothing to do for a while. */
  onIdle(session: Session): void
  onMessage(channel: string, payload: string): void
}

/** Items of one statement at most. */
const MOST = 500

/** Setting up a session may take this long at least: behind a pooler it has to be tried whether there are sessions. */
const SETUP_MS = 2_000

/** A session without locks is kept this long for the next wait. */
const IDLE_MS = 30_000

/**
 * One connection of our own, with one statement at a time. What is asked meanwhile travels together in the next
 * statement, which is what makes many locks on one connection fast.
 */
export class Session {
  readonly pid: number
  readonly startedAt: string
  readonly holdings: Set<Holding> = new Set()
  /** Blocked in the queue of a lock, or set apart for that. Such a session holds nothing: it could not be pinged. */
  waiting = false
  /** Which ttls may be held here. Undefined: nothing is held or asked for, so any. See `classOf`. */
  ttlClass: number | undefined = undefined
  /** How many expect messages to arrive here: it must not begin to wait. */
  awaited = 0
  lost: SessionLost | undefined = undefined

  readonly #options: SessionOptions
  readonly #wire: Wire
  readonly #idle: IdleLimit
  readonly #locking: Locking
  readonly #unlocks: Unlocking[] = []
  readonly #tries: Attempt[] = []
  readonly #groups: Attempt[][] = []
  readonly #pings: Question<number>[] = []
  readonly #errands: Errand[] = []
  #draining = false
  #errandNext = false
  #resting = false

  static async open(options: SessionOptions): Promise<Session> {
    const client = options.open()
    // Until there is a session to tell: without a listener an error would end the process.
    client.on('error', () => {})
    let cancel: (() => void) | undefined
    try {
      await client.connect()
      // If the network fell silent just now, everybody who needs a session would wait for this one for ever.
      cancel = options.world.after(Math.max(options.timeoutMs, SETUP_MS), () => {
        client.connection?.stream.destroy(new Error('the server does not answer'))
      })
      return new Session(client, await prepare(client, options), options)
    } catch (error) {
      void end(client, options.world)
      throw explain(error)
    } finally {
      cancel?.()
    }
  }

  private constructor(client: PgClient, { pid, startedAt }: Prepared, options: SessionOptions) {
    this.pid = pid
    this.startedAt = startedAt
    this.#options = options
    const { world, timeoutMs } = options
    const wire = new Wire(client, {
      world,
      timeoutMs,
      patientUntil: () => (this.holdings.size > 0 ? this.#idle.trustedUntil : 0),
      onBroken: (cause) => this.die(cause),
    })
    const statements = options.statements.for(pid)
    const die = (cause: unknown): SessionLost => this.die(cause)
    const parts: SessionParts = { world, wire, statements, pid, holdings: this.holdings, die }
    this.#wire = wire
    this.#idle = new IdleLimit(parts)
    this.#locking = new Locking(parts, this.#idle)
    client.on('notification', ({ channel, payload }) => options.onMessage(channel, payload ?? ''))
  }

  /** Nothing is asked of it and nothing is held. */
  get free(): boolean {
    return !this.lost && !this.waiting && !this.#draining && this.awaited === 0 && this.holdings.size === 0
  }

  /** Sets it apart for locks of this class. False: it is for others. */
  reserve(ttlClass: number): boolean {
    this.ttlClass ??= ttlClass
    return this.ttlClass === ttlClass
  }

  /** It should have answered by now. */
  get stalled(): boolean {
    return this.#wire.stalled
  }

  try(attempt: Attempt): void {
    if (this.lost) return attempt.settle({ error: this.lost })
    this.#tries.push(attempt)
    this.#start()
  }

  /** All or none, in a statement of their own. */
  tryTogether(attempts: Attempt[]): void {
    if (this.lost) return failAll(attempts, this.lost)
    this.#groups.push(attempts)
    this.#start()
  }

  unlock(id: LockId, shared: boolean, settle: Unlocking['settle']): void {
    if (this.lost) return settle({ error: this.lost })
    this.#unlocks.push({ id, how: howTo(id, shared), settle })
    this.#start()
  }

  /** Proves that the session lives, and tells the server the largest ttl of what is held on it. When it was sent. */
  ping(): Promise<number> {
    return this.#enqueue((question) => this.#pings.push(question))
  }

  /** Any other statement. */
  ask(text: string, values: readonly (string | null)[] = []): Promise<Row[]> {
    return this.#enqueue((question) => this.#errands.push({ ...question, text, values }))
  }

  /** Stays in the server's queue. Undefined: cancelled, or waited for as long as one statement may. */
  async wait(id: LockId, shared: boolean, ttlMs: number, hooks: WaitHooks): Promise<Granted | undefined> {
    await this.#idle.cover(ttlMs)
    if (!hooks.begins()) return undefined
    return this.#locking.wait(id, howTo(id, shared), this.#options.queueMs, () => void hooks.ended())
  }

  /** Its wait is over, and it holds nothing. */
  standDown(): void {
    this.waiting = false
    this.ttlClass = undefined
    this.#rest()
  }

  /** From here on nothing on it can be trusted, and everything that was asked of it fails. */
  die(cause: unknown): SessionLost {
    if (this.lost) return this.lost
    const lost = cause instanceof SessionLost ? cause : new SessionLost(cause)
    this.lost = lost
    void this.#wire.cut(lost)
    // First of all those who hold something on it.
    this.#options.onLost(this, lost)
    this.#wire.failInFlight(lost)
    for (const question of [...this.#pings, ...this.#errands]) question.reject(lost)
    failAll([...this.#unlocks, ...this.#tries, ...this.#groups.flat()], lost)
    return lost
  }

  /** An orderly end: the server frees everything before it hangs up. */
  async close(): Promise<void> {
    if (this.lost) return
    this.lost = new SessionLost(new Error('the store was closed'))
    await this.#wire.cut(this.lost)
  }

  #enqueue<T>(add: (question: Question<T>) => void): Promise<T> {
    return new Promise((resolve, reject) => {
      if (this.lost) return reject(this.lost)
      add({ resolve, reject })
      this.#start()
    })
  }

  #start(): void {
    if (this.#draining || this.lost) return
    this.#draining = true
    // Whatever else is asked in this turn gets aboard.
    queueMicrotask(this.#next)
  }

  /** The next statement, as soon as the one before is answered. */
  readonly #next = (): void => {
    if (this.lost) return
    if (this.#pings.length > 0) return void this.#pingOnce(this.#pings.splice(0)).finally(this.#next)
    if (this.#errands.length > 0 && this.#errandNext) return void this.#runErrand().finally(this.#next)
    this.#errandNext = true
    if (this.#unlocks.length > 0) return this.#locking.unlock(this.#unlocks.splice(0, MOST), this.#next)
    if (this.#tries.length > 0) return this.#locking.try(this.#tries.splice(0, MOST), false, this.#next)
    if (this.#groups.length > 0) return this.#locking.try(this.#groups.shift() as Attempt[], true, this.#next)
    if (this.#errands.length > 0) return void this.#runErrand().finally(this.#next)
    this.#draining = false
    if (this.holdings.size === 0 && !this.waiting) this.ttlClass = undefined
    this.#rest()
  }

  async #pingOnce(pings: Question<number>[]): Promise<void> {
    try {
      const sentAt = await this.#idle.refresh()
      for (const ping of pings) ping.resolve(sentAt)
    } catch (error) {
      for (const ping of pings) ping.reject(explain(error))
    }
  }

  async #runErrand(): Promise<void> {
    this.#errandNext = false
    const { text, values, resolve, reject } = this.#errands.shift() as Errand
    try {
      resolve(await this.#wire.run({ name: '', text }, values))
    } catch (error) {
      reject(error)
    }
  }

  /** A session without locks needs no ttl: nobody pings it, and the server would end it. */
  #rest(): void {
    if (this.#resting || this.holdings.size > 0 || this.lost) return
    this.#resting = true
    const { world } = this.#options
    const look = (): void => {
      this.#resting = false
      if (!this.free) return
      const idleFor = world.now() - this.#wire.usedAt
      if (this.#idle.ms > 0 && idleFor >= this.#idle.ms / 4) this.ping().catch(() => {})
      else if (this.#idle.ms === 0 && idleFor >= IDLE_MS) this.#options.onIdle(this)
      else this.#rest()
    }
    world.after(this.#idle.ms > 0 ? this.#idle.ms / 3 : IDLE_MS, look)
  }
}
