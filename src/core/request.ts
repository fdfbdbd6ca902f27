import type { Refusal } from '../store.js'

/** A request, checked and complete: what one acquisition wants. */
export interface AcquireRequest {
  /** As the caller named it. */
  name: string
  kind: string
  /** `<kind>:<namespace><name>`, what the store sees. */
  key: string
  mode: 'exclusive' | 'shared'
  weight: number
  capacity: number
  ttlMs: number
  /** 0: one attempt. Infinity: for ever. */
  waitMs: number
  autoRenew: boolean
  /** `extend` takes no more than this. */
  longestTtlMs?: number | undefined
  maxHoldMs: number | undefined
  /** JSON text. */
  value: string | undefined
  signal: AbortSignal | undefined
  /** Instead of a new identity for each acquisition. */
  owner?: string | undefined
  announce?: boolean | undefined
  /** Enter the store's queue from the start and in the order of asking: turns come in that order across all processes. */
  queueInStore?: boolean | undefined
  steal?: boolean | undefined
  /** When the caller began to wait, if that was before this request was made: `waitedMs` counts from here. */
  since?: number | undefined
  /** Sees each refusal while waiting. True: that is enough, end the wait with `WaitEnded`. */
  onRefusal?: ((refusal: Refusal) => boolean) | undefined
}

/** Ends a wait that has become pointless (`AcquireRequest.onRefusal`). Never seen by callers. */
export class WaitEnded extends Error {}

/** Nobody else may hold the key beside it. Shared claims may ask side by side; an exclusive one only when it is first. */
export function isExclusive({ weight, capacity }: AcquireRequest): boolean {
  return weight === capacity
}
