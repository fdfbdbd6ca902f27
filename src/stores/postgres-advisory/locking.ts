import type { World } from '../../kit/world.js'
import type { Holding } from './book.js'
import { idOfRow, type LockId } from './ids.js'
import type { IdleLimit, SessionParts } from './idle-limit.js'
import type { How, SessionStatements } from './statements.js'
import type { Row, Statement } from './submission.js'
import { codeOf, explain, pooled, SessionLost } from './trouble.js'
import type { Done, Wire } from './wire.js'

/** Without a token it was busy. `sentAt`: what is granted counts from there at least. */
export interface Outcome {
  token: bigint | undefined
  sentAt: number
}

export interface Granted extends Outcome {
  token: bigint
}

/** One lock to try. `settle` is called before anything else is sent here: the books are right when the next one goes. */
export interface Attempt {
  id: LockId
  how: How
  ttlMs: number
  settle(outcome: Outcome | { error: unknown }): void
}

export interface Unlocking {
  id: LockId
  how: 1 | 2 | 3 | 4
  /** Whether it was held, or why nobody knows. */
  settle(outcome: boolean | { error: unknown }): void
}

/** Codes of a statement that failed for reasons of its own, on a session that is as good as before. */
const HARMLESS: ReadonlySet<string | undefined> = new Set(['53200', '57014', '55P03'])

/** Tries, waits for and unlocks on one session, one statement after the other. */
export class Locking {
  readonly #world: World
  readonly #wire: Wire
  readonly #statements: SessionStatements
  readonly #idle: IdleLimit
  readonly #holdings: ReadonlySet<Holding>
  readonly #die: (cause: unknown) => Error

  constructor({ world, wire, statements, holdings, die }: SessionParts, idle: IdleLimit) {
    this.#world = world
    this.#wire = wire
    this.#statements = statements
    this.#idle = idle
    this.#holdings = holdings
    this.#die = die
  }

  unlock(unlocks: readonly Unlocking[], next: () => void): void {
    const { unlockOne, unlockMany } = this.#statements
    const [only] = unlocks
    const alone = unlocks.length === 1 && only
    const done: Done = (error, rows) => {
      if (error) failAll(unlocks, explain(error))
      else if (alone) alone.settle(rows[0]?.[0] === 't')
      else for (const [n, held] of rows) unlocks[Number(n) - 1]?.settle(held === 't')
      next()
    }
    if (alone) this.#wire.send(unlockOne[alone.how - 1] as Statement, [alone.id.bits], done)
    else this.#wire.send(unlockMany, arrays(unlocks), done)
  }

  /** `together`: all or none. */
  try(attempts: readonly Attempt[], together: boolean, next: () => void): void {
    let ttlMs = 0
    for (const attempt of attempts) ttlMs = Math.max(ttlMs, attempt.ttlMs)
    if (this.#idle.covers(ttlMs)) return this.#tryNow(attempts, together, next)
    this.#idle.cover(ttlMs).then(
      () => this.#tryNow(attempts, together, next),
      (error: unknown) => void this.#undo(attempts, together, error).finally(next),
    )
  }

  /** Stays in the server's queue for as long as one statement may. Undefined: cancelled, or waited in vain. */
  async wait(id: LockId, how: 1 | 2 | 3 | 4, waitMs: number, ended: () => void): Promise<Granted | undefined> {
    const sentAt = this.#world.now()
    try {
      const rows = await this.#wire
        .run(this.#statements.wait[how - 1] as Statement, [id.bits], waitMs)
        .finally(() => ended())
      if (!isOurs(rows)) throw this.#die(pooled())
      return { token: tokenOf(rows[0]?.[0]) as bigint, sentAt }
    } catch (error) {
      // A timeout or a cancellation may come at the moment of the grant: the statement fails, but the session has it.
      if (await this.#isHeld(id)) return { token: await this.#drawToken(), sentAt }
      if (codeOf(error) === '55P03' || codeOf(error) === '57014') return undefined
      throw explain(error)
    }
  }

  #tryNow(attempts: readonly Attempt[], together: boolean, next: () => void): void {
    const { tryOne, tryMany } = this.#statements
    const [only] = attempts
    const alone = attempts.length === 1 && only && only.how < 5 && only
    const sentAt = this.#world.now()
    const done: Done = (error, rows) => {
      if (error || !isOurs(rows)) return void this.#undo(attempts, together, error ?? this.#die(pooled())).finally(next)
      if (alone) alone.settle({ token: tokenOf(rows[0]?.[0]), sentAt })
      else for (const [n, token] of rows) attempts[Number(n) - 1]?.settle({ token: tokenOf(token), sentAt })
      next()
    }
    if (alone) this.#wire.send(tryOne[alone.how - 1] as Statement, [alone.id.bits], done)
    else this.#wire.send(tryMany, [...arrays(attempts), together ? 't' : 'f'], done)
  }

  /** A statement that fails keeps what it had already locked. One item must not fail the others either. */
  async #undo(attempts: readonly Attempt[], together: boolean, error: unknown): Promise<void> {
    if (error instanceof SessionLost) return failAll(attempts, error)
    try {
      await this.#unlockAgain(attempts)
    } catch {
      return failAll(attempts, this.#die(error))
    }
    if (attempts.length === 1 || together) failAll(attempts, explain(error))
    else for (const each of attempts) await new Promise<void>((resolve) => this.try([each], false, resolve))
    // What else it may be (a sequence that was dropped), a new session finds out or mends.
    if (!HARMLESS.has(codeOf(error)) && this.#holdings.size === 0) this.#die(error)
  }

  /** Whatever of this may have been locked. Without a look at pg_locks: a server out of memory could not show it. */
  async #unlockAgain(attempts: readonly Attempt[]): Promise<void> {
    const known = new Set([...this.#holdings].map((holding) => holding.id.text))
    const unknown = attempts.filter(({ id, how }) => how < 5 && !known.has(id.text))
    if (unknown.length > 0) await this.#wire.run(this.#statements.unlockMany, arrays(unknown))
  }

  async #isHeld(id: LockId): Promise<boolean> {
    try {
      const rows = await this.#wire.run(this.#statements.held)
      return rows.some(([how, bits]) => idOfRow(bits, Number(how) > 2).text === id.text)
    } catch (error) {
      throw this.#die(error)
    }
  }

  async #drawToken(): Promise<bigint> {
    return BigInt((await this.#wire.run(this.#statements.token))[0]?.[0] as string)
  }
}

export function failAll(items: readonly { settle(outcome: { error: unknown }): void }[], error: unknown): void {
  for (const item of items) item.settle({ error })
}

function arrays(items: readonly { id: LockId; how: How }[]): [string, string] {
  return [`{${items.map((item) => item.how).join()}}`, `{${items.map((item) => item.id.bits).join()}}`]
}

/** Whether it was our backend that answered. */
function isOurs(rows: readonly Row[]): boolean {
  const row = rows[0]
  return row?.[row.length - 1] !== '-1'
}

function tokenOf(text: string | null | undefined): bigint | undefined {
  return text === null || text === undefined ? undefined : BigInt(text)
}
