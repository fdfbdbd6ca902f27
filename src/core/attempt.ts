import { StoreUnavailableError } from '../errors.js'
import type { ClosedError } from '../errors.js'
import type { Answer, Awaitable, Claim, Grant, Store } from '../store.js'
import type { World } from '../util/world.js'
import type { AcquireRequest } from './request.js'
import { onAbort } from './abort-fanout.js'
import type { Batcher } from './batcher.js'
import type { Cleanup } from './cleanup.js'
import { isStale } from './deadline.js'
import type { Lock } from './lock.js'
import type { OrderedRequests } from './ordered-requests.js'
import { isThenable } from './thenable.js'

/** What an attempt needs from its instance. */
export interface AttemptHost {
  readonly store: Store
  readonly world: World
  readonly batcher: Batcher
  readonly cleanup: Cleanup
  readonly ordered: OrderedRequests
  readonly closingReason: ClosedError | undefined
  /** Makes a lock of a grant. */
  hold(request: AcquireRequest, grant: Grant, sentAt: number, since: number): Lock
}

/** An answer; or why a request was given up before it was sent: nothing of it can be in the store. */
type Outcome = Answer | { granted: 'not sent'; error: unknown }

/** Asks once, without a queue entry. Rejects when the store fails or the signal aborts; busy is an answer. */
export async function attempt(
  host: AttemptHost,
  request: AcquireRequest,
  claim: Claim,
): Promise<Lock | { heldBy: string | undefined }> {
  const { cleanup, world, store } = host
  const sentAt = world.now()
  const asked = send(host, request, claim)
  // No await if the answer is there already: a steal in the same turn must find the lock that it takes.
  const answer = isThenable(asked) ? await settle(host, request, claim, cleanup.track(Promise.resolve(asked))) : asked
  if (answer.granted === true) {
    if (!host.closingReason && !isStale(answer, sentAt, world)) return host.hold(request, answer, sentAt, sentAt)
    // The caller of a given owner asks again, and is granted the same lease with the same token: a release on its way would end it then.
    if (host.closingReason || request.owner === undefined) releaseUnwanted(host, request, claim, answer)
    if (host.closingReason) throw host.closingReason
    throw new StoreUnavailableError(`${store.name} took longer to answer than the ttl lasts`)
  }
  if (answer.granted === false) {
    request.onRefusal?.(answer)
    return { heldBy: answer.blocker?.owner }
  }
  releaseUnwanted(host, request, claim, answer)
  throw answer.error
}

function send(host: AttemptHost, request: AcquireRequest, claim: Claim): Awaitable<Outcome> {
  // The caller's promise was rejected as unavailable before this answer came.
  const late = (answer: Answer): void => {
    if (request.owner === undefined) releaseUnwanted(host, request, claim, answer)
  }
  if (!request.queueInStore || host.batcher.answersAtOnce || host.store.blocks) return host.batcher.acquire(claim, late)
  const { ordered, store, world } = host
  const until = world.now() + store.timeoutMs
  // One attempt must not wait for a silent store once for each call before it. It waits while the store answers them, however slowly.
  const isWanted = (): boolean => ordered.failure === undefined || world.now() < until
  return new Promise((resolve) => {
    const answered = (answer: Answer | undefined): void =>
      resolve(answer ?? { granted: 'not sent', error: ordered.failure })
    ordered.send({ claim, isWanted, answered, late })
  })
}

async function settle(
  host: AttemptHost,
  request: AcquireRequest,
  claim: Claim,
  asked: Promise<Outcome>,
): Promise<Outcome> {
  if (!request.signal) return asked
  return unlessAborted(request.signal, asked, (answer) => releaseUnwanted(host, request, claim, answer))
}

/** Releases what was granted, or may have been, when the caller no longer wants it. */
export function releaseUnwanted(host: AttemptHost, request: AcquireRequest, claim: Claim, answer: Outcome): void {
  const { key, ttlMs } = claim
  if (answer.granted === true) void host.cleanup.release({ key, owner: answer.owner, token: answer.token }, ttlMs)
  // An owner that was given to us may be in use elsewhere: what an unanswered request left behind runs out by itself.
  else if (answer.granted === 'unknown' && request.owner === undefined)
    void host.cleanup.release({ key, owner: claim.owner }, ttlMs)
}

/** Rejects when the caller aborts; what its request is granted afterwards is released. */
export function unlessAborted<T>(
  signal: AbortSignal,
  asked: Promise<T>,
  releaseUnwanted: (answer: T) => void,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const stopListening = onAbort(signal, () => {
      stopListening()
      reject(signal.reason)
      void asked.then(releaseUnwanted)
    })
    void asked.then((answer) => {
      stopListening()
      resolve(answer)
    })
  })
}

/** Undefined when it takes longer; what the request is granted afterwards is released. */
export function unlessOver<T>(
  world: World,
  ms: number,
  asked: Promise<T>,
  releaseUnwanted: (answer: T) => void,
): Promise<T | undefined> {
  return new Promise((resolve, reject) => {
    let isOver = false
    const cancel = world.after(
      ms,
      () => {
        isOver = true
        resolve(undefined)
      },
      true,
    )
    asked.then(
      (answer) => {
        cancel()
        if (isOver) releaseUnwanted(answer)
        else resolve(answer)
      },
      (error: unknown) => {
        cancel()
        reject(error)
      },
    )
  })
}
