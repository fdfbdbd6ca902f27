/**
 * A trial of the store itself: one lock is acquired, renewed, looked at and released, as leasehold does it for its users.
 *
 * @module
 */
import { randomUUID } from 'node:crypto'
import { openLocks } from '../index.js'
import type { Locks } from '../locks.js'
import { reasonOf } from '../util/reason.js'
import type { Check, Defect } from './check.js'

/** The ttl of the trial's lock in milliseconds: if the trial is cut off, nothing is left behind for longer. */
const TRIAL_TTL_MS = 10_000

/** `store`: the first part of the check's ID. */
export function trialOf(store: string, url: string): Check {
  return {
    id: `${store}.trial`,
    worst: 'danger',
    looksAt: 'a lock that is acquired, renewed and released',
    skipAfterDanger: true,
    run: () => tryLock(url),
  }
}

async function tryLock(url: string): Promise<Defect | undefined> {
  const locks = await openLocks(url)
  try {
    return await tryLockWith(locks)
  } catch (error) {
    return {
      severity: 'danger',
      summary: 'a lock could not be acquired and released',
      evidence: [reasonOf(error), ...causesOf(error)].join('; because: '),
      fix: 'see the message; docs/stores has a page for each store, with the rights that it needs',
    }
  } finally {
    await locks.close({ grace: 0 })
  }
}

async function tryLockWith(locks: Locks): Promise<Defect | undefined> {
  const name = `leasehold-doctor:${randomUUID()}`
  const lock = await locks.acquire(name, { ttl: TRIAL_TTL_MS, wait: 0, autoRenew: false })
  await lock.extend(TRIAL_TTL_MS)
  const { holders } = await locks.inspect(name)
  const released = await lock.release()
  if (holders.length === 1 && released) return undefined
  const wrong = released
    ? `${holders.length} holders were listed while it was held`
    : 'the release did not find it any more'
  return {
    severity: 'danger',
    summary: 'a lock does not behave like one',
    evidence: `"${name}": ${wrong}`,
    fix: 'look for what answers in place of the store: a proxy that spreads requests over several servers, or a read replica',
  }
}

function causesOf(error: unknown): string[] {
  const causes: string[] = []
  for (let cause = (error as Error).cause; cause instanceof Error && causes.length < 3; cause = cause.cause) {
    causes.push(reasonOf(cause))
  }
  return causes
}
