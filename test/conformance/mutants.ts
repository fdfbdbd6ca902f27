/**
 * Stores that are wrong in one small way each. The kit must notice every one of them.
 */
import { ALL, type Answer, type Claim, type Lease, type Limit, type Renewal, type Store } from '../../src/store.js'
import { type Place, asking, mutate, renaming, silent, taking } from './mutate.js'

export interface Mutant {
  /** What is wrong with it. */
  what: string
  store: () => Store
  /** A case that is there for this mistake. */
  caughtBy: string
}

/** Tokens of one key counted from one, and forgotten when nobody holds it. */
function forgetfulTokens(): Store {
  const counts = new Map<string, bigint>()
  const known = new Map<string, bigint>()
  return mutate((place) => {
    const number = (key: string, token: bigint): bigint => {
      const seen = known.get(`${key}/${token}`)
      if (seen !== undefined) return seen
      const next = (counts.get(key) ?? 0n) + 1n
      counts.set(key, next)
      known.set(`${key}/${token}`, next)
      return next
    }
    return {
      acquire: (claims, options) =>
        place
          .acquire(claims, options)
          .map(
            (answer, i): Answer =>
              answer.granted === true ? { ...answer, token: number((claims[i] as Claim).key, answer.token) } : answer,
          ),
      release: (leases) => {
        const answers = place.release(leases)
        for (const { key } of leases) if (place.inspect(key).holders.length === 0) counts.delete(key)
        return answers
      },
    }
  })()
}

const newcomerPasses = mutate((place) => ({
  acquire: (claims, options) =>
    place.acquire(claims, options).map((answer, i): Answer => {
      const claim = claims[i] as Claim
      if (answer.granted !== false || claim.placeMs !== undefined) return answer
      const { holders, waiters } = place.inspect(claim.key)
      const held = holders.reduce((sum, holder) => sum + holder.weight, 0)
      if (waiters.length === 0 || held + claim.weight > claim.capacity) return answer
      // There is room, and only the line says no: a second space beside the first lets it in.
      return place.acquire([{ ...claim, key: `${claim.key}/aside` }])[0] as Answer
    }),
}))

const lastComeFirstServed = mutate((place) => ({
  acquire: (claims, options) => {
    for (const { key, placeMs, owner } of claims) {
      if (placeMs === undefined) continue
      const { waiters } = place.inspect(key)
      if (waiters.some((waiter) => waiter.owner === owner)) continue
      const [claim] = claims.filter((item) => item.owner === owner)
      const answer = place.acquire([claim as Claim])
      for (const waiter of waiters) {
        place.release([{ key, owner: waiter.owner }])
        place.acquire([{ ...(claim as Claim), owner: waiter.owner }])
      }
      if (claims.length === 1) return answer
    }
    return place.acquire(claims, options)
  },
}))

const renewalShortens = mutate((place) => ({
  renew: (renewals) => {
    for (const { key, owner, ttlMs } of renewals) setTimeout(() => place.release([{ key, owner }]), ttlMs).unref()
    return place.renew(renewals)
  },
}))

const renewalCreates = mutate((place) => ({
  renew: (renewals) =>
    place.renew(renewals).map((answer, i) => {
      if (answer.outcome !== 'gone') return answer
      const { key, owner, ttlMs } = renewals[i] as Renewal
      const [created] = place.acquire([{ key, owner, ttlMs, weight: ALL, capacity: ALL }])
      return created?.granted === true ? { outcome: 'ours', ttlMs } : answer
    }),
}))

const releaseAsks = (whose: (lease: Lease, place: Place) => Lease[]): (() => Store) =>
  mutate((place) => ({
    release: (leases) =>
      leases.map(
        (lease) =>
          place.release(whose(lease, place)).find((answer) => answer.outcome === 'released') ?? { outcome: 'gone' },
      ),
  }))

