/**
 * The messages of etcd's API (`rpc.proto`) that the store sends and reads.
 *
 * @module
 */
import { ProtoReader, ProtoWriter } from './protobuf.js'

export interface Header {
  revision: number
  raftTerm: number
}

export interface KeyValue {
  key: Buffer
  value: Buffer
  createRevision: number
  modRevision: number
  lease: bigint
}

/** All keys from `key` up to, not including, `end`; without `end` that one key. */
export interface KeyRange {
  key: Buffer
  end?: Buffer | undefined
}

/** With an end for certain. */
export interface BoundedRange extends KeyRange {
  end: Buffer
}

export interface RangeQuery extends KeyRange {
  limit?: number
  /** As it was at this revision. */
  revision?: number
  byCreation?: boolean
  keysOnly?: boolean
  countOnly?: boolean
  /** Keys that were last written before this revision are counted, and left out. */
  writtenFrom?: number
}

export interface RangeResult {
  kvs: KeyValue[]
  more: boolean
  count: number
}

/** A condition of a transaction. For a range it has to hold for each of its keys; a missing key has revision 0. */
export interface Comparison extends KeyRange {
  is: '=' | '>' | '<'
  create?: number
  mod?: number
  value?: Buffer
}

export type Operation =
  | { range: RangeQuery }
  | { put: { key: Buffer; value: Buffer; lease: bigint } }
  | { remove: KeyRange }
  | { txn: EtcdTransaction }

export interface EtcdTransaction {
  compare: Comparison[]
  success: Operation[]
  failure: Operation[]
}

export interface TxnResult {
  succeeded: boolean
  /** One per operation. Absent for a put. */
  results: OperationResult[]
}

export interface OperationResult {
  range?: RangeResult
  deleted?: number
  txn?: TxnResult
}

export type WatchEvent = { type: 'put' | 'delete'; kv: KeyValue; previous: KeyValue | undefined }

export interface WatchMessage {
  header: Header
  watchId: number
  created: boolean
  canceled: boolean
  compactRevision: number
  cancelReason: string
  events: WatchEvent[]
}

const RESULT = { '=': 0, '>': 1, '<': 2 } as const
const TARGET = { create: 1, mod: 2, value: 3 } as const
const ASCENDING = 1
const BY_CREATION = 2

function writeRange(writer: ProtoWriter, query: RangeQuery): void {
  writer.bytes(1, query.key).bytes(2, query.end)
  writer.number(3, query.limit ?? 0).number(4, query.revision ?? 0)
  if (query.byCreation) writer.number(5, ASCENDING).number(6, BY_CREATION)
  writer
    .flag(8, query.keysOnly)
    .flag(9, query.countOnly)
    .number(10, query.writtenFrom ?? 0)
}

function writeComparison(writer: ProtoWriter, { key, end, is, create, mod, value }: Comparison): void {
  writer.number(1, RESULT[is])
  if (create !== undefined) writer.number(2, TARGET.create).bytes(3, key).number(5, create)
  else if (mod !== undefined) writer.number(2, TARGET.mod).bytes(3, key).number(6, mod)
  else writer.number(2, TARGET.value).bytes(3, key).bytes(7, value)
  writer.bytes(64, end)
}

function writeOperation(writer: ProtoWriter, operation: Operation): void {
  if ('range' in operation) writer.message(1, (inner) => writeRange(inner, operation.range))
  else if ('put' in operation) {
    const { key, value, lease } = operation.put
    writer.message(2, (inner) => void inner.bytes(1, key).bytes(2, value).int64(3, lease))
  } else if ('remove' in operation) {
    const { key, end } = operation.remove
    writer.message(3, (inner) => void inner.bytes(1, key).bytes(2, end))
  } else writer.message(4, (inner) => writeTransaction(inner, operation.txn))
}

function writeTransaction(writer: ProtoWriter, { compare, success, failure }: EtcdTransaction): void {
  for (const each of compare) writer.message(1, (inner) => writeComparison(inner, each))
  for (const each of success) writer.message(2, (inner) => writeOperation(inner, each))
  for (const each of failure) writer.message(3, (inner) => writeOperation(inner, each))
}

export function encodeRange(query: RangeQuery): Buffer {
  const writer = new ProtoWriter()
  writeRange(writer, query)
  return writer.finish()
}

export function encodeTransaction(transaction: EtcdTransaction): Buffer {
  const writer = new ProtoWriter()
  writeTransaction(writer, transaction)
  return writer.finish()
}

export const encodeLeaseGrant = (id: bigint, ttlS: number): Buffer =>
  new ProtoWriter().number(1, ttlS).int64(2, id).finish()

/** Revoke, keep-alive and time-to-live are asked for by id alone. */
export const encodeLeaseId = (id: bigint): Buffer => new ProtoWriter().int64(1, id).finish()

export const encodeAuthenticate = (name: string, password: string): Buffer =>
  new ProtoWriter().text(1, name).text(2, password).finish()

export interface WatchCreate extends KeyRange {
  watchId: number
  startRevision: number
  deletesOnly?: boolean | undefined
  withPrevious?: boolean | undefined
}

export function encodeWatchCreate(create: WatchCreate): Buffer {
  return new ProtoWriter()
    .message(1, (writer) => {
      writer.bytes(1, create.key).bytes(2, create.end).number(3, create.startRevision)
      // The filter NOPUT is 0, so it is written as a packed list: a plain 0 would be left out.
      if (create.deletesOnly) writer.bytes(5, Buffer.of(0))
      writer.flag(6, create.withPrevious).number(7, create.watchId)
    })
    .finish()
}

