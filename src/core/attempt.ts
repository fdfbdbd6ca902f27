import { StoreUnavailableError } from '../errors.js'
import type { Answer, Claim } from '../store.js'
import type { Ask } from './ask.js'
import { onAbort } from './cancel.js'
import type { Engine } from './engine.js'
import type { Lock } from './lock.js'

/** Asks once, without a place in line. Rejects when the store fails or the signal aborts; busy is an answer. */
export async function attempt(engine: Engine, ask: Ask, claim: Claim): Promise<Lock | { heldBy: string | undefined }> {
  const { cleanUp, world, store } = engine
  const sentAt = world.now()
  const asked = engine.courier.acquire(claim)
  if (asked instanceof Promise) void cleanUp.lookAfter(asked)
  const answer = asked instanceof Promise && ask.signal ? await unlessAborted(engine, asked, ask, claim) : await asked
  if (answer.granted === true) {
    if (!engine.closingReason && !engine.stale(answer, sentAt)) return engine.hold(ask, answer, sentAt, sentAt)
    void cleanUp.letGo({ key: ask.key, owner: answer.owner })
    if (engine.closingReason) throw engine.closingReason
    throw new StoreUnavailableError(`${store.name} took longer to answer than the ttl lasts`)
  }
  if (answer.granted === false) {
    ask.onRefusal?.(answer)
    return { heldBy: answer.blocker?.owner }
  }
  // It may have been granted all the same.
  void cleanUp.letGo(claim)
  throw answer.error
}

/** The caller has gone: whatever comes of its question is given back. */
function unlessAborted(engine: Engine, asked: Promise<Answer>, ask: Ask, claim: Claim): Promise<Answer> {
  const signal = ask.signal as AbortSignal
  return new Promise((resolve, reject) => {
    const stopListening = onAbort(signal, () => {
      stopListening()
      reject(signal.reason)
      void asked.then((answer) => {
        const owner = answer.granted === true ? answer.owner : claim.owner
        if (answer.granted !== false) void engine.cleanUp.letGo({ key: ask.key, owner })
      })
    })
    void asked.then((answer) => {
      stopListening()
      resolve(answer)
    })
  })
}
