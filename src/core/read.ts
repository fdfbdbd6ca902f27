import { UnsupportedError } from '../errors.js'
import type { Awaitable, Store } from '../store.js'
import type { Batcher } from './batcher.js'
import { isView } from './well-formed.js'

/** Asks what a store may or may not be able to answer: to look, or to break glass. `what`: as it is named if it is not supported. */
export async function readStore<T>(
  batcher: Batcher,
  what: string,
  call: (store: Store) => Awaitable<T> | undefined,
  kind: 'read' | 'revoke',
): Promise<T> {
  const { store } = batcher
  let failure: unknown
  let isSupported = true
  const failed = (error: unknown): undefined => {
    failure = error
    return undefined
  }
  const ask = (): Awaitable<T | undefined> => {
    const asked = call(store)
    isSupported = asked !== undefined
    return asked as Awaitable<T | undefined>
  }
  const answer = await batcher.within<T | undefined>({ call: kind, items: 1 }, ask, failed)
  if (failure !== undefined) throw failure
  if (!isSupported) throw new UnsupportedError(`${what} is not supported by the ${store.name} store`)
  if (!isView(answer)) throw batcher.misunderstood(answer)
  return answer as T
}
