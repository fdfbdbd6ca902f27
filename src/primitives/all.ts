import type { Ask } from '../core/ask.js'
import { onAbort } from '../core/cancel.js'
import type { Engine } from '../core/engine.js'
import type { Lock } from '../core/lock.js'
import { type AcquireOptions, type Defaults, optionsOf } from '../core/options.js'
import { holding, refuseSelfDeadlock } from '../core/nesting.js'
import { InvalidOptionError, LockTimeoutError } from '../errors.js'
import type { Duration } from '../kit/duration.js'
import { type NestedOption, releaseHeld } from './lock.js'

/** How much longer than its wait a caller of `acquireAll` waits for what it already held to be released. */
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

  /** True if all were ours until now. */
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
  return acquireEach(engine, asksFor(defaults, names, options, optionsOf.acquire))
}

async function acquireEach(engine: Engine, asks: readonly Ask[]): Promise<LockGroup> {
  const { waitMs, signal } = asks[0] as Ask
  const since = engine.world.now()
  if (asks.length > 1 && engine.atomicFor(asks)) {
    const together = await engine.acquireTogether(asks)
    if (together && signal?.aborted) void new LockGroup(together).release()
    signal?.throwIfAborted()
    if (together) return new LockGroup(together)
  }
  return new LockGroup(await oneByOne(engine, asks, waitMs, since))
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
  const asks = asksFor(defaults, names, options, optionsOf.withLock)
  const keys = asks.map((ask) => ask.key)
  if (options.nested === undefined) {
    refuseSelfDeadlock(engine.store, keys, (key) => asks.find((ask) => ask.key === key)?.name ?? key)
  } else if (options.nested !== 'wait') throw new InvalidOptionError('nested', options.nested, "'wait'")
  const group = await acquireEach(engine, asks)
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

/** Sorted, each once: everybody goes in the same order, so nobody waits in a circle. */
function asksFor(
  defaults: Defaults,
  names: readonly string[],
  options: AcquireOptions | undefined,
  known: readonly string[],
): Ask[] {
  if (!Array.isArray(names) || names.length === 0) throw new InvalidOptionError('names', names, 'one or more names')
  const asks = [...new Set(names)].map((name) => defaults.ask('lock', name, options, known))
  return asks.sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** All are free again when the caller is told, unless the store is slow: its wait is over, and must not last much longer. */
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

async function oneByOne(engine: Engine, asks: readonly Ask[], waitMs: number, since: number): Promise<Lock[]> {
  const waitedMs = (): number => engine.world.now() - since
  const held: Lock[] = []
  try {
    for (const ask of asks) held.push(await engine.acquire({ ...ask, since, waitMs: Math.max(waitMs - waitedMs(), 0) }))
    // While we waited for the last, an earlier one may have been lost.
    for (const lock of held) lock.assertHeld()
    return held
  } catch (error) {
    await releaseSoon(engine, held, asks[0]?.signal)
    // What was waited in all, and not only for the name that stayed busy.
    if (error instanceof LockTimeoutError) {
      throw new LockTimeoutError(error.lock, { waitedMs: waitedMs(), heldBy: error.heldBy })
    }
    throw error
  }
}
