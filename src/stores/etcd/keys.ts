/**
 * Where things are in etcd. Below the prefix:
 *
 * - `<key>/<owner>`: a holder or a queue entry of this key. The order of creation is the order of the queue, as in `etcdctl lock`,
 *   whose keys `<key>/<lease id>` stand beside ours.
 * - `<key>/!<owner>`: a holder that overtook the queue by a steal: its place in the order of creation says nothing.
 * - `!tokens`: what is added to revisions to make tokens of them.
 * - `!revoked/<session>/…`: notices to the store object whose lease was taken away.
 * - `!revoked/<session>/lease:<id>`: ends with a lease of etcd that this store object keeps alive.
 *
 * @module
 */
import type { BoundedRange } from './messages.js'

/** The character after `/`: the end of the range of all keys that begin with `<key>/`. */
const AFTER_SLASH = '0'
/** The character after `!`. */
const AFTER_STOLEN = '"'

const escaped = (text: string, special: RegExp): string =>
  text.replace(special, (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`)

const unescaped = (text: string): string =>
  text.replace(/%([0-9A-F]{2})/g, (_, code: string) => String.fromCharCode(Number.parseInt(code, 16)))

/** A `/` in a name would make the keys of `a/b` look like those of `a`. */
const escapeKey = (key: string): string => escaped(key, /[%/]/g)
const escapeOwner = (owner: string): string => escaped(owner, /[%/!]/g)

/** What a key in etcd stands for. */
export interface ParsedKey {
  key: string
  owner: string
  stolen: boolean
}

export class EtcdKeys {
  readonly prefix: string
  readonly offset: Buffer

  constructor(prefix: string) {
    this.prefix = prefix
    this.offset = Buffer.from(`${prefix}!tokens`)
  }

  /** All holders and queue entries of one key. */
  directory(key: string): BoundedRange {
    const path = this.prefix + escapeKey(key)
    return { key: Buffer.from(`${path}/`), end: Buffer.from(path + AFTER_SLASH) }
  }

  /** The holders of one key that overtook the queue. */
  stolen(key: string): BoundedRange {
    const path = `${this.prefix}${escapeKey(key)}/`
    return { key: Buffer.from(`${path}!`), end: Buffer.from(path + AFTER_STOLEN) }
  }

  entry(key: string, owner: string): Buffer {
    return Buffer.from(`${this.prefix}${escapeKey(key)}/${escapeOwner(owner)}`)
  }

  stolenEntry(key: string, owner: string): Buffer {
    return Buffer.from(`${this.prefix}${escapeKey(key)}/!${escapeOwner(owner)}`)
  }

  /** All keys of the store whose names begin with this text. */
  beginningWith(text: string): BoundedRange {
    const start = Buffer.from(this.prefix + escapeKey(text))
    return { key: start, end: endOfPrefix(start) }
  }

  inbox(session: string): BoundedRange {
    const path = `${this.prefix}!revoked/${session}`
    return { key: Buffer.from(`${path}/`), end: Buffer.from(path + AFTER_SLASH) }
  }

  notice(session: string, id: string): Buffer {
    return Buffer.from(`${this.prefix}!revoked/${session}/${id}`)
  }

  /** A `:` stands in no id of a notice. */
  canary(session: string, lease: string): Buffer {
    return this.notice(session, `lease:${lease}`)
  }

  /** Undefined: not a holder or queue entry. */
  parse(etcdKey: Buffer): ParsedKey | undefined {
    const text = etcdKey.toString().slice(this.prefix.length)
    const slash = text.lastIndexOf('/')
    if (slash < 0 || text.startsWith('!')) return undefined
    const key = unescaped(text.slice(0, slash))
    const stolen = text[slash + 1] === '!'
    return { key, owner: unescaped(text.slice(slash + (stolen ? 2 : 1))), stolen }
  }
}

/** The first key that does not begin with this one any more. */
function endOfPrefix(start: Buffer): Buffer {
  const end = Buffer.from(start)
  for (let at = end.length - 1; at >= 0; at--) {
    const byte = end[at] as number
    if (byte === 0xff) continue
    end[at] = byte + 1
    return end.subarray(0, at + 1)
  }
  // Every key from here on.
  return Buffer.of(0)
}
