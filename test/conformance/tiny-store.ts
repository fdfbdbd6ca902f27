import { ALL, type Answer, type Claim, type Store, UnsupportedError } from '../../src/index.js'

/** What there is to know of one lease. */
interface Held {
  weight: number
  token: bigint
  until: number
}

/** Key → owner → lease. Give the same place to everybody who should exclude each other. */
export type Place = Map<string, Map<string, Held>>

/** The smallest store there is: leases in a Map, without a line, wake-up, counting, values or anything to look at. */
export function tiny(place: Place): Store {
  /** Who holds this key now. What has expired is dropped before anything is decided. */
  function holders(key: string): Map<string, Held> {
    let held = place.get(key)
    if (!held) place.set(key, (held = new Map()))
    for (const [owner, { until }] of held) if (until <= performance.now()) held.delete(owner)
    return held
  }

  function ask({ key, owner, weight, capacity, ttlMs, steal }: Claim): Answer {
    if (capacity !== ALL || steal) {
      return { granted: 'unknown', error: new UnsupportedError('tiny() knows locks and shared locks only') }
    }
    const held = holders(key)
    const own = held.get(owner)
    const until = performance.now() + ttlMs
    if (own) {
      // The reply to the first question may have been lost: its own grant must not be in its way.
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
    features: { line: false, counting: false, atomic: false, values: false },
    timeoutMs: 2_000,
    acquire(claims, options) {
      if (options?.atomic) throw new UnsupportedError('tiny() cannot grant all or none')
      return claims.map(ask)
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
        // A release that arrives late must not end what the same owner was granted since.
        if (!lease || (token ?? lease.token) !== lease.token) return { outcome: 'gone' }
        held.delete(owner)
        return { outcome: 'released' }
      }),
    close: async () => {},
  }
}

let lastToken = 0n

/** Grows with every grant, also over a restart: the clock has moved on meanwhile. */
function nextToken(): bigint {
  const clock = BigInt(Date.now()) * 1_000n
  lastToken = clock > lastToken ? clock : lastToken + 1n
  return lastToken
}
