import type { Answer, Store } from '../store.js'
import type { Cleanup } from './cleanup.js'
import type { Lease } from './lease.js'
import type { AcquireRequest } from './request.js'

/** What cleaning up needs from the instance. */
interface CleanUpHost {
  readonly store: Store
  readonly cleanup: Cleanup
}

/** An acquisition that was granted or has given up. */
export interface SettledAcquisition {
  readonly request: AcquireRequest
  readonly owner: string
  /** The lease that its grant belongs to by now, if it was granted. */
  readonly lease: Lease | undefined
}

/**
 * Releases whatever the owner of this acquisition has in the store. Must not be called while that owner holds or has
 * recorded something. An owner that the request names may be in use elsewhere: nothing is released, and what it left
 * behind expires.
 */
export function releaseOwner({ cleanup }: CleanUpHost, settled: SettledAcquisition): Promise<void> | undefined {
  const { request, owner } = settled
  return request.owner === undefined ? cleanup.release({ key: request.key, owner }, request.ttlMs) : undefined
}

/**
 * Cleans up after an answer that came when the acquisition was settled already: given up, or granted by a push. The
 * store may have decided the request after our release: nobody else would then release its grant or its queue entry.
 */
export function cleanUpAfter(
  host: CleanUpHost,
  settled: SettledAcquisition,
  answer: Answer,
): Promise<void> | undefined {
  const { cleanup, store } = host
  const { request, lease } = settled
  if (answer.granted === true) {
    const { owner, token, ttlMs } = answer
    if (lease && lease.owner === owner && lease.token === token) return undefined
    // An owner that was given to us may have been granted the same lease again by another attempt, whose answer may be on its way.
    if (request.owner !== undefined) return undefined
    return cleanup.release({ key: request.key, owner, token }, ttlMs)
  }
  if (answer.granted === false && !store.features.queue) return undefined
  if (lease?.isOpen) {
    // The lease may be gone by now, and this request may have been granted once more: nothing else would ever release that.
    if (answer.granted === 'unknown')
      lease.onEnd = () => void Promise.resolve().then(() => cleanUpAfter(host, settled, answer))
    return undefined
  }
  if (lease?.staysInStore) return undefined
  // A release of ours that is in flight is answered first: overtaken by this one, it would be answered `gone` and count as a loss.
  if (lease?.releasing) return cleanup.track(lease.releasing.then(() => releaseOwner(host, settled)))
  return releaseOwner(host, settled)
}
