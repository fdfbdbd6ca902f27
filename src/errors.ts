/**
 * Errors carry a `code` and the facts. Busy, outage and bad input are never confused.
 *
 * @module
 */

import { describe, isSecretName, redact, safeCause, safeValue } from './util/redact.js'

/** Under which name a class is known in every copy of this package. */
const NAME = Symbol.for('leasehold.error-name')

/**
 * Makes `instanceof` true for errors of another copy of this package too: a program may load the ESM and the CommonJS
 * build, or two versions, and catches errors of both.
 *
 * @internal
 */
export function brand(errorClass: { prototype: object }, name: string): void {
  Object.defineProperty(errorClass, NAME, { value: name })
  Object.defineProperty(errorClass.prototype, Symbol.for(`leasehold.${name}`), { value: true })
}

/** Base of everything leasehold throws. No message and no cause shows a password. */
export class LeaseholdError extends Error {
  /** Stable, for programs: `LOCK_TIMEOUT`, `STORE_UNAVAILABLE`, … */
  readonly code: string

  constructor(code: string, message: string, options?: ErrorOptions) {
    // With a cause, the message quotes another library's error.
    super(
      options ? redact(message) : message,
      options?.cause === undefined ? undefined : { cause: safeCause(options.cause) },
    )
    // Not the name of the class, which a minifier shortens.
    this.name = (new.target as { [NAME]?: string })[NAME] ?? new.target.name
    this.code = code
  }

  static {
    brand(this, 'LeaseholdError')
    Object.defineProperty(this, Symbol.hasInstance, {
      value(this: { prototype: object; [NAME]?: string }, error: unknown): boolean {
        if (Function.prototype[Symbol.hasInstance].call(this, error)) return true
        // A class that a user derives from ours has no brand of its own.
        if (!Object.hasOwn(this, NAME) || typeof error !== 'object' || error === null) return false
        return Symbol.for(`leasehold.${this[NAME]}`) in error
      },
    })
  }
}

/** The lock stayed busy for as long as the caller was willing to wait. */
export class LockTimeoutError extends LeaseholdError {
  /** The name asked for. */
  readonly lock: string
  /** How long was waited. */
  readonly waitedMs: number
  /** Who was in the way when last heard of. */
  readonly heldBy: string | undefined

  constructor(lock: string, facts: { waitedMs: number; heldBy?: string | undefined }) {
    const waited = `after ${Math.round(facts.waitedMs)} ms`
    super('LOCK_TIMEOUT', `"${lock}" stayed busy: gave up ${waited}${facts.heldBy ? `, held by ${facts.heldBy}` : ''}`)
    this.lock = lock
    this.waitedMs = facts.waitedMs
    this.heldBy = facts.heldBy
  }

  static {
    brand(this, 'LockTimeoutError')
  }
}

/**
 * Why a lock was lost:
 *
 * - `blocked`: the event loop did not turn for too long, busy with synchronous code
 * - `frozen`: the process did not run for too long: stopped, suspended, or without processor time
 * - `unreachable`: renewals were not answered, or not in time
 * - `server-down`: nothing answers at the address of the server, or the server says that it does not serve
 * - `revoked`: it was taken away by `forceRelease`, by a steal or by hand
 * - `gone`: the store says that it is not ours
 * - `session`: the connection that it depended on broke
 * - `max-hold`: it was held for as long as `maxHold` allows
 * - `released`: it had already been released
 * - `expired`: its time passed, and nothing more is known; also without `autoRenew`
 */
export type LossReason =
  | 'blocked'
  | 'frozen'
  | 'unreachable'
  | 'server-down'
  | 'revoked'
  | 'gone'
  | 'session'
  | 'max-hold'
  | 'released'
  | 'expired'

/** One attempt to renew a lock. */
export interface RenewalAttempt {
  /** When it was sent. */
  at: Date
  /** `failed`: the store could not be asked or did not answer within its time limit. `unanswered`: not yet, when the lock was lost. */
  outcome: 'renewed' | 'gone' | 'failed' | 'unanswered'
  tookMs: number
  /** Why it failed, in words. */
  error?: string
}

/** What is known about the time before a lock was lost. */
export interface LossFacts {
  /** The longest time since the last good renewal for which the event loop did not turn, as far as it was noticed. */
  stalledMs: number
  /** How long ago the last good renewal was sent, or else the grant arrived. Absent for what was never a held lock. */
  lastRenewedMsAgo?: number | undefined
  /** The last five attempts to renew it, the oldest first. */
  attempts: readonly RenewalAttempt[]
}

/** The lock can no longer be trusted: another process may hold it. */
export class LockLostError extends LeaseholdError implements LossFacts {
  readonly lock: string
  readonly why: LossReason
  readonly stalledMs: number
  readonly lastRenewedMsAgo: number | undefined
  readonly attempts: readonly RenewalAttempt[]

