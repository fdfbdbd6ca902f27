import type { PgClient, TextRow } from '../../clients/postgres/types.js'
import { endClient } from '../../clients/postgres/end-client.js'
import { AdvisoryConnection } from './connection.js'
import { SessionLost, toLeaseholdError } from './errors.js'
import type { LockId } from './keys.js'
import {
  failAll,
  type HeldOnSession,
  IdleLimit,
  type LockAttempt,
  Locking,
  type SessionHost,
  type UnlockRequest,
  type WaitHooks,
} from './locking.js'
import { type Backend, type SetupOptions, setUpSession } from './setup.js'
import { lockMode } from './statements.js'

interface PendingPing {
  resolve(sentAt: number): void
  reject(error: unknown): void
}

interface PendingQuery {
  text: string
  values: readonly (string | null)[]
  resolve(rows: TextRow[]): void
  reject(error: unknown): void
}

export interface AdvisorySessionOptions extends SetupOptions {
  /** A statement that takes longer is not going to be answered, unless it waits for a lock. */
  timeoutMs: number
  onLost(session: AdvisorySession, error: SessionLost): void
  /** The session holds nothing and has had nothing to do for a while. */
  onIdle(session: AdvisorySession): void
  onMessage(channel: string, payload: string): void
}

/** MAX_ITEMS: locks of one statement at most. A longer one would delay the pings and releases behind it. */
const MAX_ITEMS = 500

/** MIN_SETUP_MS: how long setting up a session may take at least: behind a pooler it includes trying whether that keeps sessions. */
const MIN_SETUP_MS = 2_000

/**
 * SOLO_STREAK: after this many statements in a row for a single lock, the next one is sent during the call itself, and
 * others cannot join it. Fewer would take a pause between two bursts for callers that come one after the other.
 */
const SOLO_STREAK = 8

/** IDLE_MS: how long a session without locks is kept for the next wait. Opening one takes longer than an acquisition. */
const IDLE_MS = 30_000

/**
 * One connection of the store's own, with one statement at a time. Requests that arrive meanwhile travel together in the
 * next statement, which is what makes many locks on one connection fast.
 */
export class AdvisorySession {
  readonly pid: number
  readonly startedAt: string
  readonly holdings: Set<HeldOnSession> = new Set()
  /** Blocked in the queue of a lock, or set apart for that. Such a session holds nothing: it could not be pinged. */
  waiting = false
  /** Which ttls may be held here. Undefined: nothing is held or asked for, so any. See `ttlClassOf`. */
  ttlClass: number | undefined = undefined
  /** How many callers expect messages to arrive here: a session that waits for a lock would not deliver them. */
  expectedReplies = 0
  lost: SessionLost | undefined = undefined

  readonly #options: AdvisorySessionOptions
  readonly #connection: AdvisoryConnection
  readonly #idleLimit: IdleLimit
  readonly #locking: Locking
  readonly #unlocks: UnlockRequest[] = []
  readonly #tries: LockAttempt[] = []
  readonly #groups: LockAttempt[][] = []
  readonly #pings: PendingPing[] = []
  readonly #queries: PendingQuery[] = []
  #draining = false
  #queryNext = false
  /** How many statements in a row were for one lock. */
  #soloStreak = 0
  #idleCheckScheduled = false

  static async open(options: AdvisorySessionOptions): Promise<AdvisorySession> {
    const client = options.open()
    // Until the session exists and listens, an error without a listener would end the process.
    client.on('error', () => {})
    let cancel: (() => void) | undefined
    try {
      await client.connect()
      // If the network fell silent just now, every caller that needs a session would wait for this one for ever.
      cancel = options.world.after(Math.max(options.timeoutMs, MIN_SETUP_MS), () => {
        client.connection?.stream.destroy(new Error('the server does not answer'))
      })
      return new AdvisorySession(client, await setUpSession(client, options), options)
    } catch (error) {
      void endClient(client, options.world)
      throw toLeaseholdError(error)
    } finally {
      cancel?.()
    }
  }

