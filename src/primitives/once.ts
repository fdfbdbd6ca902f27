import type { Ask } from '../core/ask.js'
import type { Engine } from '../core/engine.js'
import { type Lock, leaseOf } from '../core/lock.js'
import { holding, refuseSelfDeadlock } from '../core/nesting.js'
import { type AcquireOptions, type Defaults, jsonFrom } from '../core/options.js'
import { WaitEnded } from '../core/acquisition.js'
import {
  InvalidOptionError,
  LockLostError,
  LockTimeoutError,
  StoreUnavailableError,
  UnsupportedError,
} from '../errors.js'
import { type Duration, milliseconds } from '../kit/duration.js'
import type { Refusal } from '../store.js'

/** Options of `locks.once`. */
export interface OnceOptions extends Pick<AcquireOptions, 'ttl' | 'wait' | 'signal'> {
  /** How long the result is remembered; after that the key may run again. Default 1d. */
  retain?: Duration
}

const LARGEST_RESULT = 1_048_576
const RETRY_EVERY_MS = 100
export const RUNNING = '{"done":false}'

/** What is kept beside the lease once a run has been recorded. */
export interface Recorded {
  done: true
  /** Absent: the function returned nothing. */
  result?: unknown
}

/** At most one recorded run of `fn` per key; everybody else gets what it returned, as JSON gives it back. */
export async function once<T>(
  engine: Engine,
  defaults: Defaults,
  key: string,
  fn: (lock: Lock) => T | Promise<T>,
  { retain = '1d', ...options }: OnceOptions = {},
): Promise<T> {
  if (!engine.store.features.values) {
    throw new UnsupportedError(
      `once needs a store that remembers results, and the ${engine.store.name} store cannot: use memory, sqlite, redis, postgres or etcd`,
    )
  }
  if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run once')
  const max = engine.store.maxTtlMs
  const retainMs = Math.ceil(milliseconds('retain', retain, max === undefined ? { min: 10 } : { min: 10, max }))
  const plain = defaults.ask('once', key, options)
  refuseSelfDeadlock(engine.store, [plain.key], () => key)
  // A lease is never shortened, so it must not be longer than the record that it will become.
  const outcome = await lockOrRecord(engine, { ...plain, ttlMs: Math.min(plain.ttlMs, retainMs), value: RUNNING })
  if ('done' in outcome) return outcome.result as T
  return run(outcome, fn, retainMs)
}

/** The right to run, or what somebody else's run has left. `whileRunning` hears of each look at somebody who still runs. */
export async function lockOrRecord(engine: Engine, plain: Ask, whileRunning?: () => void): Promise<Lock | Recorded> {
  let record: Recorded | undefined
  let heldBy: string | undefined
  const onRefusal = ({ blocker }: Refusal): boolean => {
    heldBy = blocker?.owner
    record = recordIn(blocker?.value)
    if (!record) whileRunning?.()
    return record !== undefined
  }
  const ask = { ...plain, onRefusal }
  // Without a place in line, which would have to be given back: most callers find the record.
  const lock = await engine.tryAcquire(ask)
  if (lock) return lock
  if (record) return record
  if (ask.waitMs === 0) {
    const { name, kind } = ask
    engine.events.emit('timeout', () => ({ name, kind, waitedMs: 0, heldBy }))
    throw new LockTimeoutError(name, { waitedMs: 0, heldBy })
  }
  try {
    return await engine.acquire(ask)
  } catch (error) {
    if (error instanceof WaitEnded && record) return record
    throw error
  }
}

async function run<T>(lock: Lock, fn: (lock: Lock) => T | Promise<T>, retainMs: number): Promise<T> {
  const { engine, ask } = leaseOf(lock)
  let value: string
  try {
    const result = await holding(engine.store, [ask.key], () => fn(lock))
    value = recordOf(result)
  } catch (error) {
    // Nothing was recorded: whoever comes next may try.
    await lock.release()
    throw error
  }
  await keepRecord(lock, value, retainMs)
  return recordIn(value)?.result as T
}

/** Fenced by the store: it keeps the record only for the one whose lease is still there. */
export async function keepRecord(lock: Lock, value: string, retainMs: number): Promise<void> {
  const lease = leaseOf(lock)
  const { world } = lease.engine
  for (;;) {
    const { outcome, ...rest } = await lease.keep(value, retainMs)
    if (outcome === 'ours') return
    if (outcome === 'gone') throw lease.loss ?? new LockLostError(lock.name, 'gone')
    const { error } = rest as { error: unknown }
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
    // Not written by us. It will expire, and until then nobody runs.
    return undefined
  }
}