  constructor(lock: string, why: LossReason, options?: ErrorOptions & Partial<LossFacts>) {
    // Only with a cause: its text is redacted, which must not happen to a name that looks like a URL.
    const cause = options?.cause === undefined ? undefined : { cause: options.cause }
    super('LOCK_LOST', `"${lock}" is no longer held: ${explainLoss(why, options)}`, cause)
    this.lock = lock
    this.why = why
    this.stalledMs = options?.stalledMs ?? 0
    this.lastRenewedMsAgo = options?.lastRenewedMsAgo
    this.attempts = options?.attempts ?? []
  }

  static {
    brand(this, 'LockLostError')
  }
}

function explainLoss(why: LossReason, { stalledMs = 0, attempts = [] }: Partial<LossFacts> = {}): string {
  const stall = stalledMs < 1_000 ? `${Math.round(stalledMs)} ms` : `${(stalledMs / 1_000).toFixed(1)} s`
  const healed = attempts.findLastIndex(({ outcome }) => outcome === 'renewed')
  const failed = attempts.slice(healed + 1).findLast(({ error }) => error !== undefined)?.error
  const said = failed === undefined ? '' : ` (${failed})`
  switch (why) {
    case 'blocked':
      return `the event loop was blocked for ${stall}; raise ttl, or find what blocks`
    case 'frozen':
      return `the process did not run for ${stall}: stopped, suspended, without processor time, or in a synchronous call that waits; raise ttl, or find what stops it`
    case 'unreachable':
      return `renewals were not answered in time${said}; raise ttl, or find what cuts off or slows down the store`
    case 'server-down':
      return `the server was down${said}; raise ttl above the time that a restart takes`
    default:
      return explain[why]
  }
}

const explain: Record<Exclude<LossReason, 'blocked' | 'frozen' | 'unreachable' | 'server-down'>, string> = {
  expired: 'its time passed without a renewal that worked',
  gone: 'the store says that it is not ours any more',
  revoked: 'it was taken away by force',
  session: 'the connection it depended on broke',
  'max-hold': 'it was held for as long as maxHold allows',
  released: 'it has been released',
}

/** The store could not be reached, or did not answer in time. Says nothing about who holds the lock. */
export class StoreUnavailableError extends LeaseholdError {
  constructor(message: string, options: ErrorOptions = {}) {
    super('STORE_UNAVAILABLE', message, options)
  }

  static {
    brand(this, 'StoreUnavailableError')
  }
}

/** This store cannot do that; thrown when asked for, not in the middle. */
export class UnsupportedError extends LeaseholdError {
  constructor(message: string, options?: ErrorOptions) {
    super('UNSUPPORTED', message, options)
  }

  static {
    brand(this, 'UnsupportedError')
  }
}

/** A package that only this store needs is not installed. */
export class MissingPackageError extends LeaseholdError {
  /** Any one of them will do; the first is the one to prefer. */
  readonly packages: readonly string[]

  constructor(who: string, packages: readonly string[], options?: ErrorOptions) {
    const [first, ...others] = packages
    const or = others.length > 0 ? ` (or ${others.join(', ')})` : ''
    super('MISSING_PACKAGE', `${who} needs a package that is not installed: npm install ${first}${or}`, options)
    this.packages = packages
  }

  static {
    brand(this, 'MissingPackageError')
  }
}

/** Bad input, noticed before anything was touched. */
export class InvalidOptionError extends LeaseholdError {
  /** Which option. */
  readonly option: string
  /** What it was, as far as it may be shown: numbers, flags and texts without passwords; other things are described. */
  readonly value: unknown

  /** `message`: instead of the sentence that is made of the other three. */
  constructor(option: string, value: unknown, takes: string, message?: string) {
    const safe = safeValue(option, value)
    const was = isSecretName(option) ? 'not shown' : describe(value)
    super('INVALID_OPTION', message ?? `${option} takes ${takes}; it was ${was}`)
    this.option = option
    this.value = safe
  }

  static {
    brand(this, 'InvalidOptionError')
  }
}

/** The callback that holds this lock asked for it again, and would have waited for itself. */
export class SelfDeadlockError extends LeaseholdError {
  readonly lock: string

  constructor(lock: string) {
    super(
      'SELF_DEADLOCK',
      `"${lock}" is already held by the callback that asks for it, which would wait for itself; pass { nested: 'wait' } if this is detached work`,
    )
    this.lock = lock
  }

  static {
    brand(this, 'SelfDeadlockError')
  }
}

/** `close()` was called: no new grants. Also the reason with which the signals of held locks abort then. */
export class ClosedError extends LeaseholdError {
  constructor(message: string) {
    super('CLOSED', message)
  }

  static {
    brand(this, 'ClosedError')
  }
}
