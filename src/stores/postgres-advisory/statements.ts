import { InvalidOptionError } from '../../errors.js'
import { idOfName, type LockId } from './ids.js'
import * as sql from './sql/embedded.js'
import type { Statement } from './submission.js'

/** Held alone while the sequence is created or raised, and shared while a token is drawn. */
const RAISING: LockId = idOfName('\0leasehold advisory raising')

/** The texts of one store: they name its sequence. */
export class Statements {
  /** As SQL writes it, quoted: `"public"."leasehold_advisory_token"`. */
  readonly sequence: string
  readonly raise: string
  readonly createSequence: string
  readonly #token: string

  constructor(schema: string) {
    if (typeof schema !== 'string' || schema === '' || schema.includes('\0')) {
      throw new InvalidOptionError('schema', schema, 'the name of a schema')
    }
    this.sequence = `"${schema.replaceAll('"', '""')}"."leasehold_advisory_token"`
    const literal = this.sequence.replaceAll("'", "''")
    const fill = { raising: RAISING.bits, sequence: literal }
    this.#token = filled(sql.token, fill)
    this.raise = filled(sql.raise, fill)
    this.createSequence = filled(sql.sequence, { sequence: this.sequence })
  }

  /** For a role that may not create it itself. */
  get setup(): string {
    return `${this.createSequence}; GRANT USAGE, SELECT, UPDATE ON SEQUENCE ${this.sequence} TO <role>`
  }

  /** Under the lock that keeps others from creating it at the same moment. */
  get createAlone(): string {
    return `BEGIN; SELECT pg_advisory_xact_lock(${RAISING.bits}); ${this.createSequence}; COMMIT`
  }

  for(pid: number): SessionStatements {
    const fill = { pid: String(pid), token: this.#token }
    const each = (name: string, text: (how: 1 | 2 | 3 | 4) => string): Statement[] =>
      ([1, 2, 3, 4] as const).map((how) => ({ name: `${name}${how}`, text: text(how) }))
    return {
      tryOne: each('try', (how) => filled(sql.tryOne, { ...fill, lock: call('pg_try_advisory_lock', how) })),
      wait: each('wait', (how) => filled(sql.wait, { ...fill, lock: call('pg_advisory_lock', how) })),
      unlockOne: each('unlock', (how) => `SELECT ${call('pg_advisory_unlock', how)}`),
      tryMany: { name: 'tries', text: filled(sql.tryMany, fill) },
      unlockMany: { name: 'unlocks', text: filled(sql.unlockMany, {}) },
      held: { name: 'held', text: filled(sql.held, {}) },
      token: { name: 'token', text: `SELECT ${this.#token}` },
      ping: { name: 'ping', text: `SELECT set_config('idle_session_timeout', $1, false), pg_backend_pid()` },
    }
  }
}

/** Arrays are by how − 1. */
export interface SessionStatements {
  readonly tryOne: readonly Statement[]
  readonly wait: readonly Statement[]
  readonly unlockOne: readonly Statement[]
  readonly tryMany: Statement
  readonly unlockMany: Statement
  readonly held: Statement
  readonly token: Statement
  readonly ping: Statement
}

/** 1 lock, 2 shared; 3 and 4 the same for pairs; 5 and 6 (pairs): one more reader of what is held shared already. */
export type How = 1 | 2 | 3 | 4 | 5 | 6

export function howTo(id: LockId, shared: boolean): 1 | 2 | 3 | 4 {
  return (1 + (shared ? 1 : 0) + (id.pair ? 2 : 0)) as 1 | 2 | 3 | 4
}

export function isInternal(id: LockId): boolean {
  return id.text === RAISING.text
}

function call(name: string, how: 1 | 2 | 3 | 4): string {
  const shared = how % 2 === 0 ? '_shared' : ''
  return how > 2
    ? `${name}${shared}(($1::bigint >> 32)::int, ($1::bigint << 32 >> 32)::int)`
    : `${name}${shared}($1::bigint)`
}

export function filled(text: string, values: Record<string, string>): string {
  const bare = text.replace(/^--.*\n/gm, '').trim()
  return bare.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = values[name]
    if (value === undefined) throw new Error(`nothing to put in place of {${name}}`)
    return value
  })
}
