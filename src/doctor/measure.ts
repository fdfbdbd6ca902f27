/**
 * Clock and latency of a server, measured in the same way for every store.
 *
 * @module
 */
import { formatDuration } from '../util/duration.js'
import type { Defect } from './check.js'

/** A clock that differs by more, in milliseconds, is not kept by NTP: then it will be set one day, and jump. */
const MOST_SKEW_MS = 1_000
/** Requests of one measurement. The slowest of them stands for what a heartbeat meets now and then. */
const SAMPLES = 12
/** Time for one measurement in milliseconds, however slow the server is. */
const SAMPLING_MS = 2_000
/** A heartbeat is sent when a third of the ttl has passed, and again if it fails: slower than these shares, too few get through. */
const SLOW_SHARE = 1 / 10
const TOO_SLOW_SHARE = 1 / 3

/** How far a clock is ahead of this host's, give or take what its answer took. */
export interface ClockReading {
  offsetMs: number
  /** The true offset differs from `offsetMs` by no more than this. */
  errorMs: number
}

/** `read`: the server's time in epoch milliseconds. */
export async function readClock(read: () => Promise<number>, hostNow: () => number): Promise<ClockReading> {
  let best: ClockReading | undefined
  // The quickest of three answers says most: a slow one may have waited before or behind the reading.
  for (let i = 0; i < 3; i++) {
    const began = performance.now()
    const before = hostNow()
    const server = await read()
    const tookMs = performance.now() - began
    const reading = { offsetMs: server - (before + tookMs / 2), errorMs: tookMs / 2 + 1 }
    if (!best || reading.errorMs < best.errorMs) best = reading
  }
  return best as ClockReading
}

export function judgeSkew({ offsetMs, errorMs }: ClockReading, at?: string): Defect | undefined {
  if (Math.abs(offsetMs) - errorMs <= MOST_SKEW_MS) return undefined
  const direction = offsetMs > 0 ? 'ahead of' : 'behind'
  return {
    severity: 'warning',
    at,
    summary: 'the clocks of the server and of this host differ',
    evidence: `the server is ${formatDuration(Math.round(Math.abs(offsetMs)))} ${direction} this host (measured to ${formatDuration(Math.ceil(errorMs))})`,
    fix: 'let NTP (chrony, systemd-timesyncd) keep both clocks. A server clock that is set forward ends leases early, and schedules follow the server',
  }
}

export async function judgeLatency(
  ask: () => Promise<unknown>,
  ttlMs: number,
  at?: string,
): Promise<Defect | undefined> {
  const times: number[] = []
  const began = performance.now()
  while (times.length < SAMPLES && performance.now() - began < SAMPLING_MS) {
    const sent = performance.now()
    await ask()
    times.push(performance.now() - sent)
  }
  times.sort((a, b) => a - b)
  const slowest = times.at(-1) as number
  if (slowest <= ttlMs * SLOW_SHARE) return undefined
  const [median, most] = [times[Math.floor(times.length / 2)] as number, slowest].map((ms) =>
    formatDuration(Math.round(ms)),
  )
  return {
    severity: slowest > ttlMs * TOO_SLOW_SHARE ? 'danger' : 'warning',
    at,
    summary: `the server answers slowly for a ttl of ${formatDuration(ttlMs)}`,
    evidence: `${times.length} requests took ${median} (median) to ${most}; a lease is renewed every ${formatDuration(Math.round(ttlMs / 3))}`,
    fix: 'raise the ttl to at least ten times the slowest answer, or bring the server closer',
  }
}
