/**
 * A holder or queue entry that this store object has written or prolonged.
 *
 * @module
 */
import type { EtcdRecord } from './codec.js'
import type { EtcdLease } from './leases.js'

/** What is known of an entry when it is written or found. */
export interface EntryFacts {
  readonly key: string
  readonly owner: string
  readonly etcdKey: Buffer
  readonly createRevision: number
  modRevision: number
  record: EtcdRecord
  readonly grantRevision: number
  lease: EtcdLease
  /** The core renews it until it is released, so that it may share a lease. */
  renewed: boolean
  /** From here on it counts as ended, by our clock, and is removed. */
  deadline: number
}

/** A class, because a heartbeat reads thousands of them: with all fields from the start they have one shape. */
export class Tracked implements EntryFacts {
  readonly key: string
  readonly owner: string
  readonly etcdKey: Buffer
  readonly createRevision: number
  modRevision: number
  record: EtcdRecord
  readonly grantRevision: number
  lease: EtcdLease
  renewed: boolean
  deadline: number
  /** The token of the grant, for the heartbeat. Undefined: not needed yet. */
  token: bigint | undefined = undefined
  /** Calls that are about to prolong it: it is not removed meanwhile. */
  busy = 0
  /** A write of ours was not answered, and bound it to a lease that we may not keep alive: it has to be written anew. */
  isElsewhere = false
  /** Its release was not answered: a renewal that was under way does not prolong it. One that begins later takes that back. */
  isAbandoned = false
  /** It is not tracked any more: another entry of its owner may have taken its place. */
  isForgotten = false

  constructor(facts: EntryFacts) {
    this.key = facts.key
    this.owner = facts.owner
    this.etcdKey = facts.etcdKey
    this.createRevision = facts.createRevision
    this.modRevision = facts.modRevision
    this.record = facts.record
    this.grantRevision = facts.grantRevision
    this.lease = facts.lease
    this.renewed = facts.renewed
    this.deadline = facts.deadline
  }

  /** Its time has passed by our clock, and no call is about to prolong it. */
  hasEnded(now: number): boolean {
    return this.deadline <= now && this.busy === 0
  }
}
