import type { LossReason } from '../errors.js'
import { NEVER, type RenewalLog } from './renewal-log.js'
import type { Stall } from './stall-monitor.js'

/** A stall that took this share of the time in which a renewal could have saved the lease is the cause of its loss. */
const DECISIVE_SHARE = 0.5

/** What clients report while nothing listens at the address of a server, or while the server does not serve. */
const DOWN_CODES: ReadonlySet<unknown> = new Set(['ECONNREFUSED', '57P01', '57P02', '57P03'])
const DOWN_WORDS = /^(LOADING|MASTERDOWN|CLUSTERDOWN)\b|ECONNREFUSED/

/** How deep causes are followed: an error may be its own cause. */
const DEEPEST = 6

export interface LossEvidence {
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

/** Why a lease that was to be renewed ran out. */
export function whyExpired({ dueAt, deadline, now, stall, log, outage }: LossEvidence): LossReason {
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