export const encodeWatchCancel = (watchId: number): Buffer =>
  new ProtoWriter().message(2, (writer) => void writer.number(1, watchId)).finish()

export function readHeader(reader: ProtoReader): Header {
  const header: Header = { revision: 0, raftTerm: 0 }
  while (reader.next()) {
    if (reader.field === 3) header.revision = reader.number()
    else if (reader.field === 4) header.raftTerm = reader.number()
  }
  return header
}

const EMPTY = Buffer.alloc(0)

function readKeyValue(reader: ProtoReader): KeyValue {
  const kv: KeyValue = { key: EMPTY, value: EMPTY, createRevision: 0, modRevision: 0, lease: 0n }
  while (reader.next()) {
    if (reader.field === 1) kv.key = reader.bytes()
    else if (reader.field === 2) kv.createRevision = reader.number()
    else if (reader.field === 3) kv.modRevision = reader.number()
    else if (reader.field === 5) kv.value = reader.bytes()
    else if (reader.field === 6) kv.lease = reader.int64()
  }
  return kv
}

function readRange(reader: ProtoReader, header?: (reader: ProtoReader) => void): RangeResult {
  const result: RangeResult = { kvs: [], more: false, count: 0 }
  while (reader.next()) {
    if (reader.field === 1) header?.(reader.message())
    else if (reader.field === 2) result.kvs.push(readKeyValue(reader.message()))
    else if (reader.field === 3) result.more = reader.number() === 1
    else if (reader.field === 4) result.count = reader.number()
  }
  return result
}

export function readOperation(reader: ProtoReader): OperationResult {
  const result: OperationResult = {}
  while (reader.next()) {
    if (reader.field === 1) result.range = readRange(reader.message())
    else if (reader.field === 3) {
      const removed = reader.message()
      result.deleted = 0
      while (removed.next()) if (removed.field === 2) result.deleted = removed.number()
    } else if (reader.field === 4) result.txn = readTransaction(reader.message())
  }
  return result
}

function readTransaction(reader: ProtoReader, header?: (reader: ProtoReader) => void): TxnResult {
  const result: TxnResult = { succeeded: false, results: [] }
  while (reader.next()) {
    if (reader.field === 1) header?.(reader.message())
    else if (reader.field === 2) result.succeeded = reader.number() === 1
    else if (reader.field === 3) result.results.push(readOperation(reader.message()))
  }
  return result
}

function withHeader<T>(read: (header: (reader: ProtoReader) => void) => T): T & { header: Header } {
  let header: Header = { revision: 0, raftTerm: 0 }
  const result = read((reader) => void (header = readHeader(reader)))
  return Object.assign(result as T & { header: Header }, { header })
}

export const decodeRange = (bytes: Buffer): RangeResult & { header: Header } =>
  withHeader((header) => readRange(new ProtoReader(bytes), header))

export const decodeTransaction = (bytes: Buffer): TxnResult & { header: Header } =>
  withHeader((header) => readTransaction(new ProtoReader(bytes), header))

/** Grant, keep-alive and time-to-live answer alike. A lease that does not exist has a ttl of 0 or less. */
export interface LeaseState {
  header: Header
  id: bigint
  ttlS: number
}

export function decodeLease(bytes: Buffer): LeaseState {
  const reader = new ProtoReader(bytes)
  const state: LeaseState = { header: { revision: 0, raftTerm: 0 }, id: 0n, ttlS: 0 }
  while (reader.next()) {
    if (reader.field === 1) state.header = readHeader(reader.message())
    else if (reader.field === 2) state.id = reader.int64()
    else if (reader.field === 3) state.ttlS = Number(reader.int64())
  }
  return state
}

/** The token of an authentication; the version in the status of a server has the same field. */
export function decodeSecondField(bytes: Buffer): string {
  const reader = new ProtoReader(bytes)
  while (reader.next()) if (reader.field === 2) return reader.text()
  return ''
}

function readEvent(reader: ProtoReader): WatchEvent {
  const event: WatchEvent = { type: 'put', kv: readKeyValue(new ProtoReader(EMPTY)), previous: undefined }
  while (reader.next()) {
    if (reader.field === 1) event.type = reader.number() === 1 ? 'delete' : 'put'
    else if (reader.field === 2) event.kv = readKeyValue(reader.message())
    else if (reader.field === 3) event.previous = readKeyValue(reader.message())
  }
  return event
}

export function decodeWatch(bytes: Buffer): WatchMessage {
  const reader = new ProtoReader(bytes)
  const message: WatchMessage = {
    header: { revision: 0, raftTerm: 0 },
    watchId: 0,
    created: false,
    canceled: false,
    compactRevision: 0,
    cancelReason: '',
    events: [],
  }
  while (reader.next()) {
    if (reader.field === 1) message.header = readHeader(reader.message())
    else if (reader.field === 2) message.watchId = reader.number()
    else if (reader.field === 3) message.created = reader.number() === 1
    else if (reader.field === 4) message.canceled = reader.number() === 1
    else if (reader.field === 5) message.compactRevision = reader.number()
    else if (reader.field === 6) message.cancelReason = reader.text()
    else if (reader.field === 11) message.events.push(readEvent(reader.message()))
  }
  return message
}
