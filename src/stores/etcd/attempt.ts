/**
 * One claim on its way to an answer: which transaction decides it next, and what its result means.
 *
 * @module
 */
import type { Answer, Claim } from '../../store.js'
import { encodeRecord, type EtcdRecord } from './codec.js'
import type { EtcdContext } from './context.js'
import { admits, type Directory, type Entry, isHolder, ownEntry, readDirectory } from './directory.js'
import type { EtcdLease } from './leases.js'
import { MOST_BYTES, tooLarge } from './sizes.js'
import type { Comparison, EtcdTransaction, KeyValue, Operation, OperationResult, TxnResult } from './messages.js'

/** Holders that one transaction can end: etcd takes 128 operations, and each needs two. */
export const MOST_ENDED = 50

/**
 * What the next transaction does:
 *
 * - `look`: reads the directory.
 * - `take-empty`: takes the key if it has no holder and no queue at all; otherwise reads, and enqueues if asked to.
 * - `take-first`: takes the key if our queue entry is the oldest of the directory.
 * - `take`: takes the key if nothing was written to its directory since it was read.
 * - `evict`: ends holders, because there are too many for one transaction.
 * - `enqueue`: adds a queue entry, and reads the directory after that.
 */
export type Step = 'look' | 'take-empty' | 'take-first' | 'take' | 'evict' | 'enqueue'

export class Attempt {
  readonly claim: Claim
  number: number
  readonly #context: EtcdContext
  directory: Directory | undefined
  step: Step = 'look'
  lease: EtcdLease | undefined
  queueLease: EtcdLease | undefined
  answer: Answer | undefined
  /** Whether its transaction reads the directory after it has added its entry. Of several of one key the last one does. */
  readsBack = true

  constructor(context: EtcdContext, claim: Claim) {
    this.#context = context
    this.claim = claim
    this.number = context.nextAttempt()
  }

  renumber(): void {
    this.number = this.#context.nextAttempt()
  }

  get own(): Entry | undefined {
    return this.directory && ownEntry(this.directory, this.claim.owner)
  }

  /** Bytes of its values and keys in a transaction, at most: a value may double in JSON, and is written as holder or else as waiter. */
  get size(): number {
    const { key, owner, value } = this.claim
    return 6 * (key.length + owner.length) + (value === undefined ? 0 : 4 * Buffer.byteLength(value))
  }

  /** Why etcd cannot carry it. Undefined: it can. */
  get impossible(): Error | undefined {
    return this.size > MOST_BYTES ? tooLarge('metadata', encodeRecord(this.record('held'))) : undefined
  }

  get isExclusive(): boolean {
    return this.claim.weight === this.claim.capacity
  }

  /** Whether the directory, as it was read, lets the claim in, beside this much that is taken of the same key in the same step. */
  isAdmitted(besides = 0): boolean {
    return this.claim.steal === true || admits(this.directory as Directory, this.claim, besides)
  }

  record(state: EtcdRecord['state']): EtcdRecord {
    const { weight, capacity, ttlMs, value, announce } = this.claim
    const { session, world } = this.#context
    return {
      state,
      weight,
      capacity,
      value,
      announce: announce === true,
      grantRevision: undefined,
      session,
      attempt: this.number,
      ttlMs,
      since: Math.floor(world.date()),
    }
  }

  /** Where it is, or will be. */
  get etcdKey(): Buffer {
    const { keys } = this.#context
    const { key, owner, steal } = this.claim
    return steal ? keys.stolenEntry(key, owner) : keys.entry(key, owner)
  }

  get #read(): Operation {
    return { range: this.#context.keys.directory(this.claim.key) }
  }

