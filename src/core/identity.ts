import { hostname } from 'node:os'
import type { World } from '../util/world.js'

/** Identities: who is this instance, and which acquisition of it. */
export class Identity {
  /** `host:pid:uuid`, unique per instance: what people look for in logs first. */
  readonly instance: string
  #count = 0

  constructor(world: World) {
    this.instance = `${hostname().slice(0, 64)}:${process.pid}:${uuidv7(world)}`
  }

  /** A UUID for each acquisition would cost more than the rest of it: the instance and a counter are as unique. */
  next(): string {
    return `${this.instance}/${++this.#count}`
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
