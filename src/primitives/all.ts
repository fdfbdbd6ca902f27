import type { AcquireRequest } from '../core/request.js'
import { onAbort } from '../core/abort-fanout.js'
import type { Engine } from '../core/engine.js'
import type { Lock } from '../core/lock.js'
import { type AcquireOptions, type Defaults, optionsOf } from '../core/options.js'
import { canAcquireTogether } from '../core/together.js'
import { isAcquireTraced, traceAcquireAll } from '../core/tracing.js'
import { holding, refuseSelfDeadlock } from '../core/nesting.js'
import { InvalidOptionError, LockTimeoutError, StoreUnavailableError } from '../errors.js'
import type { Duration } from '../util/duration.js'
import { type NestedOption, releaseHeld } from './lock.js'

/** Milliseconds beyond its wait for which `acquireAll` waits until the locks that it already held are released. */
const RELEASE_WITHIN_MS = 250

/**
 * Several locks held together: one signal, one release.
 *
 * @example
 * ```ts
 * await using both = await locks.acquireAll(['account:1', 'account:2'])
 * await transfer({ signal: both.signal, tokens: both.fencingTokens })
 * ```
 */
export class LockGroup {
  readonly #locks: readonly Lock[]
  #signal: AbortSignal | undefined
  #releasing: Promise<boolean> | undefined

  /** @internal */
  constructor(locks: readonly Lock[]) {
    this.#locks = locks
  }

  /** Each lock, in the order of its name. */
  get locks(): readonly Lock[] {
    return this.#locks
  }

  get names(): string[] {
    return this.#locks.map((lock) => lock.name)
  }

