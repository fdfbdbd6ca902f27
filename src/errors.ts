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
    // With a cause, the message quotes what somebody else said.
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
        // A class that somebody else derives from ours has no brand of its own.
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
 * Why a lock was lost: its time passed without a renewal that worked (`expired`), the store says it is not ours
 * (`gone`), somebody took it by force (`revoked`), the connection it hung on broke (`session`), it was held for as
 * long as `maxHold` allows (`max-hold`), or it had already been released (`released`).
 */
export type LossReason = 'expired' | 'gone' | 'revoked' | 'session' | 'max-hold' | 'released'

/** The lock can no longer be trusted: somebody else may hold it. */
export class LockLostError extends LeaseholdError {
  readonly lock: string
  readonly why: LossReason

  constructor(lock: string, why: LossReason, options?: ErrorOptions) {
    super('LOCK_LOST', `"${lock}" is no longer held: ${explain[why]}`, options)
    this.lock = lock
    this.why = why
  }

  static {
    brand(this, 'LockLostError')
  }
}

const explain: Record<LossReason, string> = {
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