const readersShareExpiry = mutate((place) => ({
  renew: (renewals) => {
    for (const { key, ttlMs } of renewals)
      for (const { owner } of place.inspect(key).holders) place.renew([{ key, owner, ttlMs }])
    return place.renew(renewals)
  },
}))

const like = (prefix: string): RegExp =>
  new RegExp(
    `^${prefix
      .replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
      .replaceAll('%', '.*')
      .replaceAll('_', '.')}`,
    'is',
  )

const inWholeSeconds = (limit: Limit): Limit => ({
  ...limit,
  perMs: Math.floor(limit.perMs / 1_000) * 1_000 + 1e-3,
})

export const mutants: Mutant[] = [
  {
    what: 'a release does not check the owner',
    store: releaseAsks(({ key, owner }, place) => [
      { key, owner },
      ...place.inspect(key).holders.map((holder) => ({ key, owner: holder.owner })),
    ]),
    caughtBy: "a stranger's release is gone and frees nothing",
  },
  {
    what: 'a lock is 1 of 1 beside readers that are 1 of everything',
    store: asking((claim) => (claim.weight === ALL ? { ...claim, weight: 1, capacity: 1 } : claim)),
    caughtBy: 'a reader is refused beside a lock',
  },
  {
    what: 'a renewal creates',
    store: renewalCreates,
    caughtBy: 'the renewal of a released lease is gone and creates nothing',
  },
  {
    what: 'tokens are kept with the lock and begin anew',
    store: forgetfulTokens,
    caughtBy: 'tokens grow over releases, whichever client asks',
  },
  {
    what: 'places in line never expire',
    store: asking((claim) => (claim.placeMs === undefined ? claim : { ...claim, placeMs: 1e9 })),
    caughtBy: 'a waiter who falls silent loses its place, so the dead do not block the line',
  },
  {
    what: 'a newcomer passes the line',
    store: newcomerPasses,
    caughtBy: 'small claims do not pass a big one that waits for room',
  },
  {
    what: 'last come, first served',
    store: lastComeFirstServed,
    caughtBy: 'whoever stands in line is served in order of arrival',
  },
  {
    what: 'a renewal shortens',
    store: renewalShortens,
    caughtBy: 'a renewal never shortens: one that arrives late takes nothing away',
  },
  {
    what: 'a renewal does nothing',
    store: mutate((place) => ({
      renew: (renewals) =>
        place
          .renew(renewals.map((item) => ({ ...item, ttlMs: 0 })))
          .map((answer) => (answer.outcome === 'ours' ? { outcome: 'ours', ttlMs: 1_000 } : answer)),
    })),
    caughtBy: 'renewing keeps a lease past its first time',
  },
  {
    what: 'a release answers released to strangers',
    store: mutate((place) => ({
      release: (leases) => (place.release(leases), leases.map(() => ({ outcome: 'released' }))),
    })),
    caughtBy: 'a release answers released once, and gone from then on',
  },
  {
    what: 'capacity is off by one',
    store: asking((claim) => (claim.capacity === ALL ? claim : { ...claim, capacity: claim.capacity + 1 })),
    caughtBy: 'weights add up to the capacity and not beyond',
  },
  {
    what: 'every claim weighs one',
    store: asking((claim) => (claim.capacity === ALL ? claim : { ...claim, weight: 1 })),
    caughtBy: 'weights add up to the capacity and not beyond',
  },
  {
    what: 'all or none leaves some',
    store: mutate((place) => ({ acquire: (claims) => place.acquire(claims) })),
    caughtBy: 'all or none grants none when one is busy, and leaves nothing behind',
  },
  {
    what: 'all or none says none and leaves some',
    store: mutate((place) => ({
      acquire: (claims, options) => {
        const answers = place.acquire(claims)
        const none = options?.atomic && answers.some((answer) => answer.granted !== true)
        return none ? answers.map(() => ({ granted: false })) : answers
      },
    })),
    caughtBy: 'all or none grants none when one is busy, and leaves nothing behind',
  },
  {
    what: 'a lease never expires',
    store: asking((claim) => ({ ...claim, ttlMs: 1e9 })),
    caughtBy: 'a lease that nobody renews ends by itself, and not before its time',
  },
  {
    what: 'a lease lasts only half its time',
    store: mutate((place) => ({
      acquire: (claims, options) =>
        place
          .acquire(
            claims.map((claim) => ({ ...claim, ttlMs: claim.ttlMs / 2 })),
            options,
          )
          .map((answer) => (answer.granted === true ? { ...answer, ttlMs: answer.ttlMs * 2 } : answer)),
    })),
    caughtBy: 'a lease that nobody renews ends by itself, and not before its time',
  },
  {
    what: 'times to live beyond 2^31 overflow',
    store: asking((claim) => (claim.ttlMs > 2 ** 31 ? { ...claim, ttlMs: 1 } : claim)),
    caughtBy: 'a lease of forty days is held, not expired at once',
  },
  {
    what: 'an owner who asks again meets its own grant',
    store: mutate((place) => ({
      acquire: (claims, options) => {
        const busy = claims.filter(({ key, owner }) =>
          place.inspect(key).holders.some((holder) => holder.owner === owner),
        )
        if (busy.length === 0) return place.acquire(claims, options)
        return claims.map(
          (claim): Answer => (busy.includes(claim) ? { granted: false } : (place.acquire([claim])[0] as Answer)),
        )
      },
    })),
    caughtBy: 'an owner who asks again gets its own grant, with the same token',
  },
  {
    what: 'an owner who asks again gets a new token',
    store: (() => {
      let extra = 0n
      return mutate((place) => ({
        acquire: (claims, options) =>
          place
            .acquire(claims, options)
            .map((answer) => (answer.granted === true ? { ...answer, token: answer.token + ++extra } : answer)),
      }))
    })(),
    caughtBy: 'an owner who asks again gets its own grant, with the same token',
  },
  {
    what: 'all readers share one expiry',
    store: readersShareExpiry,
    caughtBy: 'every reader expires by itself: a dead one does not live on through the others',
  },
  {
    what: 'a hand-over is for the whole time to live',
    store: asking((claim) =>
      claim.placeMs === undefined ? claim : { ...claim, placeMs: Math.max(claim.placeMs, claim.ttlMs) },
    ),
    caughtBy: 'a waiter who dies at the head of the line holds it up for its place, not for its time to live',
  },
  {
    what: 'a release wakes nobody',
    store: silent('granted', 'freed'),
    caughtBy: 'a release wakes whoever waits and watches, in another client too',
  },
  {
    what: 'a revoked holder is not told',
    store: mutate((place) => ({ watchRevoked: () => place.watchRevoked(() => {}) })),
    caughtBy: 'whoever is revoked is told so',
  },
  {
    what: 'changes are not announced',
    store: silent('changed'),
    caughtBy: 'an announced lease tells everyone who watches when it begins, changes its value and ends',
  },
  {
    what: 'a closed watch still hears',
    store: mutate((place) => ({
      watch: (key, listener) => ({
        ...place.watch(key, listener),
        close: () => {},
      }),
    })),
    caughtBy: 'two watches of one key both hear, and closing one leaves the other',
  },
  {
    what: 'a batch is answered in the wrong order',
    store: mutate((place) => ({ acquire: (claims, options) => place.acquire(claims, options).toReversed() })),
    caughtBy: 'one key twice in a batch: the first gets the lock, the second is refused',
  },
  {
    what: 'one key twice in a batch is asked once',
    store: mutate((place) => ({
      release: (leases) => {
        const once = new Map(leases.map((lease) => [`${lease.key} ${lease.owner}`, place.release([lease])[0]]))
        return leases.map((lease) =>
          once.get(`${lease.key} ${lease.owner}`)?.outcome === 'gone' ? { outcome: 'gone' } : { outcome: 'released' },
        )
      },
    })),
    caughtBy: 'one key twice in a batch: the first gets the lock, the second is refused',
  },
  {
    what: 'revoke lets the line starve',
    store: mutate((place) => ({
      revoke: (key) => {
        const { waiters } = place.inspect(key)
        for (const { owner } of waiters) place.release([{ key, owner }])
        return place.revoke(key)
      },
    })),
    caughtBy: 'revoke lets the next in line in, and nobody else',
  },
  {
    what: 'steal is ignored',
    store: asking((claim) => ({ ...claim, steal: false })),
    caughtBy: 'stealing takes the lock whoever holds it, with a larger token',
  },
  {
    what: 'a renewal cannot change the value',
    store: mutate((place) => ({
      renew: (renewals) => place.renew(renewals.map(({ key, owner, ttlMs }) => ({ key, owner, ttlMs }))),
    })),
    caughtBy: 'a renewal with a value replaces it, one without keeps it',
  },
  {
    what: 'values are cut at a kilobyte',
    store: asking((claim) => ({ ...claim, value: claim.value?.slice(0, 1_024) })),
    caughtBy: 'values arrive as they were written, whatever they contain',
  },
  {
    what: 'names ignore case',
    store: renaming((key) => key.toLowerCase()),
    caughtBy: 'names that look alike are different names',
  },
  {
    what: 'names are trimmed',
    store: renaming((key) => key.trim()),
    caughtBy: 'names that look alike are different names',
  },
  {
    what: 'names are normalised',
    store: renaming((key) => key.normalize()),
    caughtBy: 'names that look alike are different names',
  },
  {
    what: 'names are cut',
    store: renaming((key) => key.slice(0, 255)),
    caughtBy: 'names of 255 characters work, and differ in the last one',
  },
  {
    what: 'a prefix is a pattern',
    store: mutate((place) => ({
      holders: (prefix) => place.holders('').filter((view) => like(prefix).test(view.key)),
    })),
    caughtBy: 'a prefix is text, not a pattern',
  },
  {
    what: 'the line is shown backwards',
    store: mutate((place) => ({
      inspect: (key) => ({ ...place.inspect(key), waiters: place.inspect(key).waiters.toReversed() }),
    })),
    caughtBy: 'inspect shows the line in order, and holders how long it is',
  },
  {
    what: 'of several limits those that would let it pass are charged though another refuses',
    store: mutate((place) => ({
      take: (requests) =>
        requests.map(({ key, cost, limits }) => {
          const apart = limits.map((limit, i) => ({ key: `${key}/${i}`, cost, limits: [limit] }))
          const answers = place.take(apart)
          return {
            allowed: answers.every((answer) => answer.allowed),
            remaining: Math.min(...answers.map((answer) => answer.remaining)),
            retryAfterMs: Math.max(...answers.map((answer) => answer.retryAfterMs)),
            resetMs: Math.max(...answers.map((answer) => answer.resetMs)),
          }
        }),
    })),
    caughtBy: 'several limits (token-bucket) are charged together or not at all',
  },
  {
    what: 'half a second is floored to nothing',
    store: taking((request) => ({ ...request, limits: request.limits.map(inWholeSeconds) })),
    caughtBy: 'token-bucket: half a second is not nothing',
  },
  {
    what: 'a sliding window is a bucket',
    store: taking((request) => ({
      ...request,
      limits: request.limits.map((limit) => ({ ...limit, algorithm: 'token-bucket' })),
    })),
    caughtBy: 'sliding-window: no stretch of its length ever sees more than the limit',
  },
  {
    what: 'fractions of a cost are lost',
    store: taking((request) => ({ ...request, cost: Math.floor(request.cost) })),
    caughtBy: 'token-bucket: costs are taken whole or not at all, and fractions are kept',
  },
]
