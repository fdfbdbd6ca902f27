import { type AcquireRequest, WaitEnded } from '../core/request.js'
import type { Engine } from '../core/engine.js'
import { type Lock, leaseOf } from '../core/lock.js'
import { holding, refuseSelfDeadlock } from '../core/nesting.js'
import { type AcquireOptions, type Defaults, jsonFrom } from '../core/options.js'
import { InvalidOptionError, LockLostError, StoreUnavailableError, UnsupportedError } from '../errors.js'
import { type Duration, formatDuration, milliseconds } from '../util/duration.js'
import type { Refusal } from '../store.js'
import { knownOptions } from '../util/options.js'
import { SUPPORTED_BY } from './supported-by.js'

/** Options of `locks.runOnce`. */
export interface RunOnceOptions extends Pick<AcquireOptions, 'ttl' | 'wait' | 'signal'> {
  /** How long the result is remembered; after that the key may run again. Default 1d. */
  retain?: Duration | undefined
}

/** Bytes of JSON: 1 MB as base64 with what surrounds it, which is what leasehold/http records at most. */
const LARGEST_RESULT = 1_572_864
/** Pause in milliseconds between attempts to record a result while the store does not answer and the lease lasts. */
const RETRY_EVERY_MS = 100
/** One day, the documented default. */
const DEFAULT_RETAIN_MS = 86_400_000
const OPTIONS = ['retain', 'ttl', 'wait', 'signal']
/** The value beside the lease while the function runs. */
export const RUNNING = '{"done":false}'

/** What is kept beside the lease once a run has been recorded. */
export interface Recorded {
  done: true
  /** Absent: the function returned nothing. */
  result?: unknown
}

/** At most one recorded run of `fn` per key; all other callers get what it returned, as JSON gives it back. */
export async function runOnce<T>(
  engine: Engine,
  defaults: Defaults,
  key: string,
  fn: (lock: Lock) => T | Promise<T>,
  options: RunOnceOptions = {},
): Promise<T> {
  const { retain = DEFAULT_RETAIN_MS, ...terms } = knownOptions(options, OPTIONS)
  if (!engine.store.features.values) {
    throw new UnsupportedError(
      `runOnce needs a store that remembers results, and the ${engine.store.name} store cannot: use ${SUPPORTED_BY.runOnce}`,
    )
  }
  if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run once')
  const max = engine.store.maxTtlMs
  if (options.retain === undefined && max !== undefined && max < DEFAULT_RETAIN_MS) {
    throw new InvalidOptionError(
      'retain',
      undefined,
      `a duration of at most ${formatDuration(max)} on the ${engine.store.name} store, which keeps nothing for longer; say how long the result matters`,
    )
  }
  const retainMs = Math.ceil(milliseconds('retain', retain, max === undefined ? { min: 10 } : { min: 10, max }))
  const plain = defaults.buildRequest('run-once', key, terms)
  refuseSelfDeadlock(engine.store, [plain.key], () => key)
  // A lease is never shortened, so it must not be longer than the record that it will become.
  const bounds = { ttlMs: Math.min(plain.ttlMs, retainMs), longestTtlMs: retainMs }
  const outcome = await lockOrRecord(engine, { ...plain, ...bounds, value: RUNNING })
  if ('done' in outcome) return outcome.result as T
  return run(outcome, fn, retainMs)
}

/** The right to run, or the result that another run has recorded. `whileRunning` is called for each refusal by a run that is still under way. */
export async function lockOrRecord(
  engine: Engine,
  plain: AcquireRequest,
  whileRunning?: () => void,
): Promise<Lock | Recorded> {
  let record: Recorded | undefined
  let heldBy: string | undefined
  const onRefusal = ({ blocker }: Refusal): boolean => {
    heldBy = blocker?.owner
    record = recordIn(blocker?.value)
    if (!record) whileRunning?.()
    return record !== undefined
  }
  const request = { ...plain, onRefusal }
  if (request.waitMs === 0) {
    const lock = (await engine.tryAcquire(request)) ?? record
    if (lock) return lock
    throw engine.timedOut(request, { waitedMs: 0, heldBy })
  }
  try {
    return await engine.acquire(request)
  } catch (error) {
    if (error instanceof WaitEnded && record) return record
    throw error
  }
}

async function run<T>(lock: Lock, fn: (lock: Lock) => T | Promise<T>, retainMs: number): Promise<T> {
  const { host: engine, request } = leaseOf(lock)
  let value: string
  try {
    const result = await holding(engine.store, [request.key], () => fn(lock))
    value = recordOf(result)
  } catch (error) {
    // Nothing was recorded: the next caller may try.
    await lock.release()
    throw error
  }
  await keepRecord(lock, value, retainMs)
  return recordIn(value)?.result as T
}

/** Fenced by the store: it keeps the record only for the one whose lease is still there. */
export async function keepRecord(lock: Lock, value: string, retainMs: number): Promise<void> {
  const lease = leaseOf(lock)
  const { world } = lease.host
  for (;;) {
    const { outcome, ...rest } = await lease.renewals.keep(value, retainMs)
    if (outcome === 'ours') return
    if (outcome === 'gone') throw lease.loss ?? new LockLostError(lock.name, 'gone')
    const { error } = rest as { error: unknown }
    if (error instanceof InvalidOptionError) {
      // The store would refuse this record for ever, and the lease is renewed meanwhile.
      await lock.release()
      throw error
    }
    if (!lease.held) {
      throw new StoreUnavailableError(`"${lock.name}" ran, and may or may not have been recorded`, { cause: error })
    }
    await new Promise<void>((resolve) => world.after(RETRY_EVERY_MS, resolve, true))
  }
}

export function recordOf(result: unknown): string {
  if (result !== undefined) jsonFrom('result', result, LARGEST_RESULT)
  return JSON.stringify({ done: true, result })
}

function recordIn(value: string | undefined): Recorded | undefined {
  if (value === undefined) return undefined
  try {
    const content = JSON.parse(value) as Recorded | { done: false } | null
    return content?.done === true ? content : undefined
  } catch {
    // Another program wrote this value. It expires, and until then no caller runs the function.
    return undefined
  }
}
