/**
 * The value of a key in etcd: a holder or a queue entry as JSON with short names, since it is written with every grant.
 *
 * @module
 */
import type { KeyValue } from './messages.js'

export interface EtcdRecord {
  state: 'held' | 'waiting'
  weight: number
  capacity: number
  /** As in `Claim.value`. */
  value: string | undefined
  announce: boolean
  /** The revision of the grant. Absent: the revision at which the key was last written. */
  grantRevision: number | undefined
  /** The store object that wrote it, which is told if the lease is taken away. */
  session: string
  /** Which attempt wrote it: one whose outcome is not known is found again by this. */
  attempt: number
  /** The ttl that was asked for last. What is left of it, no other process can tell. */
  ttlMs: number
  /** Wall clock of the process that was granted it or queued, to show to people. */
  since: number
}

interface Wire {
  s: 'h' | 'w'
  w: number
  c: number
  v?: string | undefined
  a?: 1 | undefined
  r?: number | undefined
  i: string
  n: number
  l: number
  t: number
}

/** As it was read: anything may stand there. */
type Loose<T> = { [K in keyof T]?: unknown }

export function encodeRecord(record: EtcdRecord): Buffer {
  const { state, weight, capacity, value, announce, grantRevision, session, attempt, ttlMs, since } = record
  const wire: Wire = {
    s: state === 'held' ? 'h' : 'w',
    w: weight,
    c: capacity,
    v: value,
    a: announce ? 1 : undefined,
    r: grantRevision,
    i: session,
    n: attempt,
    l: ttlMs,
    t: since,
  }
  return Buffer.from(JSON.stringify(wire))
}

/**
 * Undefined: written by another program, such as `etcdctl lock`. Every number is checked: a weight below 0 would let a second holder in, a
 * revision with a fraction would fail each listing, and a ttl that is no number would make waits of no length.
 */
export function decodeRecord(bytes: Buffer): EtcdRecord | undefined {
  if (bytes.length === 0) return undefined
  let wire: Loose<Wire> | null
  try {
    wire = JSON.parse(bytes.toString()) as Loose<Wire> | null
  } catch {
    return undefined
  }
  if (typeof wire !== 'object' || wire === null) return undefined
  const { s, w, c, v, a, r, i, n, l, t } = wire
  if ((s !== 'h' && s !== 'w') || typeof i !== 'string') return undefined
  if (!isCount(w) || !isCount(c) || !(r === undefined || isCount(r))) return undefined
  if (!isWhole(n) || !isFiniteNumber(l) || l < 0 || !isFiniteNumber(t)) return undefined
  return {
    state: s === 'h' ? 'held' : 'waiting',
    weight: w,
    capacity: c,
    value: typeof v === 'string' ? v : undefined,
    announce: a === 1,
    grantRevision: r,
    session: i,
    attempt: n,
    ttlMs: l,
    since: t,
  }
}

const isFiniteNumber = (value: unknown): value is number => Number.isFinite(value)
const isWhole = (value: unknown): value is number => Number.isSafeInteger(value)
const isCount = (value: unknown): value is number => isWhole(value) && value > 0

/** The revision at which a holder was granted the key. */
export function grantRevisionOf(record: EtcdRecord, { modRevision }: Pick<KeyValue, 'modRevision'>): number {
  return record.grantRevision ?? modRevision
}
