/**
 * A few figures about a store, taken with little load: what one caller, several callers and a waiter in another client see.
 *
 * @module
 */
import { randomUUID } from 'node:crypto'
import type { Lock } from '../core/lock.js'
import type { Locks } from '../locks.js'

/** Callers at once in the second measurement. More would be load that other users of the store notice. */
const CALLERS = 8
/** The most locks that one measurement takes, however fast the store is. */
const MOST_LOCKS = 5_000
/** Hand-offs at most: each waits for a waiter to be queued. */
const MOST_HANDOFFS = 200
/** Pause in milliseconds in which a waiter is queued before the holder releases. */
const QUEUE_PAUSE_MS = 10
/** The ttl of every lock in milliseconds: what is left behind if this process is killed ends by itself soon. */
const TTL_MS = 10_000
/** How long one caller waits for the store at most, in milliseconds. */
const WAIT_MS = 5_000

/** One row of the result; times in milliseconds. */
export interface Measurement {
  /** Stable: `acquire-release`, `concurrent`, `handoff`. */
  measure: string
  title: string
  count: number
  /** Null for hand-offs, between which there are pauses. */
  perSecond: number | null
  p50Ms: number
  p95Ms: number
  p99Ms: number
  maxMs: number
}

/** `stop`: whether a signal asked for the end. */
export interface MeasureOptions {
  /** For each of the three, in milliseconds. */
  forMs: number
  stop: () => boolean
}

/** `other`: a second client of the same store, so that a hand-off really passes through the store. */
export async function measureStore(locks: Locks, other: Locks, options: MeasureOptions): Promise<Measurement[]> {
  const prefix = `leasehold-bench:${randomUUID()}`
  // The first lock opens connections and loads scripts, which is not what later ones take.
  await pairOn(locks, `${prefix}:first`)
  await pairOn(other, `${prefix}:first`)
  const alone = await sample('acquire-release', 'acquire and release, one caller', MOST_LOCKS, 1, options, () =>
    timed(() => pairOn(locks, `${prefix}:alone`)),
  )
  const several = await sample(
    'concurrent',
    `acquire and release, ${CALLERS} callers, a name each`,
    MOST_LOCKS,
    CALLERS,
    options,
    (caller) => timed(() => pairOn(locks, `${prefix}:${caller}`)),
  )
  const handoff = await sample(
    'handoff',
    'from a release to the waiter in another client',
    MOST_HANDOFFS,
    1,
    options,
    () => handOff(locks, other, `${prefix}:handoff`),
  )
  return [alone, several, handoff]
}

async function pairOn(locks: Locks, name: string): Promise<void> {
  const lock = await locks.acquire(name, { ttl: TTL_MS, wait: WAIT_MS })
  await lock.release()
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  await work()
  return performance.now() - began
}

/** Milliseconds from the call of `release()` until the other client has the lock. */
async function handOff(locks: Locks, other: Locks, name: string): Promise<number> {
  const held = await locks.acquire(name, { ttl: TTL_MS, wait: WAIT_MS })
  let grantedAt = 0
  const waiting = other.acquire(name, { ttl: TTL_MS, wait: WAIT_MS }).then((lock: Lock) => {
    grantedAt = performance.now()
    return lock
  })
  waiting.catch(() => {})
  await new Promise((resolve) => setTimeout(resolve, QUEUE_PAUSE_MS))
  const releasedAt = performance.now()
  await held.release()
  await (await waiting).release()
  return grantedAt - releasedAt
}

async function sample(
  measure: string,
  title: string,
  most: number,
  callers: number,
  { forMs, stop }: MeasureOptions,
  one: (caller: number) => Promise<number>,
): Promise<Measurement> {
  const times: number[] = []
  const began = performance.now()
  let begun = 0
  const call = async (caller: number): Promise<void> => {
    while (begun < most && performance.now() - began < forMs && !stop()) {
      begun++
      times.push(await one(caller))
    }
  }
  await Promise.all(Array.from({ length: callers }, (_, caller) => call(caller)))
  const tookMs = performance.now() - began
  times.sort((a, b) => a - b)
  const at = (share: number): number =>
    rounded(times[Math.min(Math.floor(times.length * share), times.length - 1)] ?? 0)
  return {
    measure,
    title,
    count: times.length,
    perSecond: measure === 'handoff' ? null : Math.round((times.length / tookMs) * 1_000),
    p50Ms: at(0.5),
    p95Ms: at(0.95),
    p99Ms: at(0.99),
    maxMs: at(1),
  }
}

/** To a hundredth: more digits would promise more than a few seconds can tell. */
function rounded(ms: number): number {
  return Math.round(ms * 100) / 100
}
