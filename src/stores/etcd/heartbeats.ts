/**
 * What is kept from one heartbeat to the next. The core sends the same renewals each time, as long as the same locks are held: a
 * thousand lookups, objects and conditions for each of them would cost more than the requests. Loops over all of them count their
 * steps: what runs every few seconds is not compiled for minutes, and an iterator then leaves an object per step to be collected.
 *
 * @module
 */
import type { Renewal, Renewed } from '../../store.js'
import { framedOnce } from './connection.js'
import type { EtcdKeys } from './keys.js'
import { encodeCheck } from './messages.js'
import type { Pending } from './move.js'
import type { Tracked } from './tracked.js'

/**
 * A check that entries are as they were written, encoded. As long as the same locks are renewed in the same order it is sent again:
 * to encode a thousand conditions costs more than to send them.
 */
export interface SentCheck {
  readonly entries: readonly Tracked[]
  readonly revisions: readonly number[]
  readonly message: Buffer
}

/** What was made for a heartbeat. */
export interface PreparedHeartbeat {
  readonly items: Pending[]
  readonly checks: SentCheck[]
}

export class Heartbeats {
  /** Those that are not under way, by their first renewal. */
  readonly #idle = new WeakMap<Renewal, PreparedHeartbeat>()

  /** Taken away until it has been answered: a heartbeat that was not answered in time may be followed by the next. */
  take([first]: readonly Renewal[]): PreparedHeartbeat | undefined {
    const before = first && this.#idle.get(first)
    if (before) this.#idle.delete(first)
    return before
  }

  /** What was made for this heartbeat is kept for the next. */
  answers(items: Pending[], checks: SentCheck[]): Renewed[] {
    const answers: Renewed[] = []
    let isKept = items.length > 0
    for (let i = 0; i < items.length; i++) {
      const item = items[i] as Pending
      answers.push(item.answer as Renewed)
      isKept &&= isHeartbeat(item)
      item.answer = undefined
    }
    if (isKept) this.#idle.set((items[0] as Pending).renewal, { items, checks })
    return answers
  }
}

/** Whether this heartbeat is of the same locks as the one before. */
export function isSame(items: readonly Pending[], renewals: readonly Renewal[], now: number): boolean {
  if (items.length !== renewals.length) return false
  for (let i = 0; i < items.length; i++) {
    const { renewal, entry } = items[i] as Pending
    if (renewal !== renewals[i] || entry.isForgotten || hasEnded(entry, now)) return false
  }
  return true
}

/** Its time has passed by our clock, and no call is about to prolong it. */
export const hasEnded = ({ deadline, busy }: Tracked, now: number): boolean => deadline <= now && busy === 0

/** A lock that was prolonged, and will be again in the same way. */
function isHeartbeat({ renewal: { value, queued }, answer }: Pending): boolean {
  return answer?.outcome === 'ours' && value === undefined && !queued
}

/** Sent again if it is about these entries as they are now. */
export function checkOf(items: readonly Pending[], keys: EtcdKeys, before: SentCheck | undefined): SentCheck {
  if (before && isCheckOf(before, items)) return before
  const entries = items.map(({ entry }) => entry)
  const revisions = entries.map(({ modRevision }) => modRevision)
  return { entries, revisions, message: framedOnce(encodeCheck(entries, keys.offset)) }
}

function isCheckOf({ entries, revisions }: SentCheck, items: readonly Pending[]): boolean {
  if (entries.length !== items.length) return false
  for (let i = 0; i < items.length; i++) {
    const { entry } = items[i] as Pending
    if (entries[i] !== entry || revisions[i] !== entry.modRevision) return false
  }
  return true
}
