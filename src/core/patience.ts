import type { Answer } from '../store.js'

/**
 * How long a place in line outlives its owner's silence: a dead waiter blocks the others for at most this long, and a
 * live one says so three times in it.
 */
export const PLACE_MS = 3_000

/** A holder that is not one of ours rings no bell: look at least this often. */
const FOREIGN_POLL_MS = 250
/** Between two who stand in line one behind the other and may come in together. */
const NEXT_IN_LINE_MS = 5
const SHORTEST_PAUSE_MS = 10
const LONGEST_PAUSE_MS = 1_000
/** A dead holder's time is up, or a bell may have rung just now: but never ask without any pause. */
const LEAST_MS = 2

/** How somebody waits. */
export interface Circumstances {
  /** The store keeps its place in line. */
  inLine: boolean
  /** A bell that rings would be heard. */
  armed: boolean
  exclusive: boolean
  /** How often it was refused, and how often in a row it was not answered at all. */
  refusals: number
  failures: number
  random: () => number
}

/** After this answer, how long to wait for a bell before asking again unasked. */
export function patience(answer: Answer, circumstances: Circumstances): number {
  const { inLine, armed, exclusive, refusals, failures, random } = circumstances
  if (answer.granted !== false) return backoff(failures, random)
  const { blocker, ahead = 0 } = answer
  // Asking is what keeps our place, and it also finds what a lost message would have told.
  let pause = inLine ? PLACE_MS / 3 : LONGEST_PAUSE_MS
  if (!armed) pause = Math.min(pause, backoff(refusals, random))
  if (blocker?.foreign) pause = Math.min(pause, FOREIGN_POLL_MS * (0.5 + random() / 2))
  // A dead holder rings no bell either, but we know when its time is up. Whoever asks then lets in those who fit; the
  // first in line may be dead too, so those who may hold it together ask one after the other until they are told.
  if (blocker?.ttlMs !== undefined && (ahead === 0 || !exclusive)) {
    pause = Math.min(pause, blocker.ttlMs + 1 + ahead * NEXT_IN_LINE_MS)
  }
  return Math.max(pause, LEAST_MS)
}

/** Exponential with full jitter. */
function backoff(attempts: number, random: () => number): number {
  const most = Math.min(SHORTEST_PAUSE_MS * 2 ** Math.min(attempts, 10), LONGEST_PAUSE_MS)
  return SHORTEST_PAUSE_MS / 2 + random() * most
}
