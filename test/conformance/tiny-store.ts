import { ALL, type Answer, type Claim, type Store, UnsupportedError } from '../../src/index.js'

/** One lease. */
interface Held {
  weight: number
  token: bigint
  until: number
}

/** Key → owner → lease. Clients that share one map exclude each other. */
export type TinyLeases = Map<string, Map<string, Held>>

/** The smallest possible store: leases in a Map, without a queue, events, counting, values or listings. */
export function tiny(table: TinyLeases): Store {
  /** The current holders of this key. Expired leases are removed before anything is decided. */
  function holders(key: string): Map<string, Held> {
    let held = table.get(key)
    if (!held) table.set(key, (held = new Map()))
    for (const [owner, { until }] of held) if (until <= performance.now()) held.delete(owner)
    return held
  }

  function decide({ key, owner, weight, capacity, ttlMs, steal }: Claim): Answer {
    if (capacity !== ALL || steal) {
      return { granted: 'unknown', error: new UnsupportedError('tiny() knows locks and shared locks only') }
    }
    const held = holders(key)
    const own = held.get(owner)
    const until = performance.now() + ttlMs
    if (own) {
      // The reply to the first request may have been lost, so the owner's own grant must not block it.
      own.until = Math.max(own.until, until)
      return { granted: true, owner, token: own.token, ttlMs }
    }
    const taken = [...held.values()].reduce((sum, other) => sum + other.weight, 0)
    if (taken + weight > capacity) return { granted: false }
    const token = nextToken()
    held.set(owner, { weight, token, until })
    return { granted: true, owner, token, ttlMs }
  }

  return {
    name: 'tiny',
    expiry: 'timed',
    features: { queue: false, counting: false, atomic: false, values: false },
    timeoutMs: 2_000,
    acquire(claims, options) {
      if (options?.atomic) throw new UnsupportedError('tiny() cannot grant all or none')
      return claims.map(decide)
    },
    renew: (renewals) =>
      renewals.map(({ key, owner, token, ttlMs }) => {
        const lease = holders(key).get(owner)
        if (!lease || (token ?? lease.token) !== lease.token) return { outcome: 'gone' }
        lease.until = Math.max(lease.until, performance.now() + ttlMs)
        return { outcome: 'ours', ttlMs }
      }),
    release: (leases) =>
      leases.map(({ key, owner, token }) => {
        const held = holders(key)
        const lease = held.get(owner)
        // A release that arrives late must not end a later grant of the same owner.
        if (!lease || (token ?? lease.token) !== lease.token) return { outcome: 'gone' }
        held.delete(owner)
        return { outcome: 'released' }
      }),
    close: async () => {},
  }
}

let lastToken = 0n

/** Grows with every grant, also across a restart, because the clock has advanced meanwhile. */
function nextToken(): bigint {
  const clock = BigInt(Date.now()) * 1_000n
  lastToken = clock > lastToken ? clock : lastToken + 1n
  return lastToken
}
