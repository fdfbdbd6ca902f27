/**
 * Checks that keys are as they were written: one transaction that only reads, for as many keys as etcd takes.
 *
 * @module
 */
import { framedOnce } from './connection.js'
import {
  encodeTransaction,
  type Header,
  type Operation,
  type OperationResult,
  readHeader,
  readOperation,
} from './messages.js'
import { ProtoReader } from './protobuf.js'

/** Conditions in one transaction, and reads beside them: etcd takes 128 of each, and this is a quarter of a full batch. */
const MOST_COMPARED = 125
/** Keys in one check. */
export const MOST_CHECKED: number = 2 * MOST_COMPARED

/** A key, and the revision at which it was last written. */
export interface Written {
  readonly etcdKey: Buffer
  readonly modRevision: number
}

/** A check, encoded. It is sent again as it is: to encode a thousand conditions costs more than to send them. */
export interface KeyCheck {
  readonly message: Buffer
  /** How many of the keys are read instead of compared. */
  readonly read: number
}

/** What a check found. */
export interface Checked {
  readonly header: Header
  /** All keys are as they were written. */
  readonly unchanged: boolean
}

/**
 * The first keys are conditions. The others are read with a filter that leaves out what was not written since, so that the answer for
 * each that is unchanged is the number 1 without a key: half as many requests as with conditions alone, and a request costs more than
 * what it carries. All are seen at one revision, and the reads make a majority confirm it: a transaction without any read is answered
 * by one server alone, which may be behind the others. `confirmed`: a key to read where there is none.
 */
export function encodeCheck(written: readonly Written[], confirmed: Buffer): KeyCheck {
  const compare = written
    .slice(0, MOST_COMPARED)
    .map(({ etcdKey: key, modRevision: mod }) => ({ key, is: '=' as const, mod }))
  const reads = written.slice(MOST_COMPARED).map(({ etcdKey: key, modRevision }): Operation => {
    return { range: { key, writtenFrom: modRevision + 1, keysOnly: true } }
  })
  const confirming: Operation[] = [{ range: { key: confirmed, countOnly: true } }]
  const success = reads.length > 0 ? reads : confirming
  return {
    message: framedOnce(encodeTransaction({ compare, success, failure: confirming })),
    read: reads.length,
  }
}

export function decodeCheck(bytes: Buffer, { read }: KeyCheck): Checked {
  const reader = new ProtoReader(bytes)
  let header: Header = { revision: 0, raftTerm: 0 }
  let succeeded = false
  let answers: Buffer | undefined
  while (reader.next()) {
    if (reader.field === 1) header = readHeader(reader.message())
    else if (reader.field === 2) succeeded = reader.number() === 1
    else if (reader.field === 3) answers = reader.rest()
  }
  const unchanged = succeeded && answers !== undefined && (read === 0 || areUnchanged(answers, read))
  return { header, unchanged }
}

/** The answers to the reads are the same bytes, one after the other, if all are unchanged: the first one tells. */
function areUnchanged(answers: Buffer, count: number): boolean {
  const size = answers.length / count
  const isRepeated =
    Number.isInteger(size) && answers.compare(answers, size, answers.length, 0, answers.length - size) === 0
  const results = readResults(isRepeated ? answers.subarray(0, size) : answers)
  return results.length === (isRepeated ? 1 : count) && results.every(isUnchanged)
}

function readResults(answers: Buffer): OperationResult[] {
  const reader = new ProtoReader(answers)
  const results: OperationResult[] = []
  while (reader.next()) if (reader.field === 3) results.push(readOperation(reader.message()))
  return results
}

const isUnchanged = ({ range }: OperationResult): boolean => range?.count === 1 && range.kvs.length === 0
