/**
 * Rows of holders and waiters as the views that listings show.
 *
 * @module
 */
import type { HolderView, WaiterView } from '../../store.js'
import type { SqliteStatements } from './statements.js'

interface SqliteHolderRow {
  key: string
  owner: string
  weight: number
  capacity: number
  token: number
  value: string | null
  expiresAt: number
  since: number
  waiting: number
}

export function holdersUnder(sql: SqliteStatements, prefix: string, now: number): HolderView[] {
  return (sql.holdersUnder.all(prefix, now) as SqliteHolderRow[]).map((row) => holderView(row, now))
}

export function holdersOf(sql: SqliteStatements, key: string, now: number): HolderView[] {
  return (sql.holdersOf.all(key, now) as SqliteHolderRow[]).map((row) => holderView(row, now))
}

function holderView(
  { key, owner, weight, capacity, token, value, expiresAt, since, waiting }: SqliteHolderRow,
  now: number,
): HolderView {
  return {
    key,
    owner,
    weight,
    capacity,
    token: BigInt(token),
    value: value ?? undefined,
    ttlMs: expiresAt - now,
    heldMs: now - since,
    waiting,
  }
}

export function waitersOf(sql: SqliteStatements, key: string, now: number): WaiterView[] {
  const rows = sql.waitersOf.all(key, now) as (Omit<WaiterView, 'value'> & { since: number; value: string | null })[]
  return rows.map(({ owner, weight, capacity, since, value }) => ({
    key,
    owner,
    weight,
    capacity,
    waitedMs: now - since,
    value: value ?? undefined,
  }))
}
