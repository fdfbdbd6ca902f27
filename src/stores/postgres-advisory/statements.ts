import { InvalidOptionError } from '../../errors.js'
import { idOfName, type LockId } from './ids.js'
import * as sql from './sql/embedded.js'

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
    const variants = [1, 2, 3, 4] as const
    return {
      tryOne: variants.map((how) => filled(sql.tryOne, { ...fill, lock: call('pg_try_advisory_lock', how) })),
      wait: variants.map((how) => filled(sql.wait, { ...fill, lock: call('pg_advisory_lock', how) })),
      unlockOne: variants.map((how) => `SELECT ${call('pg_advisory_unlock', how)}`),
      tryMany: filled(sql.tryMany, fill),
      unlockMany: filled(sql.unlockMany, {}),
      held: filled(sql.held, {}),
      token: `SELECT ${this.#token}`,
      ping: `SELECT set_config('idle_session_timeout', $1, false), pg_backend_pid()`,
    }
  }
}

/** Arrays are by how − 1. */
export interface SessionStatements {
  readonly tryOne: readonly string[]
  readonly wait: readonly string[]
  readonly unlockOne: readonly string[]
  readonly tryMany: string
  readonly unlockMany: string
  readonly held: string
  readonly token: string
  readonly ping: string
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
