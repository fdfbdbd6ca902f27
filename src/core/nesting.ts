import { AsyncLocalStorage } from 'node:async_hooks'
import { SelfDeadlockError } from '../errors.js'
import type { Store } from '../store.js'

/** What the callback that runs here holds, and the callbacks around it. */
interface Frame {
  store: Store
  keys: readonly string[]
  outer: Frame | undefined
  /** Its callback has returned: work it left behind is no longer inside. */
  over: boolean
}

const frames = new AsyncLocalStorage<Frame>()

/** Throws if the callback we are in holds one of these names already: it would wait for itself. */
export function refuseSelfDeadlock(store: Store, keys: readonly string[], nameOf: (key: string) => string): void {
  for (let frame = frames.getStore(); frame; frame = frame.outer) {
    if (frame.over || frame.store !== store) continue
    const own = keys.find((key) => frame?.keys.includes(key))
    if (own !== undefined) throw new SelfDeadlockError(nameOf(own))
  }
}

/** The callbacks that are still running around this one. Those that have returned are dropped, or the chain of a job that plans its next run would grow for ever. */
function around(): Frame | undefined {
  let outer = frames.getStore()
  while (outer?.over) outer = outer.outer
  for (let frame = outer; frame; frame = frame.outer) while (frame.outer?.over) frame.outer = frame.outer.outer
  return outer
}

/** Runs `fn` as the callback that holds these keys. */
export async function holding<T>(store: Store, keys: readonly string[], fn: () => T | Promise<T>): Promise<T> {
  const frame: Frame = { store, keys, outer: around(), over: false }
  try {
    return await frames.run(frame, fn)
  } finally {
    frame.over = true
  }
}
