/** Requests that a test can look at and end. */
import type { Locks, WebLock, WebLockOptions } from '../../../src/index.js'
import type { Bench } from '../../../src/testing/index.js'

export interface Requested {
  /** What the callback was given, once it was called. */
  readonly lock: Promise<WebLock | null>
  /** Whether the callback was called. */
  called: boolean
  /** Ends the callback. */
  letGo(result?: unknown): void
  fail(error: unknown): void
  /** What the request itself came to. Never an unhandled rejection. */
  readonly outcome: Promise<unknown>
}

/** Asks, and holds what it gets until told otherwise. */
export function request(locks: Locks, name: string, options: WebLockOptions = {}): Requested {
  let given!: (lock: WebLock | null) => void
  let end!: { letGo: (result?: unknown) => void; fail: (error: unknown) => void }
  const lock = new Promise<WebLock | null>((resolve) => (given = resolve))
  const work = new Promise<unknown>((letGo, fail) => (end = { letGo, fail }))
  const requested: Requested = {
    lock,
    called: false,
    ...end,
    outcome: locks.request(name, options, (held) => {
      requested.called = true
      given(held)
      return work
    }),
  }
  requested.outcome.catch(() => {})
  return requested
}

/** Asks, and returns when the callback runs. */
export async function hold(t: Bench, locks: Locks, name: string, options?: WebLockOptions): Promise<Requested> {
  const requested = request(locks, name, options)
  await t.settled(`"${name}" is granted`, Promise.race([requested.lock, requested.outcome]))
  return requested
}

/** Whom to ask what has reached the store: an instance also shows its own requests that are still on their way there. */
const observers = new WeakMap<Locks, Locks>()

/** Until so many requests of this instance's namespace stand in line: none of them can have been granted. */
export async function pending(t: Bench, locks: Locks, count: number): Promise<void> {
  const observer = observers.get(locks) as Locks
  await t.until(`${count} pending`, async () => (await observer.query()).pending.length === count)
}

/** Several instances that share a namespace nobody else uses, so that `query` shows this case only. */
export async function instances(t: Bench, count: number, ttl?: number): Promise<[Locks, Locks, Locks, ...Locks[]]> {
  const namespace = t.name()
  const open = (): Promise<Locks> => t.locks({ namespace, ...(ttl && { ttl }) })
  const observer = await open()
  const all = await Promise.all(Array.from({ length: Math.max(count, 3) }, open))
  for (const locks of all) observers.set(locks, observer)
  return all as [Locks, Locks, Locks, ...Locks[]]
}

/** For `assert.rejects`: a DOMException of this name. */
export function domException(name: string): (error: unknown) => boolean {
  return (error) => error instanceof DOMException && error.name === name
}
