/**
 * The statements of one session that lock, wait and unlock, and the idle limit that has to cover a lock before it is granted.
 *
 * @module
 */
import { errorCode } from '../../clients/postgres/errors.js'
import type { TextRow } from '../../clients/postgres/types.js'
import type { World } from '../../util/world.js'
import type { AdvisoryConnection, StatementCallback } from './connection.js'
import { poolerError, SessionLost, toLeaseholdError } from './errors.js'
import { idOfRow, type LockId } from './keys.js'
import type { LockMode, NamedStatement, SessionStatements, TryMode } from './statements.js'

/**
 * LONGEST_IDLE_MS: the largest value of `idle_session_timeout`, in ms. A longer ttl could not be told to the server, which
 * would never end the session of a frozen process.
 */
export const LONGEST_IDLE_MS: number = 2 ** 31 - 1

/**
 * TRUSTED_PART: the part of the idle limit for which a silent connection is trusted. The server frees what a silent session
 * holds when the limit ends; the holder has to give up before that.
 */
const TRUSTED_PART = 0.98

/**
 * A session ends as a whole after as much silence as the longest ttl on it allows, so a lock of 2 s beside one of a minute
 * would outlive a frozen process for a minute. Only locks of one class share a session: none of them has twice the ttl of
 * another, and each is freed within twice its own.
 */
export function ttlClassOf(ttlMs: number): number {
  return Math.floor(Math.log2(Math.max(ttlMs, 1)))
}

/** Every ttl of the class of this one is shorter. */
function classLimit(ttlMs: number): number {
  return 2 ** (ttlClassOf(ttlMs) + 1)
}

/** A lock that is held on a session: what the session has to know of it. */
export interface HeldOnSession {
  readonly id: LockId
  readonly deadline: number
}

/** What Locking and IdleLimit need of the session they work for. */
export interface SessionHost {
  world: World
  connection: AdvisoryConnection
  statements: SessionStatements
  pid: number
  holdings: ReadonlySet<HeldOnSession>
  /** Nothing on this session can be trusted any more. Returns the error for those who asked. */
  fail: (cause: unknown) => Error
}

/** How long the server bears our silence before it ends the session: the largest ttl of what is held on it. */
export class IdleLimit {
  readonly #host: SessionHost
  #ms = 0

  constructor(host: SessionHost) {
    this.#host = host
  }

  /** As the server was told. 0: for ever. */
  get ms(): number {
    return this.#ms
  }

  /** Until then the server has not ended the session for our silence. */
  get trustedUntil(): number {
    return this.#host.connection.provenAt + this.#ms * TRUSTED_PART
  }

  /** Neither too short for such a lock, nor left over from longer ones that the session held before. */
  covers(ttlMs: number): boolean {
    return this.#ms >= ttlMs && this.#ms <= classLimit(ttlMs)
  }

  /** The server must know before it grants: if we freeze with the grant on its way, nobody else could tell it. */
  async cover(ttlMs: number): Promise<void> {
    if (!this.covers(ttlMs)) await this.#set(Math.max(Math.ceil(ttlMs), this.#longestLeft()))
  }

  /** Proves that the session lives, and sets the limit to the largest ttl of what is held. Resolves with when it was sent. */
  async refresh(): Promise<number> {
    const sentAt = this.#host.world.now()
    await this.#set(this.#longestLeft())
    return sentAt
  }

  async #set(ms: number): Promise<void> {
    const { connection, statements, pid, fail } = this.#host
    const [row] = await connection.run(statements.ping, [String(ms)])
    if (Number(row?.[1]) !== pid) throw fail(poolerError())
    this.#ms = ms
  }

  #longestLeft(): number {
    const now = this.#host.world.now()
    let longest = 0
    for (const { deadline } of this.#host.holdings) longest = Math.max(longest, deadline - now, 1)
    return Math.min(Math.ceil(longest), LONGEST_IDLE_MS)
  }
}

/** Without a token the lock was busy. `sentAt`: what is granted counts from there at least. */
export interface TryResult {
  token: bigint | undefined
  sentAt: number
}

export interface WaitResult extends TryResult {
  token: bigint
}

