import type { Grant } from '../store.js'
import type { World } from '../util/world.js'

/**
 * How much earlier than the store the holder stops trusting a lease: clocks run at slightly different speeds, and the
 * holder must be told before anyone else can hold.
 */
export function driftOf(ttlMs: number): number {
  return ttlMs * 0.01 + 2
}

/**
 * Until when the holder trusts a lease of `ttlMs`. It counts from when the request was sent, which is before the store decided:
 * counted from the answer, a lease would be trusted for longer than the store keeps it.
 */
export function deadlineOf(sentAt: number, ttlMs: number): number {
  return sentAt + ttlMs - driftOf(ttlMs)
}

/** A grant is used as it is if this share of its time is certain to be left; otherwise it is asked for again, or renewed soon. */
const ENOUGH_LEFT = 0.5

export function isEnoughLeft(sentAt: number, ttlMs: number, now: number): boolean {
  return deadlineOf(sentAt, ttlMs) - now >= ttlMs * ENOUGH_LEFT
}

/** A grant came too late to be of any use. */
export function isStale({ ttlMs }: Grant, sentAt: number, world: World): boolean {
  return deadlineOf(sentAt, ttlMs) <= world.now()
}
