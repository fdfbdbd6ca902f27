/**
 * How keys are called in Redis.
 *
 * @module
 */
import { randomBytes } from 'node:crypto'
import { InvalidOptionError } from '../../errors.js'
import type { Limit } from '../../store.js'
import type { ServerClock } from './server-clock.js'

/** The kind of a key: `lock` of `lock:order:7`. */
export function kindOf(key: string): string {
  const end = key.indexOf(':')
  return end < 0 ? key : key.slice(0, end)
}

/** A prefix as a pattern that matches only itself. */
export function literally(prefix: string): string {
  return prefix.replace(/[\\*?[\]^-]/g, '\\$&')
}

/** All keys of a kind, and on a cluster of a slot, have one index in common. */
export interface Index {
  /** Its key in Redis. */
  readonly name: string
  readonly kind: string
  /** Of a cluster; 0 elsewhere. */
  readonly slot: number
  /** Of the server that has it; unknown before it was asked. */
  clock: ServerClock | undefined
  /** Until when, by our clock, nothing has to be looked into before asking. */
  warmUntil: number
  /** Until when the directory knows of it. */
  announcedUntil: number
}

/** What is asked for again and again is worked out once. */
interface Known {
  plain: string
  base: string
  slot: number
  index: Index
}

/** MOST_KNOWN: keys whose names are remembered. More would only be memory: working one out takes a microsecond. */
const MOST_KNOWN = 10_000

/**
 * What every name of ours begins with, behind the prefix. The number is the format of what is kept there: another format is
 * another set of keys, so that versions of this library that differ in it never misread each other. They meet at the plain
 * key, where each takes the other for a foreign holder.
 */
const ROOT = 'leasehold:1:'

/** As `keyOf` in common.lua names them. */
const SIDE_KEYS = ['metadata', 'shares', 'expirations', 'queue', 'queue-expirations', 'waiters']

/** As take.lua calls them. */
export const ALGORITHM_CODES = { 'token-bucket': 'b', 'sliding-window': 'w', 'fixed-window': 'f' } as const

/** The names of everything the store keeps. All are full names, with the prefix that the client itself puts before them. */
export class Keys {
  /** What stands before every name: the client's own key prefix, and ours. */
  readonly lead: string
  readonly cluster: boolean
  /** Names this store where others tell it of its grants. */
  readonly subscriber: string = randomBytes(6).toString('hex')
  readonly #indexes = new Map<string, Index>()
  readonly #known = new Map<string, Known>()

  constructor(clientPrefix: string, prefix: string, cluster: boolean) {
    this.lead = clientPrefix + prefix
    this.cluster = cluster
    // It would take whatever name follows into its hash tag, and side keys would lie in other slots.
    if (cluster && hashTag(this.lead) === undefined && this.lead.includes('{'))
      throw new InvalidOptionError('prefix', this.lead, 'on a cluster only whole hash tags, like {app}')
  }

  /** `lock:order:7`: what everybody else sees, and the key of an exclusive lock in any language. */
  plain(key: string): string {
    return this.#of(key).plain
  }

  /** The other way round. */
  key(plain: string): string {
    return plain.slice(this.lead.length)
  }

  slot(key: string): number {
    return this.#of(key).slot
  }

  /** Lies in the slot of its keys, so that a script may touch it together with any of them. */
  index(key: string): Index {
    return this.#of(key).index
  }

  /** The kind of the keys in an index that somebody else made. */
  kindOfIndex(name: string): string {
    return name.slice(name.lastIndexOf(':') + 1)
  }

  /** All of it, looked up once. */
  of(key: string): Readonly<Known> {
    return this.#of(key)
  }

  /** The names that a call for this key alone declares; undefined for a key that cannot be carried. */
  lone(key: string): string[] | undefined {
    const known = this.#known.get(key) ?? (key.includes('\0') ? undefined : this.#of(key))
    return known && [known.index.name, known.plain]
  }

  /** The plain name of a key, if it belongs to this index. Without looking it up where the key itself tells. */
  plainIn(index: Index, key: string): string | undefined {
    if (!this.cluster && this.lead === '' && key.startsWith(`${index.kind}:`) && !key.includes('\0')) return key
    const known = this.#of(key)
    return known.index === index ? known.plain : undefined
  }

