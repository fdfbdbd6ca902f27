import type { HolderView, WaiterView } from '../../store.js'
import { type KeyState, allHolders } from './key-state.js'

export function holderViews(key: string, state: KeyState | undefined, now: number): HolderView[] {
  if (!state) return []
  return allHolders(state).map(({ owner, weight, capacity, token, value, expiresAt, since }) => ({
    key,
    owner,
    weight,
    capacity,
    token,
    value,
    ttlMs: expiresAt - now,
    heldMs: now - since,
    waiting: state.waiters?.size ?? 0,
  }))
}

export function waiterViews(key: string, state: KeyState | undefined, now: number): WaiterView[] {
  const live = [...(state?.waiters?.values() ?? [])].filter(({ expiresAt }) => expiresAt > now)
  return live.map(({ claim, since }) => ({
    key,
    owner: claim.owner,
    weight: claim.weight,
    capacity: claim.capacity,
    waitedMs: now - since,
    value: claim.value,
  }))
}