  /** The fencing token of each name. */
  get fencingTokens(): Map<string, bigint> {
    return new Map(this.#locks.map((lock) => [lock.name, lock.fencingToken]))
  }

  /** True only while all of them are held. */
  get isHeld(): boolean {
    return this.#locks.every((lock) => lock.isHeld)
  }

  /** All are held, and renewals of at least one fail. */
  get atRisk(): boolean {
    return this.isHeld && this.#locks.some((lock) => lock.atRisk)
  }

  /** Until when all of them may be trusted. */
  get remainingMs(): number {
    return Math.min(...this.#locks.map((lock) => lock.remainingMs))
  }

  /** Throws the `LockLostError` of the first that is not held any more. */
  assertHeld(): void {
    for (const lock of this.#locks) lock.assertHeld()
  }

  /** Aborts as soon as one of them can no longer be trusted. */
  get signal(): AbortSignal {
    const signals = this.#locks.map((lock) => lock.signal)
    this.#signal ??= AbortSignal.any(signals)
    return this.#signal
  }

  async extend(ttl: Duration): Promise<void> {
    await Promise.all(this.#locks.map((lock) => lock.extend(ttl)))
  }

  /** True if all were held until now. */
  release(): Promise<boolean> {
    this.#releasing ??= Promise.all(this.#locks.map((lock) => lock.release())).then((all) => all.every(Boolean))
    return this.#releasing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
  }
}

/** All of them or none, whatever the order in which callers name them. */
export async function acquireAll(
  engine: Engine,
  defaults: Defaults,
  names: readonly string[],
  options?: AcquireOptions,
): Promise<LockGroup> {
  return acquireEach(engine, requestsFor(defaults, names, options, optionsOf.acquire))
}

async function acquireEach(engine: Engine, requests: readonly AcquireRequest[]): Promise<LockGroup> {
  const acquire = (): Promise<readonly Lock[]> => togetherOrOneByOne(engine, requests)
  const isTraced = requests.length > 1 && isAcquireTraced()
  return new LockGroup(isTraced ? await traceAcquireAll(engine, requests, acquire) : await acquire())
}

async function togetherOrOneByOne(engine: Engine, requests: readonly AcquireRequest[]): Promise<readonly Lock[]> {
  const { waitMs, signal } = requests[0] as AcquireRequest
  const { store, world } = engine
  const since = world.now()
  if (requests.length === 1 || !canAcquireTogether(store, requests)) return oneByOne(engine, requests, waitMs, since)
  const together = await engine.acquireTogether(requests)
  const locks = Array.isArray(together) ? together : undefined
  if (locks && signal?.aborted) void new LockGroup(locks).release()
  signal?.throwIfAborted()
  if (Array.isArray(together)) return together
  const answeredAt = world.now()
  const { busy, heldBy, failure } = together
  // When the wait is over, each name by itself would take one more answer, and not be had either.
  if (answeredAt - since >= waitMs) {
    if (busy) throw engine.timedOut(busy, { waitedMs: answeredAt - since, heldBy })
    if (failure instanceof StoreUnavailableError) throw unavailable(requests, failure)
  }
  try {
    return await oneByOne(engine, requests, waitMs, since)
  } catch (error) {
    const isSilence = error instanceof StoreUnavailableError && error.cause instanceof StoreUnavailableError
    // A store that said a moment ago that a name is busy, and has not answered since, is not unavailable.
    if (!busy || !isSilence || world.now() - answeredAt >= store.timeoutMs) throw error
    throw engine.timedOut(busy, { waitedMs: world.now() - since, heldBy })
  }
}

function unavailable(requests: readonly AcquireRequest[], failure: StoreUnavailableError): StoreUnavailableError {
  const names = requests.map(({ name }) => `"${name}"`).join(', ')
  const message = `${names} could not be acquired: ${failure.message}`
  return new StoreUnavailableError(message, { cause: failure.cause ?? failure })
}

/** Runs `fn` while holding all of them. Resolves only if all were held throughout. */
export async function withLocks<T>(
  engine: Engine,
  defaults: Defaults,
  names: readonly string[],
  fn: (locks: LockGroup) => T | Promise<T>,
  options: AcquireOptions & NestedOption = {},
): Promise<T> {
  if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run under the locks')
  const requests = requestsFor(defaults, names, options, optionsOf.withLock)
  const keys = requests.map((request) => request.key)
  if (options.nested === undefined) {
    refuseSelfDeadlock(engine.store, keys, (key) => requests.find((request) => request.key === key)?.name ?? key)
  } else if (options.nested !== 'wait') throw new InvalidOptionError('nested', options.nested, "'wait'")
  const group = await acquireEach(engine, requests)
  let result: T
  try {
    result = await holding(engine.store, keys, () => fn(group))
  } catch (error) {
    await group.release()
    throw error
  }
  await releaseHeld(group.locks)
  return result
}

/** Sorted, each once: all callers acquire in the same order, so no two wait for each other. */
function requestsFor(
  defaults: Defaults,
  names: readonly string[],
  options: AcquireOptions | undefined,
  known: readonly string[],
): AcquireRequest[] {
  if (!Array.isArray(names) || names.length === 0) throw new InvalidOptionError('names', names, 'one or more names')
  const requests = [...new Set(names)].map((name) => defaults.buildRequest('lock', name, options, known))
  return requests.sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** All are released before the caller's promise rejects, unless the store is slow: its wait is over and must not last much longer. */
async function releaseSoon(engine: Engine, held: readonly Lock[], signal: AbortSignal | undefined): Promise<void> {
  const released = engine.cleanup.track(Promise.all(held.map((lock) => lock.release())))
  if (signal?.aborted) return
  await new Promise<void>((resolve) => {
    const end = (): void => {
      cancel()
      stopListening?.()
      resolve()
    }
    const cancel = engine.world.after(RELEASE_WITHIN_MS, end, true)
    const stopListening = signal && onAbort(signal, end)
    void released.then(end)
  })
}

async function oneByOne(
  engine: Engine,
  requests: readonly AcquireRequest[],
  waitMs: number,
  since: number,
): Promise<Lock[]> {
  const waitedMs = (): number => engine.world.now() - since
  const held: Lock[] = []
  try {
    for (const request of requests) {
      const next = { ...request, since, waitMs: Math.max(waitMs - waitedMs(), 0) }
      held.push(await (requests.length > 1 ? engine.acquireUntraced(next) : engine.acquire(next)))
    }
    // An earlier lock may have been lost during the wait for the last one.
    for (const lock of held) lock.assertHeld()
    return held
  } catch (error) {
    await releaseSoon(engine, held, requests[0]?.signal)
    // The error reports the wait for all names, not only for the one that stayed busy.
    if (error instanceof LockTimeoutError) {
      throw new LockTimeoutError(error.lock, { waitedMs: waitedMs(), heldBy: error.heldBy })
    }
    throw error
  }
}
