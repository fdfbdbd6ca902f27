/** Requests that a test can observe and end. */
import type { Locks, WebLock, WebLockOptions } from '../../../src/index.js'
import type { TestContext } from '../../../src/testing/index.js'

export interface Requested {
  /** What the callback was given, once it was called. */
  readonly lock: Promise<WebLock | null>
  /** Whether the callback was called. */
  called: boolean
  /** Ends the callback. */
  finish(result?: unknown): void
  fail(error: unknown): void
  /** The outcome of the request itself. Never an unhandled rejection. */
  readonly outcome: Promise<unknown>
}

/** Makes a request, and holds what it gets until `release`. */
export function request(locks: Locks, name: string, options: WebLockOptions = {}): Requested {
  let given!: (lock: WebLock | null) => void
  let end!: { finish: (result?: unknown) => void; fail: (error: unknown) => void }
  const lock = new Promise<WebLock | null>((resolve) => (given = resolve))
  const work = new Promise<unknown>((finish, fail) => (end = { finish, fail }))
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

/** Makes a request, and returns when its callback runs. */
export async function hold(t: TestContext, locks: Locks, name: string, options?: WebLockOptions): Promise<Requested> {
  const requested = request(locks, name, options)
  await t.settled(`"${name}" is granted`, Promise.race([requested.lock, requested.outcome]))
  return requested
}

/**
 * The instances that query what has reached the store: an instance also shows its own requests that are still in
 * flight.
 */
const observers = new WeakMap<Locks, Locks>()

/** Waits until this many requests of the namespace of this instance are queued: none of them can have been granted. */
export async function pending(t: TestContext, locks: Locks, count: number): Promise<void> {
  const observer = observers.get(locks) as Locks
  await t.until(`${count} pending`, async () => (await observer.query()).pending.length === count)
}

/** Several instances that share a namespace of their own, so that `query` shows this case only. */
export async function instances(
  t: TestContext,
  count: number,
  ttl?: number,
): Promise<[Locks, Locks, Locks, ...Locks[]]> {
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