  #of(key: string): Known {
    let known = this.#known.get(key)
    if (!known) {
      // It separates names from what is kept of them.
      if (key.includes('\0')) throw new InvalidOptionError('key', key, 'a text without NUL')
      const plain = this.lead + key
      const slot = this.cluster ? slotOf(plain) : 0
      known = { plain, base: this.#base(plain), slot, index: this.#index(kindOf(key), slot) }
      if (this.#known.size >= MOST_KNOWN) this.#known.clear()
      this.#known.set(key, known)
    }
    return known
  }

  #index(kind: string, slot: number): Index {
    const name = `${this.lead}${ROOT}held:${this.cluster ? `{${tagOf(slot)}}:` : ''}${kind}`
    let index = this.#indexes.get(name)
    if (!index)
      this.#indexes.set(name, (index = { name, kind, slot, clock: undefined, warmUntil: 0, announcedUntil: 0 }))
    return index
  }

  /** All indexes that this process has used. */
  get indexes(): Iterable<Index> {
    return this.#indexes.values()
  }

  /** The key that says which indexes there are. */
  get directory(): string {
    return `${this.lead}${ROOT}indexes`
  }

  /** The channel on which leases that were taken away by force are published to every process. */
  get revocations(): string {
    return `${this.lead}${ROOT}revoked`
  }

  /** What the names of all that belongs to a key begin with. */
  base(key: string): string {
    return this.#of(key).base
  }

  /** The channel on which a key's events are told to all. */
  events(key: string): string {
    return `${this.base(key)}events`
  }

  /** The channel on which grants to waiters of this store are published. */
  ownEvents(key: string): string {
    return `${this.base(key)}events:${this.subscriber}`
  }

  /** The list into which grants to a subscriber are pushed. The name of such a subscriber begins with m, and no other's does. */
  inbox(subscriber: string): string {
    return `${this.lead}${ROOT}inbox:${subscriber}`
  }

  /** A key that only this store writes, on the server of that index. */
  confirmation(index: Index): string {
    return `${this.lead}${ROOT}confirm:${this.cluster ? `{${tagOf(index.slot)}}:` : ''}${this.subscriber}`
  }

  /** All keys that a script may touch for this one, besides the index and the plain key. */
  sideKeys(key: string): string[] {
    const base = this.base(key)
    return SIDE_KEYS.map((name) => base + name)
  }

  /** What is remembered of one limit. A limit that is configured anew begins anew. */
  meter(key: string, nth: number, { algorithm, perMs }: Limit): string {
    // Not remembered: there may be far more limits than locks, one for each user.
    return `${this.#base(this.lead + key)}${nth}:${ALGORITHM_CODES[algorithm]}:${perMs}`
  }

  /**
   * The same rule in Lua: `keyOf` in common.lua. Whatever belongs to a key lies in its slot: by the tag it has, by being the
   * tag, or, if a stray brace forbids both, by a tag made for the slot. No name can be mistaken for one of these, since
   * no kind is called `leasehold`.
   */
  #base(plain: string): string {
    if (hashTag(plain) !== undefined) return `${this.lead}${ROOT}${plain}:`
    if (this.cluster && plain.includes('}')) return `${this.lead}${ROOT}{${tagOf(slotOf(plain))}}${plain}:`
    return `${this.lead}${ROOT}{${plain}}:`
  }
}

// Where Redis Cluster keeps a key.

export const SLOTS = 16_384

const table: Uint16Array = new Uint16Array(256).map((_, byte) => {
  let crc = byte << 8
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1
  return crc
})

function crc16(bytes: Uint8Array): number {
  let crc = 0
  for (const byte of bytes) crc = ((crc << 8) & 0xffff) ^ (table[(crc >> 8) ^ byte] as number)
  return crc
}

/** The part of a key that decides its slot: between the first `{` and the next `}`, if there is anything between them. */
export function hashTag(key: string): string | undefined {
  const open = key.indexOf('{')
  const close = open < 0 ? -1 : key.indexOf('}', open)
  return close > open + 1 ? key.slice(open + 1, close) : undefined
}

export function slotOf(key: string): number {
  return crc16(Buffer.from(hashTag(key) ?? key)) % SLOTS
}

let tags: string[] | undefined

/** A short text that lies in this slot, for keys that belong to the slot rather than to a name. */
export function tagOf(slot: number): string {
  tags ??= findTags()
  return tags[slot] as string
}

/** Some 170,000 tries, 30 ms, and only on a cluster. */
function findTags(): string[] {
  const found: string[] = []
  let missing = SLOTS
  for (let i = 0; missing > 0; i++) {
    const tag = i.toString(36)
    const slot = slotOf(tag)
    if (found[slot] !== undefined) continue
    found[slot] = tag
    missing--
  }
  return found
}