/** What happens around a statement that may take long. */
export interface WaitHooks {
  /** Asked at the last moment. From then on it takes a cancellation to end the wait. */
  begins(): boolean
  /** Answered: from now on a cancellation would hit the next statement. */
  ended(): void
  /**
   * The session has the lock. Called with the answer: promises in between would delay the caller that has waited. Throws if the session
   * was lost meanwhile.
   */
  granted(result: WaitResult): void
}

/** One lock to try. `settle` is called before the session sends anything else, so that the next statement sees its effect. */
export interface LockAttempt {
  id: LockId
  mode: TryMode
  ttlMs: number
  settle(outcome: TryResult | { error: unknown }): void
}

export interface UnlockRequest {
  id: LockId
  mode: LockMode
  /** Whether it was held, or the error because of which nobody knows. */
  settle(outcome: boolean | { error: unknown }): void
}

/** Codes of a statement that failed for reasons of its own, on a session that is as good as before. */
const HARMLESS: ReadonlySet<string | undefined> = new Set(['53200', '57014', '55P03'])

/** Tries, waits for and unlocks on one session, one statement after the other. */
export class Locking {
  readonly #host: SessionHost
  readonly #world: World
  readonly #connection: AdvisoryConnection
  readonly #statements: SessionStatements
  readonly #idleLimit: IdleLimit

  constructor(host: SessionHost, idleLimit: IdleLimit) {
    this.#host = host
    this.#world = host.world
    this.#connection = host.connection
    this.#statements = host.statements
    this.#idleLimit = idleLimit
  }

  unlock(unlocks: readonly UnlockRequest[], next: () => void): void {
    const { unlockOne, unlockMany } = this.#statements
    const [only] = unlocks
    const alone = unlocks.length === 1 && only
    const done: StatementCallback = (error, rows) => {
      if (error) return void this.#unlockAgain(unlocks, error).finally(next)
      if (alone) alone.settle(rows[0]?.[0] === 't')
      else for (const [n, held] of rows) unlocks[Number(n) - 1]?.settle(held === 't')
      next()
    }
    if (alone) this.#connection.send(unlockOne[alone.mode - 1] as NamedStatement, [alone.id.bits], done)
    else this.#connection.send(unlockMany, arrays(unlocks), done)
  }

  /**
   * A statement that was cancelled has unlocked some, all or none, and nobody knows what is left any more: the session would keep it for as
   * long as it lives. What it held counts as held, whichever of the two statements has unlocked it.
   */
  async #unlockAgain(unlocks: readonly UnlockRequest[], error: unknown): Promise<void> {
    if (error instanceof SessionLost) return failAll(unlocks, error)
    try {
      await this.#connection.run(this.#statements.unlockMany, arrays(unlocks))
    } catch {
      return failAll(unlocks, this.#host.fail(error))
    }
    for (const unlock of unlocks) unlock.settle(true)
  }

  /** `atomic`: all or none. */
  try(attempts: readonly LockAttempt[], atomic: boolean, next: () => void): void {
    let ttlMs = 0
    for (const attempt of attempts) ttlMs = Math.max(ttlMs, attempt.ttlMs)
    if (this.#idleLimit.covers(ttlMs)) return this.#tryCovered(attempts, atomic, next)
    this.#idleLimit.cover(ttlMs).then(
      () => this.#tryCovered(attempts, atomic, next),
      (error: unknown) => void this.#undo(attempts, atomic, error).finally(next),
    )
  }

  /** Stays in the server's queue for as long as one statement may. Resolves with false if cancelled, or if it waited in vain. */
  wait(id: LockId, mode: LockMode, waitMs: number, hooks: Omit<WaitHooks, 'begins'>): Promise<boolean> {
    const sentAt = this.#world.now()
    return new Promise((resolve, reject) => {
      const answered: StatementCallback = (error, rows) => {
        hooks.ended()
        if (error || !isOurBackend(rows)) {
          const cause = error ?? this.#host.fail(poolerError())
          return void this.#afterFailedWait(id, cause, sentAt, hooks).then(resolve, reject)
        }
        try {
          hooks.granted({ token: tokenOf(rows[0]?.[0]) as bigint, sentAt })
          resolve(true)
        } catch (thrown) {
          reject(thrown)
        }
      }
      this.#connection.send(this.#statements.wait[mode - 1] as NamedStatement, [id.bits], answered, waitMs)
    })
  }

