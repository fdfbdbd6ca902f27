import { StoreUnavailableError } from '../errors.js'
import type { Answer, Awaitable, Claim } from '../store.js'
import type { Ask } from './ask.js'
import { onAbort } from './cancel.js'
import type { Engine } from './engine.js'
import type { Lock } from './lock.js'
import { isThenable } from './thenable.js'

/** Asks once, without a queue entry. Rejects when the store fails or the signal aborts; busy is an answer. */
export async function attempt(engine: Engine, ask: Ask, claim: Claim): Promise<Lock | { heldBy: string | undefined }> {
  const { cleanup, world, store } = engine
  const sentAt = world.now()
  const asked = send(engine, ask, claim)
  // Without an await where the answer is there already: a steal in the same turn must find the lock it takes.
  const answer = isThenable(asked) ? await settle(engine, ask, claim, cleanup.track(Promise.resolve(asked))) : asked
  if (answer.granted === true) {
    if (!engine.closingReason && !engine.stale(answer, sentAt)) return engine.hold(ask, answer, sentAt, sentAt)
    giveBack(engine, ask, claim, answer)
    if (engine.closingReason) throw engine.closingReason
    throw new StoreUnavailableError(`${store.name} took longer to answer than the ttl lasts`)
  }
  if (answer.granted === false) {
    ask.onRefusal?.(answer)
    return { heldBy: answer.blocker?.owner }
  }
  giveBack(engine, ask, claim, answer)
  throw answer.error
}

function send(engine: Engine, ask: Ask, claim: Claim): Awaitable<Answer> {
  if (!ask.queueInStore || engine.store.immediate || engine.store.blocks) return engine.courier.acquire(claim)
  return new Promise((resolve) =>
    engine.ordered.send(
      claim,
      () => true,
      (answer) => resolve(answer as Answer),
    ),
  )
}

async function settle(engine: Engine, ask: Ask, claim: Claim, asked: Promise<Answer>): Promise<Answer> {
  if (!ask.signal) return asked
  return unlessAborted(ask.signal, asked, (answer) => giveBack(engine, ask, claim, answer))
}

/** What was granted, or may have been, when nobody wants it any more. */
function giveBack(engine: Engine, ask: Ask, claim: Claim, answer: Answer): void {
  const { key, ttlMs } = claim
  if (answer.granted === true) void engine.cleanup.release({ key, owner: answer.owner, token: answer.token }, ttlMs)
  // An owner that was given to us may be in use elsewhere: what an unanswered request left behind runs out by itself.
  else if (answer.granted === 'unknown' && ask.owner === undefined)
    void engine.cleanup.release({ key, owner: claim.owner }, ttlMs)
}

/** Rejects when the caller aborts; what comes of its request is then given back. */
export function unlessAborted<T>(signal: AbortSignal, asked: Promise<T>, giveBack: (answer: T) => void): Promise<T> {
  return new Promise((resolve, reject) => {
    const stopListening = onAbort(signal, () => {
      stopListening()
      reject(signal.reason)
      void asked.then(giveBack)
    })
    void asked.then((answer) => {
      stopListening()
      resolve(answer)
    })
  })
}
