import type { Claim } from '../store.js'
import type { Identity } from './identity.js'
import type { AcquireRequest } from './request.js'
import { QUEUE_MS } from './retry-delay.js'

/** What the store is asked for, under a new owner unless the request has its own. `queueMs`: keep a queue entry if refused. */
export function claimOf(request: AcquireRequest, identity: Identity, queueMs: number | undefined): Claim {
  const { key, weight, capacity, ttlMs, value, announce, steal } = request
  const owner = request.owner ?? identity.next()
  const renewed = request.autoRenew && request.maxHoldMs === undefined
  return {
    key,
    owner,
    weight,
    capacity,
    ttlMs,
    value,
    queueMs,
    blockMs: undefined,
    tokens: undefined,
    announce,
    steal,
    renewed,
  }
}

/** The first claim of an acquisition that waits if it is refused. */
export function waitingClaimOf(request: AcquireRequest, identity: Identity): Claim {
  // Most callers that look for a record find it: a queue entry would only have to be removed again.
  return claimOf(request, identity, request.onRefusal ? undefined : QUEUE_MS)
}
