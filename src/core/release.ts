import type { ClosedError, LeaseholdError } from '../errors.js'
import type { Released } from '../store.js'
import type { World } from '../util/world.js'
import type { Acquisition } from './acquire.js'
import type { Batcher } from './batcher.js'
import type { Cleanup } from './cleanup.js'
import type { Events } from './events.js'
import type { Lease } from './lease.js'
import { emitAcquired, emitFailure, emitReleased } from './lease-events.js'
import type { LeaseList } from './lease-list.js'
import type { Revocations } from './revocations.js'
import type { Subscriptions } from './subscriptions.js'
import { endUnanswered, isHoldTraced, traceHold, traceHoldEnd } from './tracing.js'
import type { WaitQueue } from './wait-queue.js'

const YES: Promise<boolean> = Promise.resolve(true)
const NO: Promise<boolean> = Promise.resolve(false)

/** What releases need from the instance that holds the leases. */
export interface ReleaseHost {
  readonly world: World
  readonly batcher: Batcher
  readonly cleanup: Cleanup
  readonly events: Events
  readonly subscriptions: Subscriptions
  readonly revocations: Revocations
  readonly held: LeaseList<Lease>
  /** The answer to a release is there when the call returns. */
  readonly answersAtOnce: boolean
  /** Nobody keeps an order between processes: neither a queue in the store nor the server's own. */
  readonly unordered: boolean
  /** Set from the moment on at which the instance closes. */
  readonly closingReason: ClosedError | undefined
  /** Those of this instance that wait for the key. */
  queueOf(key: string): WaitQueue<Acquisition> | undefined
}

/** Once per lease: a second caller gets the first one's answer. */
export function release(host: ReleaseHost, lease: Lease): Promise<boolean> {
  // Called again from inside of its own release, by a listener: what the store has may be the successor's by now.
  if (!lease.releasing && lease.released && !lease.loss && !lease.staysInStore) return YES
  lease.releasing ??= releaseOnce(host, lease)
  return lease.releasing
}

function releaseOnce(host: ReleaseHost, lease: Lease): Promise<boolean> {
  if (lease.loss) {
    // What remains of it in the store, if anything, is in the way of others.
    const { why } = lease.loss
    if (why !== 'gone' && why !== 'revoked' && !lease.staysInStore) cleanUp(host, lease)
    return NO
  }
  if (lease.staysInStore) return releaseRecorded(lease)
  const queue = host.queueOf(lease.key)
  if (queue && passOn(host, lease, queue)) return YES
  if (!host.answersAtOnce) return releaseNow(host, lease)
  // A store in this process judges by the same clock, and says so itself if it is too late.
  endUnanswered(lease)
  const isReleased = wasReleased(host, lease, host.batcher.release(lease) as Released)
  // In the same step: an acquisition of another instance must not get in before one that waited here.
  queue?.pump()
  return isReleased ? YES : NO
}

/** The next waiter of this process goes on with the lease, as long as its tenancy lasts. The store is not asked. */
function passOn(host: ReleaseHost, lease: Lease, queue: WaitQueue<Acquisition>): boolean {
  if (queue.tenancy?.lease !== lease || host.closingReason) return false
  // The store is not asked whether the lease is still there: it has to be able to say so by itself.
  if (!host.revocations.isLive) return false
  const { tenancy, head } = queue
  // One reading for all that it decides: nothing else runs in between.
  const now = host.world.now(true)
  if (!head || head.begun || !tenancy.admits(head.request, now)) return false
  const successor = head.inherit(lease, now)
  host.held.remove(lease)
  host.held.add(successor)
  lease.end()
  tenancy.passedTo(successor, queue.head?.request)
  if (host.events.isHeard('released')) emitReleased(lease)
  // Last: a listener may release either of them.
  if (successor.isOpen && isHoldTraced()) traceHold(successor)
  if (host.events.isHeard('acquired')) emitAcquired(successor)
  return true
}

/** The release is sent before the bookkeeping, because others wait for it. If the deadline had passed by then, it is a loss all the same. */
function releaseNow(host: ReleaseHost, lease: Lease): Promise<boolean> {
  const answered = new Promise<boolean>((resolve) => {
    host.batcher.releaseThen(lease, (answer) => resolve(wasReleased(host, lease, answer)))
  })
  lease.noticeDeadline()
  if (lease.loss) return NO
  endUnanswered(lease)
  if (host.unordered) host.subscriptions.expectRelease(lease.key, true)
  return answered
}

/** A record is being written, or may have been: it is not ours to erase. If it was not written, the lease runs out. */
async function releaseRecorded(lease: Lease): Promise<boolean> {
  await lease.renewals.recorded()
  if (lease.isOpen) lease.end()
  return false
}

function wasReleased(host: ReleaseHost, lease: Lease, answer: Released): boolean {
  if (lease.loss) {
    if (answer.outcome === 'unknown') cleanUp(host, lease)
    return false
  }
  if (answer.outcome !== 'gone' && lease.trace) traceHoldEnd(lease)
  if (answer.outcome !== 'released') return notReleased(host, lease, answer)
  if (answer.hasWaiters && host.unordered) host.subscriptions.attend(lease.key, host.world.now())
  if (host.events.isHeard('released')) emitReleased(lease)
  return true
}

function notReleased(host: ReleaseHost, lease: Lease, answer: Exclude<Released, { outcome: 'released' }>): false {
  if (answer.outcome === 'gone') {
    // Nothing was released, so nothing is announced.
    if (host.unordered) host.subscriptions.expectRelease(lease.key, false)
    lease.foundGone()
  } else {
    emitFailure(lease, 'release', answer.error as LeaseholdError)
    cleanUp(host, lease)
  }
  return false
}

function cleanUp({ cleanup }: ReleaseHost, lease: Lease): void {
  void cleanup.release(lease, lease.storedMs)
}
