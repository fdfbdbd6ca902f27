import type { LeaseholdError, LockLostError, LossFacts } from '../errors.js'
import type { World } from '../util/world.js'
import { type Events, type LockFacts, requestFacts } from './events.js'
import type { AcquireRequest } from './request.js'

/** A lease, as its events show it. */
export interface PresentedLease {
  readonly host: { readonly events: Events; readonly world: World }
  readonly request: AcquireRequest
  readonly holder: string
  readonly fencingToken: bigint
  readonly expiresAt: Date
  readonly acquiredAt: number
  readonly waitedMs: number
  readonly remainingMs: number
}

export function factsOfLease({ request, holder, fencingToken, expiresAt }: PresentedLease): LockFacts {
  const { name, kind, metadata } = requestFacts(request)
  // Written out: spreading costs more than the lock itself, once for each event that somebody listens to.
  return { name, kind, metadata, mode: request.mode, holder, fencingToken, expiresAt }
}

export function heldMsOf({ host, acquiredAt }: PresentedLease): number {
  return host.world.now() - acquiredAt
}

export function emitAcquired(lease: PresentedLease): void {
  lease.host.events.emit('acquired', () => ({ ...factsOfLease(lease), waitedMs: lease.waitedMs }))
}

export function emitReleased(lease: PresentedLease): void {
  lease.host.events.emit('released', () => ({ ...factsOfLease(lease), heldMs: heldMsOf(lease) }))
}

export function emitRenewed(lease: PresentedLease): void {
  lease.host.events.emit('renewed', () => factsOfLease(lease))
}

export function emitAtRisk(lease: PresentedLease, error: LeaseholdError | undefined): void {
  const { remainingMs } = lease
  lease.host.events.emit('atRisk', () => ({ ...factsOfLease(lease), remainingMs, ...(error && { error }) }))
}

export function emitLost(lease: PresentedLease, error: LockLostError, facts: LossFacts): void {
  const { why } = error
  lease.host.events.emit('lost', () => ({ ...factsOfLease(lease), heldMs: heldMsOf(lease), why, ...facts, error }))
}

export function emitAbandoned(lease: PresentedLease): void {
  lease.host.events.emit('abandoned', () => factsOfLease(lease))
}

/** A call to the store on behalf of the lease failed. */
export function emitFailure(lease: PresentedLease, doing: 'renew' | 'release', error: LeaseholdError): void {
  lease.host.events.emit('error', () => ({ ...requestFacts(lease.request), doing, error }))
}
