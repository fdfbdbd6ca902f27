import type { LossFacts, LossReason } from '../errors.js'
import type { Store } from '../store.js'
import type { World } from '../util/world.js'
import { deadlineOf } from './deadline.js'
import { warn } from './guarded.js'
import { NEVER, type RenewalLog } from './renewal-log.js'
import type { Stall, StallMonitor } from './stall-monitor.js'

/** A stall that took this share of the time in which a renewal could have saved the lease is the cause of its loss. */
const DECISIVE_SHARE = 0.5

/** What clients report while nothing listens at the address of a server, or while the server does not serve. */
const DOWN_CODES: ReadonlySet<unknown> = new Set(['ECONNREFUSED', '57P01', '57P02', '57P03'])
const DOWN_WORDS = /^(LOADING|MASTERDOWN|CLUSTERDOWN)\b|ECONNREFUSED/

/** How deep causes are followed: an error may be its own cause. */
const DEEPEST = 6

const NO_FACTS: LossFacts = { stalledMs: 0, attempts: [] }

/** A lease that was lost, as its explanation sees it. */
export interface LostLease {
  readonly host: { readonly world: World; readonly store: Store; readonly stalls: StallMonitor }
  readonly acquiredAt: number
  readonly deadline: number
  /** When its timer was due. 0: none was set since it was handed off. */
  readonly dueAt: number
  readonly ttlMs: number
  readonly autoRenew: boolean
  readonly wantsMore: boolean
  readonly provisional: boolean
  /** The store was asked for all that `maxHold` allows. */
  readonly isFinal: boolean
}

/** Why a lease has ended whose deadline has passed. `log`: what became of its renewals, if there were any. */
export function reasonOfEnd(lease: LostLease, log: RenewalLog | undefined): { why: LossReason; cause?: unknown } {
  if (lease.isFinal) return { why: 'max-hold' }
  if (!lease.autoRenew && (!lease.wantsMore || hadItsTime(lease))) return { why: 'expired' }
  return { why: reasonOfExpiry(lease, log), cause: log?.lastError }
}

/**
 * Whether a lease that was provisional to its end has lasted for its ttl. Without `autoRenew` it would have ended by
 * now anyway, so that its end is no failure of a renewal.
 */
function hadItsTime({ provisional, acquiredAt, ttlMs, host }: LostLease): boolean {
  return provisional && host.world.now() >= deadlineOf(acquiredAt, ttlMs)
}

/** Why a lease that was to be renewed ran out. */
function reasonOfExpiry(lease: LostLease, log: RenewalLog | undefined): LossReason {
  return orElse('expired', () => {
    const { world, store } = lease.host
    const now = world.now()
    const stall = longestStall(lease, log, now)
    const outage = orElse<unknown>(undefined, () => store.outage?.())
    const since = log?.troubleSince ?? NEVER
    const dueAt = since !== NEVER ? since : Math.max(lease.dueAt, lease.acquiredAt)
    return whyExpired({ dueAt, deadline: lease.deadline, now, stall, log, outage })
  })
}

/** What led to the loss, as far as this process knows. */
export function factsOfLoss(lease: LostLease, log: RenewalLog | undefined): LossFacts {
  return orElse(NO_FACTS, () => {
    const { world } = lease.host
    const now = world.now()
    const stall = longestStall(lease, log, now)
    return {
      stalledMs: stall ? stall.to - stall.from : 0,
      lastRenewedMsAgo: now - (log?.renewedAt ?? lease.acquiredAt),
      attempts: log?.attempts(now, world.date()) ?? [],
    }
  })
}

/** Whatever goes wrong while a loss is explained, such as a store that throws: the loss itself must not be held up. */
function orElse<T>(unknown: T, explain: () => T): T {
  try {
    return explain()
  } catch (error) {
    warn(error)
    return unknown
  }
}

function longestStall(lease: LostLease, log: RenewalLog | undefined, now: number): Stall | undefined {
  // A lease that was handed off has no due time before it is confirmed. An answer that was read after the due time
  // shows that the event loop turned then: a stall began later than that.
  const readAt = log?.answeredAt ?? NEVER
  const dueAt = lease.dueAt > 0 ? Math.max(lease.dueAt, lease.acquiredAt, readAt) : Number.POSITIVE_INFINITY
  return lease.host.stalls.longestSince(log?.renewedAt ?? lease.acquiredAt, now, dueAt)
}

interface LossEvidence {
  /** When the first renewal was due or sent that could have saved it. */
  dueAt: number
  deadline: number
  now: number
  /** The longest stall since the last good renewal. */
  stall: Stall | undefined
  log: RenewalLog | undefined
  /** What the store knows of its own outage. */
  outage: unknown
}

function whyExpired({ dueAt, deadline, now, stall, log, outage }: LossEvidence): LossReason {
  const wasTried = log !== undefined && log.troubleSince !== NEVER
  if (stall) {
    const overlap = Math.min(stall.to, deadline) - Math.max(stall.from, dueAt)
    // Without any attempt the timer of the heartbeat was late, and only a stall makes it so.
    if (overlap > 0 && (!wasTried || overlap >= (deadline - dueAt) * DECISIVE_SHARE)) return stalled(stall)
  }
  if (!wasTried) return stall && stall.to - stall.from >= now - deadline ? stalled(stall) : 'expired'
  const errors = [log.lastError, outage].flatMap((error) => leavesOf(error))
  const down = errors.filter(isDown).length
  return down > 0 && down * 2 >= errors.length ? 'server-down' : 'unreachable'
}

function stalled({ busy }: Stall): LossReason {
  if (busy === undefined) return 'expired'
  return busy ? 'blocked' : 'frozen'
}

/** The errors at the end of all causes: those of a Redlock are one per server, those of a host one per address. */
function leavesOf(error: unknown, depth = 0): unknown[] {
  if (error === undefined || error === null || depth > DEEPEST) return []
  const { cause, errors } = error as { cause?: unknown; errors?: unknown }
  const inner = Array.isArray(errors) && errors.length > 0 ? errors : cause === undefined ? [] : [cause]
  const leaves = inner.flatMap((each) => leavesOf(each, depth + 1))
  return leaves.length > 0 ? leaves : [error]
}

function isDown(error: unknown): boolean {
  const { code, message, syscall } = error as { code?: unknown; message?: unknown; syscall?: unknown }
  // The file of a Unix socket goes with its server.
  if (code === 'ENOENT') return syscall === 'connect'
  return DOWN_CODES.has(code) || DOWN_WORDS.test(String(message ?? ''))
}