  private constructor(client: PgClient, { pid, startedAt }: Backend, options: AdvisorySessionOptions) {
    this.pid = pid
    this.startedAt = startedAt
    this.#options = options
    const { world, timeoutMs } = options
    const connection = new AdvisoryConnection(client, {
      world,
      timeoutMs,
      keepUntil: () => (this.holdings.size > 0 ? this.#idleLimit.trustedUntil : 0),
      onBroken: (cause) => this.fail(cause),
    })
    const statements = options.statements.forSession(pid)
    const fail = (cause: unknown): SessionLost => this.fail(cause)
    const host: SessionHost = { world, connection, statements, pid, holdings: this.holdings, fail }
    this.#connection = connection
    this.#idleLimit = new IdleLimit(host)
    this.#locking = new Locking(host, this.#idleLimit)
    client.on('notification', ({ channel, payload }) => options.onMessage(channel, payload ?? ''))
  }

  /** Nothing is asked of it and nothing is held. */
  get free(): boolean {
    return !this.lost && !this.waiting && !this.#draining && this.expectedReplies === 0 && this.holdings.size === 0
  }

  /** Sets it apart for locks of this class. False: it is for those of another class. */
  reserve(ttlClass: number): boolean {
    this.ttlClass ??= ttlClass
    return this.ttlClass === ttlClass
  }

  /** The server should have answered by now. */
  get stalled(): boolean {
    return this.#connection.stalled
  }

  try(attempt: LockAttempt): void {
    if (this.lost) return attempt.settle({ error: this.lost })
    this.#tries.push(attempt)
    this.#start()
  }

  /** All or none, in a statement of their own. */
  tryAtomically(attempts: LockAttempt[]): void {
    if (this.lost) return failAll(attempts, this.lost)
    this.#groups.push(attempts)
    this.#start()
  }

  unlock(id: LockId, shared: boolean, settle: UnlockRequest['settle']): void {
    if (this.lost) return settle({ error: this.lost })
    this.#unlocks.push({ id, mode: lockMode(id, shared), settle })
    this.#start()
  }

  /** Proves that the session lives, and tells the server the largest ttl of what is held. Resolves with when it was sent. */
  ping(): Promise<number> {
    return this.#enqueue((settle) => this.#pings.push(settle))
  }

  /** Any other statement. */
  query(text: string, values: readonly (string | null)[] = []): Promise<TextRow[]> {
    return this.#enqueue((settle) => this.#queries.push({ ...settle, text, values }))
  }

  /** Stays in the server's queue. Resolves with whether the lock was granted: not if cancelled, or after as long as one statement may wait. */
  async wait(id: LockId, shared: boolean, ttlMs: number, hooks: WaitHooks): Promise<boolean> {
    await this.#idleLimit.cover(ttlMs)
    return hooks.begins() && this.#locking.wait(id, lockMode(id, shared), this.#options.queueMs, hooks)
  }

  /** Its wait is over. */
  endWait(): void {
    this.waiting = false
    if (this.holdings.size === 0) this.ttlClass = undefined
    this.#scheduleIdleCheck()
  }

  /** From here on nothing on it can be trusted, and everything that was asked of it fails. */
  fail(cause: unknown): SessionLost {
    if (this.lost) return this.lost
    const lost = cause instanceof SessionLost ? cause : new SessionLost(cause)
    this.lost = lost
    void this.#connection.close(lost)
    // Holders are told first: they are the ones who act under a lock that has ended.
    this.#options.onLost(this, lost)
    this.#connection.failInFlight(lost)
    for (const pending of [...this.#pings, ...this.#queries]) pending.reject(lost)
    failAll([...this.#unlocks, ...this.#tries, ...this.#groups.flat()], lost)
    return lost
  }

  /** An orderly end: the server frees everything before it hangs up. */
  async close(): Promise<void> {
    if (this.lost) return
    this.lost = new SessionLost(new Error('the store was closed'))
    await this.#connection.close(this.lost)
  }

  #enqueue<T>(add: (settle: { resolve(value: T): void; reject(error: unknown): void }) => void): Promise<T> {
    return new Promise((resolve, reject) => {
      if (this.lost) return reject(this.lost)
      add({ resolve, reject })
      this.#start()
    })
  }

  #start(): void {
    if (this.#draining || this.lost) return
    this.#draining = true
    if (this.#soloStreak >= SOLO_STREAK) return this.#next()
    // Sent in a microtask, so that requests which the running code makes after this one join the statement.
    queueMicrotask(this.#next)
  }

  /** Sends the next statement, as soon as the one before is answered. */
  readonly #next = (): void => {
    if (this.lost) return
    if (this.#pings.length > 0) return void this.#pingOnce(this.#pings.splice(0)).finally(this.#next)
    if (this.#queries.length > 0 && this.#queryNext) return void this.#runQuery().finally(this.#next)
    this.#queryNext = true
    const locks = this.#unlocks.length + this.#tries.length
    if (locks > 0) this.#soloStreak = locks === 1 ? this.#soloStreak + 1 : 0
    if (this.#unlocks.length > 0) return this.#locking.unlock(this.#unlocks.splice(0, MAX_ITEMS), this.#next)
    if (this.#tries.length > 0) return this.#locking.try(this.#tries.splice(0, MAX_ITEMS), false, this.#next)
    if (this.#groups.length > 0) return this.#locking.try(this.#groups.shift() as LockAttempt[], true, this.#next)
    if (this.#queries.length > 0) return void this.#runQuery().finally(this.#next)
    this.#draining = false
    if (this.holdings.size === 0 && !this.waiting) this.ttlClass = undefined
    this.#scheduleIdleCheck()
  }

  async #pingOnce(pings: PendingPing[]): Promise<void> {
    try {
      const sentAt = await this.#idleLimit.refresh()
      for (const ping of pings) ping.resolve(sentAt)
    } catch (error) {
      for (const ping of pings) ping.reject(toLeaseholdError(error))
    }
  }

  async #runQuery(): Promise<void> {
    this.#queryNext = false
    const { text, values, resolve, reject } = this.#queries.shift() as PendingQuery
    try {
      resolve(await this.#connection.run({ name: '', text }, values))
    } catch (error) {
      reject(error)
    }
  }

  /** Lifts the idle limit of a session without locks, which nobody pings: otherwise the server would end it. */
  #scheduleIdleCheck(): void {
    if (this.#idleCheckScheduled || this.holdings.size > 0 || this.lost) return
    this.#idleCheckScheduled = true
    const { world } = this.#options
    const check = (): void => {
      this.#idleCheckScheduled = false
      if (!this.free) return
      const idleFor = world.now() - this.#connection.usedAt
      if (this.#idleLimit.ms > 0 && idleFor >= this.#idleLimit.ms / 4) this.ping().catch(() => {})
      else if (this.#idleLimit.ms === 0 && idleFor >= IDLE_MS) this.#options.onIdle(this)
      else this.#scheduleIdleCheck()
    }
    world.after(this.#idleLimit.ms > 0 ? this.#idleLimit.ms / 3 : IDLE_MS, check)
  }
}