  get #take(): Operation {
    return { put: { key: this.etcdKey, value: encodeRecord(this.record('held')), lease: (this.lease as EtcdLease).id } }
  }

  get #enqueue(): Operation {
    const { keys } = this.#context
    const key = keys.entry(this.claim.key, this.claim.owner)
    return { put: { key, value: encodeRecord(this.record('waiting')), lease: (this.queueLease as EtcdLease).id } }
  }

  get #isNew(): Comparison {
    const { keys } = this.#context
    return { key: keys.entry(this.claim.key, this.claim.owner), is: '=', create: 0 }
  }

  transaction(noticeLease: EtcdLease | undefined): EtcdTransaction {
    const { offset, keys, queue } = this.#context
    const { key, owner } = this.claim
    const directory = keys.directory(key)
    const read = this.#read
    if (this.step === 'look') return { compare: [], success: [read], failure: [] }
    if (this.step === 'enqueue') {
      const success = this.readsBack ? [this.#enqueue, read] : [this.#enqueue]
      return { compare: [this.#isNew], success, failure: [read] }
    }
    if (this.step === 'take-empty') {
      const enqueue: Operation = {
        txn: { compare: [this.#isNew], success: [this.#enqueueIfAsked].flat(), failure: [] },
      }
      return {
        compare: [offset.unchanged, { ...directory, is: '=', create: 0 }],
        success: [this.#take],
        failure: this.queueLease ? [enqueue, read] : [read],
      }
    }
    if (this.step === 'take-first') {
      const created = queue.createRevision(key, owner) as number
      const compare: Comparison[] = [
        offset.unchanged,
        { ...directory, is: '>', create: created - 1 },
        { ...keys.stolen(key), is: '=', create: 0 },
        { key: this.etcdKey, is: '=', create: created },
      ]
      return { compare, success: [this.#take], failure: [read] }
    }
    return this.#takeAsRead(read, noticeLease)
  }

  get #enqueueIfAsked(): Operation[] {
    return this.queueLease ? [this.#enqueue] : []
  }

  /** Nothing was written since: what was removed only makes room. */
  #takeAsRead(read: Operation, noticeLease: EtcdLease | undefined): EtcdTransaction {
    const { offset, keys } = this.#context
    const known = this.directory as Directory
    const { own } = this
    const compare: Comparison[] = [
      offset.unchanged,
      { ...keys.directory(this.claim.key), is: '<', mod: known.revision + 1 },
    ]
    // A queue entry that expired meanwhile has lost its place, which other programs judge by the age of the key.
    if (own) compare.push({ key: own.kv.key, is: '=', create: own.kv.createRevision })
    const ended = this.claim.steal ? this.#evictions(noticeLease) : []
    if (this.step === 'evict') return { compare, success: [...ended, read], failure: [read] }
    const leftQueue = own && !own.kv.key.equals(this.etcdKey) ? [{ remove: { key: own.kv.key } }] : []
    return { compare, success: [...ended, ...leftQueue, this.#take], failure: [read] }
  }

  /** The holders that a steal ends, and entries of other programs, which would take themselves for the holder. */
  get victims(): Entry[] {
    const directory = this.directory as Directory
    const { owner } = this.claim
    return directory.entries.filter(
      (entry) => (isHolder(entry, directory) || !entry.record) && !(entry.owner === owner && entry.record),
    )
  }

  get mustEvictFirst(): boolean {
    return this.claim.steal === true && this.victims.length > MOST_ENDED
  }

  #evictions(noticeLease: EtcdLease | undefined): Operation[] {
    return this.victims
      .slice(0, MOST_ENDED)
      .flatMap((entry) => evictionOf(this.#context, this.claim.key, entry, noticeLease))
  }

  /** It can only wait: other claims of the same key may enter the queue in the same transaction. */
  get onlyQueues(): boolean {
    const { steal, queueMs } = this.claim
    return this.directory !== undefined && !steal && queueMs !== undefined && !this.own && !this.isAdmitted()
  }

  /** Takes the result of the transaction in. True: the key was taken. */
  understand({ succeeded, results }: TxnResult, revision: number): boolean {
    const { keys } = this.#context
    if (succeeded && (this.step === 'take-empty' || this.step === 'take-first' || this.step === 'take')) return true
    const kvs = lastRange(results)
    if (kvs) this.directory = readDirectory(keys, kvs, revision)
    return false
  }
}

const lastRange = (results: readonly OperationResult[]): readonly KeyValue[] | undefined =>
  results.findLast(({ range }) => range !== undefined)?.range?.kvs

/** Ends a holder, and tells the store object that wrote it. */
export function evictionOf(
  { keys, nextAttempt, session: sender }: EtcdContext,
  key: string,
  { kv, owner, record }: Entry,
  noticeLease: EtcdLease | undefined,
): Operation[] {
  const remove: Operation = { remove: { key: kv.key } }
  if (!record || !noticeLease) return [remove]
  const notice = Buffer.from(JSON.stringify({ key, owner, revision: record.grantRevision ?? kv.modRevision }))
  const id = `${sender}-${nextAttempt()}`
  return [remove, { put: { key: keys.notice(record.session, id), value: notice, lease: noticeLease.id } }]
}