  /** A timeout or a cancellation may come at the moment of the grant: the statement fails, but the session has the lock. */
  async #afterFailedWait(
    id: LockId,
    error: unknown,
    sentAt: number,
    hooks: Pick<WaitHooks, 'granted'>,
  ): Promise<boolean> {
    if (await this.#isHeld(id)) {
      hooks.granted({ token: await this.#drawToken(), sentAt })
      return true
    }
    if (errorCode(error) === '55P03' || errorCode(error) === '57014') return false
    throw toLeaseholdError(error)
  }

  #tryCovered(attempts: readonly LockAttempt[], atomic: boolean, next: () => void): void {
    const { tryOne, tryMany } = this.#statements
    const [only] = attempts
    const alone = attempts.length === 1 && only && only.mode < 5 && only
    const sentAt = this.#world.now()
    const done: StatementCallback = (error, rows) => {
      if (error || !isOurBackend(rows)) {
        return void this.#undo(attempts, atomic, error ?? this.#host.fail(poolerError())).finally(next)
      }
      if (alone) alone.settle({ token: tokenOf(rows[0]?.[0]), sentAt })
      else for (const [n, token] of rows) attempts[Number(n) - 1]?.settle({ token: tokenOf(token), sentAt })
      next()
    }
    if (alone) this.#connection.send(tryOne[alone.mode - 1] as NamedStatement, [alone.id.bits], done)
    else this.#connection.send(tryMany, [...arrays(attempts), atomic ? 't' : 'f'], done)
  }

  /** A statement that fails keeps what it had already locked. One item must not fail the others either. */
  async #undo(attempts: readonly LockAttempt[], atomic: boolean, error: unknown): Promise<void> {
    if (error instanceof SessionLost) return failAll(attempts, error)
    try {
      await this.#unlockAttempted(attempts)
    } catch {
      return failAll(attempts, this.#host.fail(error))
    }
    if (attempts.length === 1 || atomic) failAll(attempts, toLeaseholdError(error))
    else for (const each of attempts) await new Promise<void>((resolve) => this.try([each], false, resolve))
    // Another cause may be a sequence that was dropped: setting up a new session finds it or creates it again.
    if (!HARMLESS.has(errorCode(error)) && this.#host.holdings.size === 0) this.#host.fail(error)
  }

  /** Unlocks what the failed statement may have locked, without reading pg_locks: a server out of memory could not show it. */
  async #unlockAttempted(attempts: readonly LockAttempt[]): Promise<void> {
    const held = new Set([...this.#host.holdings].map((holding) => holding.id.text))
    const uncertain = attempts.filter(({ id, mode }) => mode < 5 && !held.has(id.text))
    if (uncertain.length > 0) await this.#connection.run(this.#statements.unlockMany, arrays(uncertain))
  }

  async #isHeld(id: LockId): Promise<boolean> {
    try {
      const rows = await this.#connection.run(this.#statements.held)
      return rows.some(([mode, bits]) => idOfRow(bits, Number(mode) > 2).text === id.text)
    } catch (error) {
      throw this.#host.fail(error)
    }
  }

  /** For a lock that the session has. Without a token nobody would hold it, and the session would keep it for as long as it lives. */
  async #drawToken(): Promise<bigint> {
    try {
      return BigInt((await this.#connection.run(this.#statements.token))[0]?.[0] as string)
    } catch (error) {
      throw this.#host.fail(error)
    }
  }
}

export function failAll(items: readonly { settle(outcome: { error: unknown }): void }[], error: unknown): void {
  for (const item of items) item.settle({ error })
}

function arrays(items: readonly { id: LockId; mode: TryMode }[]): [string, string] {
  return [`{${items.map((item) => item.mode).join()}}`, `{${items.map((item) => item.id.bits).join()}}`]
}

/** Whether it was our backend that answered. */
function isOurBackend(rows: readonly TextRow[]): boolean {
  const row = rows[0]
  return row?.[row.length - 1] !== '-1'
}

function tokenOf(text: string | null | undefined): bigint | undefined {
  return text === null || text === undefined ? undefined : BigInt(text)
}
