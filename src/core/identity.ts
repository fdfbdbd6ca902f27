import { hostname } from 'node:os'
import type { World } from '../util/world.js'

/** PER_PREFIX: acquisitions in a row whose identities differ only in the last three digits, which LAST_DIGITS has. */
const PER_PREFIX = 1_000

/**
 * The last digits of a count, as texts that are made once. V8 keeps the text of each new number in a cache, where it
 * survives two collections: copying these texts took an eighth of the time of a lock in memory.
 */
const LAST_DIGITS = Array.from({ length: PER_PREFIX }, (_, i) => String(i).padStart(3, '0'))

/** Identities: who is this instance, and which acquisition of it. */
export class Identity {
  /** `host:pid:uuid`, unique per instance: what people look for in logs first. */
  readonly instance: string
  #count = 0
  #prefix = ''

  constructor(world: World) {
    this.instance = `${hostname().slice(0, 64)}:${process.pid}:${uuidv7(world)}`
  }

  /** A UUID for each acquisition would cost more than the rest of it: the instance and a counter are as unique. */
  next(): string {
    const last = ++this.#count % PER_PREFIX
    if (this.#count < PER_PREFIX) return `${this.instance}/${last}`
    if (last === 0) this.#prefix = `${this.instance}/${this.#count / PER_PREFIX}`
    return this.#prefix + LAST_DIGITS[last]
  }
}

/** Random, and sorts by time of creation. */
function uuidv7(world: World): string {
  const bytes = world.bytes()
  const time = BigInt(Math.floor(world.date()))
  for (let i = 0; i < 6; i++) bytes[i] = Number((time >> BigInt(8 * (5 - i))) & 0xffn)
  bytes[6] = ((bytes[6] as number) & 0x0f) | 0x70
  bytes[8] = ((bytes[8] as number) & 0x3f) | 0x80
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-')
}
