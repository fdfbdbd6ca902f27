import { ALL, type HolderView, type WaiterView } from '../../store.js'
import type { Row } from './submission.js'
import { idOfRow, type LockId } from './ids.js'
import { MARK } from './setup.js'

/** One advisory lock that somebody holds or waits for, as the server sees it. */
export interface LockRow {
  pid: number
  id: LockId
  shared: boolean
  granted: boolean
  waitedMs: number | undefined
  /** A session of this library, which can be asked what it means. */
  ours: boolean
  detail: Record<string, string | number>
}

export function lockRow(row: Row): LockRow {
  const [pid, space, bits, shared, granted, waitedMs, blockedBy, application, user, address, state, transactionMs] = row
  const detail: Record<string, string | number> = { pid: Number(pid) }
  if (application) detail['application'] = application
  if (user) detail['user'] = user
  if (address) detail['address'] = address
  if (state) detail['state'] = state
  if (transactionMs && !application?.endsWith(MARK)) detail['transactionMs'] = Math.round(Number(transactionMs))
  if (blockedBy) detail['blockedBy'] = blockedBy
  return {
    pid: Number(pid),
    id: idOfRow(bits, space === '2'),
    shared: shared === 't',
    granted: granted === 't',
    waitedMs: waitedMs ? Number(waitedMs) : undefined,
    ours: application?.endsWith(MARK) === true,
    detail,
  }
}

/** What a process says of one of its locks, or of one it waits for. */
export interface Told {
  /** LockId.text */
  id: string
  pid: number | undefined
  key: string
  owner: string
  shared: boolean
  token?: string
  ttlMs?: number
  forMs: number
  value?: string | undefined
}

export function holderView(told: Told, row: LockRow | undefined, waiting: number): HolderView {
  const view: HolderView = {
    key: told.key,
    owner: told.owner,
    weight: told.shared ? 1 : ALL,
    capacity: ALL,
    token: told.token === undefined ? undefined : BigInt(told.token),
    ttlMs: told.ttlMs,
    heldMs: told.forMs,
    value: told.value,
    waiting,
    detail: row?.detail ?? (told.pid === undefined ? undefined : { pid: told.pid }),
  }
  return view
}

/** Somebody who does not use this library, or does not answer. */
export function strangerView(key: string, row: LockRow, waiting: number): HolderView {
  const { shared, ours, detail } = row
  return { key, owner: ownerOf(row), weight: shared ? 1 : ALL, capacity: ALL, foreign: !ours, waiting, detail }
}

export function waiterView(told: Told, row: LockRow): WaiterView {
  const { key, owner, shared, forMs, value } = told
  const waitedMs = row.waitedMs ?? forMs
  return { key, owner, weight: shared ? 1 : ALL, capacity: ALL, waitedMs, value, detail: row.detail }
}

export function waitingStrangerView(key: string, row: LockRow): WaiterView {
  const { shared, waitedMs, detail } = row
  return { key, owner: ownerOf(row), weight: shared ? 1 : ALL, capacity: ALL, waitedMs, detail }
}

function ownerOf({ detail }: LockRow): string {
  const { application, address, pid } = detail
  return `${application || 'session'} pid ${pid}${address ? ` at ${address}` : ''}`
}
