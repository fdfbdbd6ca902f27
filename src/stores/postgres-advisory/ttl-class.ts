/**
 * A session ends as a whole after as much silence as the longest ttl on it allows, so a lock of 2 s beside one of a minute
 * would outlive a frozen process for a minute. Only locks of one class share a session: none of them has twice the ttl of
 * another, and each is freed within twice its own.
 */
export function classOf(ttlMs: number): number {
  return Math.floor(Math.log2(Math.max(ttlMs, 1)))
}

/** Every ttl of the class of this one is shorter. */
export function limitOf(ttlMs: number): number {
  return 2 ** (classOf(ttlMs) + 1)
}
