import { createHash } from 'node:crypto'
import { InvalidOptionError } from '../../errors.js'

/** Numbers of your own instead of a hash: any 64-bit integer, or a pair of 32-bit ones (a space of its own). */
export type AdvisoryId = bigint | number | readonly [number, number]

/** A lock as PostgreSQL knows it. */
export interface LockId {
  /** For maps: equal exactly if PostgreSQL means the same lock. */
  readonly text: string
  /** The 64 bits as the signed decimal that statements take; a pair has its first number in the upper half. */
  readonly bits: string
  readonly pair: boolean
}

/**
 * CACHED_KEYS: how many keys are kept with their lock, at most. Hashing a key again costs more than the rest of a refused
 * attempt; without a bound, a process that locks ever new names would grow without end.
 */
const CACHED_KEYS = 10_000

/** Finds the lock of a key, and the key of a lock if this process has seen it. */
export class AdvisoryKeys {
  readonly #ownId: ((name: string) => AdvisoryId | undefined) | undefined
  readonly #ids = new Map<string, LockId>()
  readonly #keys = new Map<string, string>()

  constructor(ownId: ((name: string) => AdvisoryId | undefined) | undefined) {
    this.#ownId = ownId
  }

  idOf(key: string): LockId {
    const known = this.#ids.get(key)
    if (known) return known
    const name = key.startsWith('lock:') ? key.slice('lock:'.length) : undefined
    const own = name === undefined ? undefined : this.#ownId?.(name)
    const id = own === undefined ? idOfKey(key) : idOfNumbers('key', own)
    if (this.#ids.size >= CACHED_KEYS) {
      this.#ids.clear()
      this.#keys.clear()
    }
    this.#ids.set(key, id)
    this.#keys.set(id.text, key)
    return id
  }

  /** `text`: of a LockId. Undefined for keys that this process has not used: a hash cannot be turned back. */
  keyOf(text: string): string | undefined {
    return this.#keys.get(text)
  }
}

/** The first 8 bytes of SHA-256 of the name, as a signed integer: `docs/stores/postgres-advisory.md` has it in SQL. */
export function idOfName(name: string): LockId {
  return idOfHash(Buffer.from(name))
}

/** A lock is known by its bare name, everything else by its whole key behind a NUL, which no name contains. */
function idOfKey(key: string): LockId {
  return key.startsWith('lock:') ? idOfName(key.slice('lock:'.length)) : idOfHash(Buffer.from(`\0${key}`))
}

function idOfHash(text: Buffer): LockId {
  return idOfBits(createHash('sha256').update(text).digest().readBigInt64BE(0), false)
}

export function idOfNumbers(option: string, value: AdvisoryId): LockId {
  if (Array.isArray(value)) {
    const [upper, lower] = value as unknown as [unknown, unknown]
    if (value.length === 2 && isInt4(upper) && isInt4(lower)) {
      return idOfBits((BigInt(upper) << 32n) | BigInt.asUintN(32, BigInt(lower)), true)
    }
  } else if (typeof value === 'bigint' || Number.isSafeInteger(value)) {
    const bits = BigInt(value as bigint | number)
    if (BigInt.asIntN(64, bits) === bits) return idOfBits(bits, false)
  }
  throw new InvalidOptionError(option, value, 'a 64-bit integer (a bigint beyond 2^53), or a pair of 32-bit integers')
}

/** The lock of a row of pg_locks. */
export function idOfRow(bits: string | null | undefined, pair: boolean): LockId {
  return idOfBits(BigInt(bits ?? 0), pair)
}

function idOfBits(bits: bigint, pair: boolean): LockId {
  return { text: pair ? `pair ${bits}` : `${bits}`, bits: `${bits}`, pair }
}

/** A lock's number for people: `1234`, or `(12, 34)`. */
export function formatId({ bits, pair }: LockId): string {
  if (!pair) return bits
  return `(${BigInt(bits) >> 32n}, ${BigInt.asIntN(32, BigInt(bits))})`
}

function isInt4(value: unknown): value is number {
  return typeof value === 'number' && (value | 0) === value
}
