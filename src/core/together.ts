import type { LeaseholdError } from '../errors.js'
import type { Answer, Claim, Grant, Store } from '../store.js'
import { type AttemptHost, releaseUnwanted, unlessAborted, unlessOver } from './attempt.js'
import { batchSize } from './batch-size.js'
import { isStale } from './deadline.js'
import type { Lock } from './lock.js'
import type { AcquireRequest } from './request.js'

/** Why several locks were not granted together: the request whose key is busy and its holder, or the store's error. */
export interface NotTogether {
  busy?: AcquireRequest | undefined
  heldBy?: string | undefined
  failure?: LeaseholdError | undefined
}

/** Whether the store can decide these in one call. */
export function canAcquireTogether(store: Store, requests: readonly AcquireRequest[]): boolean {
  const { atomic } = store.features
  const most = atomic === true ? batchSize(store, 'acquire') : Number(atomic)
  if (requests.length > most) return false
  return new Set(requests.map((request) => store.partition?.(request.key))).size === 1
}

/** One attempt at several names in one call of the store, which grants all or none. Rejects when the caller aborts. */
export async function acquireTogether(
  host: AttemptHost,
  requests: readonly AcquireRequest[],
  claims: Claim[],
): Promise<Lock[] | NotTogether> {
  const { world, store, batcher, cleanup } = host
  const [first] = requests as [AcquireRequest]
  const sentAt = world.now()
  const releaseGranted = (answers: readonly Answer[]): void => {
    for (const [i, answer] of answers.entries())
      releaseUnwanted(host, requests[i] as AcquireRequest, claims[i] as Claim, answer)
  }
  const asked = cleanup.track(Promise.resolve(batcher.acquireTogether(claims, releaseGranted)))
  const wanted = first.signal ? unlessAborted(first.signal, asked, releaseGranted) : asked
  // A call has a time limit of its own, and an attempt without a wait is given that.
  const isShort = first.waitMs > 0 && first.waitMs < store.timeoutMs
  const answers = isShort ? await unlessOver(world, first.waitMs, wanted, releaseGranted) : await wanted
  if (!answers) return { failure: batcher.silence(first.waitMs) }
  const usable =
    !host.closingReason && answers.every((answer) => answer.granted === true && !isStale(answer, sentAt, world))
  if (usable) return requests.map((request, i) => host.hold(request, answers[i] as Grant, sentAt, sentAt))
  releaseGranted(answers)
  return host.closingReason ? {} : whyNot(requests, answers)
}

function whyNot(requests: readonly AcquireRequest[], answers: readonly Answer[]): NotTogether {
  for (const [i, answer] of answers.entries()) {
    if (answer.granted === 'unknown') return { failure: answer.error as LeaseholdError }
    if (answer.granted === false && (answer.blocker || answer.ahead))
      return { busy: requests[i], heldBy: answer.blocker?.owner }
  }
  // A store need not tell which of them was in the way.
  return {}
}
