/**
 * The holders and the queue of one key as they were at one revision, and the rule of the store contract over them.
 *
 * @module
 */
import type { Claim, Refusal } from '../../store.js'
import { decodeRecord, type EtcdRecord, grantRevisionOf } from './codec.js'
import type { EtcdKeys } from './keys.js'
import type { KeyValue } from './messages.js'

export interface Entry {
  kv: KeyValue
  owner: string
  /** Undefined: of another program, such as `etcdctl lock`, which holds the key once no older entry is left. */
  record: EtcdRecord | undefined
}

export interface Directory {
  /** The rule was applied to what had been written up to here. */
  revision: number
  /** The oldest first: that is the order of the queue. */
  entries: Entry[]
}

export function readDirectory(keys: EtcdKeys, kvs: readonly KeyValue[], revision: number): Directory {
  const entries: Entry[] = []
  for (const kv of kvs) {
    const parsed = keys.parse(kv.key)
    if (parsed) entries.push({ kv, owner: parsed.owner, record: decodeRecord(kv.value) })
  }
  // Entries of one revision were added together, by one store object, which numbers its attempts.
  entries.sort(
    (a, b) => a.kv.createRevision - b.kv.createRevision || (a.record?.attempt ?? 0) - (b.record?.attempt ?? 0),
  )
  return { revision, entries }
}

export const isHeld = ({ record }: Entry): boolean => record?.state === 'held'

/** A foreign entry holds the key if no entry is older. */
export const isHolder = (entry: Entry, { entries }: Directory): boolean =>
  isHeld(entry) || (entry.record === undefined && entries[0] === entry)

export function ownEntry({ entries }: Directory, owner: string): Entry | undefined {
  return entries.find((entry) => entry.owner === owner && entry.record !== undefined)
}

/** Entries that are served before this owner. */
export function entriesAhead(directory: Directory, owner: string): Entry[] {
  const { entries } = directory
  const own = entries.findIndex((entry) => entry.owner === owner && entry.record)
  return (own < 0 ? entries : entries.slice(0, own)).filter((entry) => !isHolder(entry, directory))
}

/** Whether no other entry is ahead, and what is held plus this claim fits. `besides`: taken by other claims in the same step. */
export function admits(directory: Directory, { owner, weight, capacity }: Claim, besides: number): boolean {
  let isBehind = false
  let free = capacity - weight - besides
  for (const entry of directory.entries) {
    if (entry.owner === owner && entry.record) isBehind = true
    else if (isHeld(entry)) free -= (entry.record as EtcdRecord).weight
    else if (!isBehind) return false
  }
  return free >= 0
}

export function refusal(directory: Directory, owner: string, offset: bigint): Refusal {
  const ahead = entriesAhead(directory, owner).length
  const newest = offset + BigInt(directory.revision)
  const holder = directory.entries.find((entry) => isHolder(entry, directory))
  if (!holder) return { granted: false, ahead, newest }
  const { record, kv } = holder
  const token = record && offset + BigInt(grantRevisionOf(record, kv))
  return {
    granted: false,
    ahead,
    newest,
    blocker: { owner: holder.owner, token, value: record?.value, ttlMs: record?.ttlMs },
  }
}
