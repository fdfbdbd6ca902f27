/** Stores with one small defect each. The kit must detect every one of them. */
import { ALL, type Answer, type Claim, type LeaseId, type Limit, type Renewal, type Store } from '../../src/store.js'
import { type FullMemoryStore, asking, mutate, renaming, silent, taking } from './mutate.js'

export interface StoreMutant {
  /** The defect, as the end of "the kit notices when". */
  what: string
  store: () => Store
  /** The name of the case that must detect it. */
  caughtBy: string
}

/** Counts the tokens of each key from one, and forgets them when the key is free. */
function forgetfulTokens(): Store {
  const counts = new Map<string, bigint>()
  const known = new Map<string, bigint>()
  return mutate((store) => {
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
        store
          .acquire(claims, options)
          .map(
            (answer, i): Answer =>
              answer.granted === true ? { ...answer, token: number((claims[i] as Claim).key, answer.token) } : answer,
          ),
      release: (leases) => {
        const answers = store.release(leases)
        for (const { key } of leases) if (store.inspect(key).holders.length === 0) counts.delete(key)
        return answers
      },
    }
  })()
}

const newcomerPasses = mutate((store) => ({
  acquire: (claims, options) =>
    store.acquire(claims, options).map((answer, i): Answer => {
      const claim = claims[i] as Claim
      if (answer.granted !== false || claim.queueMs !== undefined) return answer
      const { holders, waiters } = store.inspect(claim.key)
      const held = holders.reduce((sum, holder) => sum + holder.weight, 0)
      if (waiters.length === 0 || held + claim.weight > claim.capacity) return answer
      // There is capacity, and only the queue refuses. A second key beside the first lets the claim overtake it.
      return store.acquire([{ ...claim, key: `${claim.key}/aside` }])[0] as Answer
    }),
}))

const lastComeFirstServed = mutate((store) => ({
  acquire: (claims, options) => {
    for (const { key, queueMs, owner } of claims) {
      if (queueMs === undefined) continue
      const { waiters } = store.inspect(key)
      if (waiters.some((waiter) => waiter.owner === owner)) continue
      const [claim] = claims.filter((item) => item.owner === owner)
      const answer = store.acquire([claim as Claim])
      for (const waiter of waiters) {
        store.release([{ key, owner: waiter.owner }])
        store.acquire([{ ...(claim as Claim), owner: waiter.owner }])
      }
      if (claims.length === 1) return answer
    }
    return store.acquire(claims, options)
  },
}))

const renewalShortens = mutate((store) => ({
  renew: (renewals) => {
    for (const { key, owner, ttlMs } of renewals) setTimeout(() => store.release([{ key, owner }]), ttlMs).unref()
    return store.renew(renewals)
  },
}))

const renewalCreates = mutate((store) => ({
  renew: (renewals) =>
    store.renew(renewals).map((answer, i) => {
      if (answer.outcome !== 'gone') return answer
      const { key, owner, ttlMs } = renewals[i] as Renewal
      const [created] = store.acquire([{ key, owner, ttlMs, weight: ALL, capacity: ALL }])
      return created?.granted === true ? { outcome: 'ours', ttlMs } : answer
    }),
}))

const releaseAsks = (whose: (lease: LeaseId, store: FullMemoryStore) => LeaseId[]): (() => Store) =>
  mutate((store) => ({
    release: (leases) =>
      leases.map(
        (lease) =>
          store.release(whose(lease, store)).find((answer) => answer.outcome === 'released') ?? { outcome: 'gone' },
      ),
  }))

const readersShareExpiry = mutate((store) => ({
  renew: (renewals) => {
    for (const { key, ttlMs } of renewals)
      for (const { owner } of store.inspect(key).holders) store.renew([{ key, owner, ttlMs }])
    return store.renew(renewals)
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

export const mutants: StoreMutant[] = [
  {
    what: 'a release does not check the owner',
    store: releaseAsks(({ key, owner }, store) => [
      { key, owner },
      ...store.inspect(key).holders.map((holder) => ({ key, owner: holder.owner })),
    ]),
    caughtBy: 'a release by another owner is answered gone and frees nothing',
  },
  {
    what: 'a lock is 1 of 1 beside readers that are 1 of everything',
    store: asking((claim) => (claim.weight === ALL ? { ...claim, weight: 1, capacity: 1 } : claim)),
    caughtBy: 'a reader is refused while a lock is held',
  },
  {
    what: 'a renewal creates',
    store: renewalCreates,
    caughtBy: 'the renewal of a released lease is answered gone and creates nothing',
  },
  {
    what: 'tokens are kept with the lock and begin anew',
    store: forgetfulTokens,
    caughtBy: 'tokens grow from release to release, whichever client acquires',
  },
  {
    what: 'queue entries never expire',
    store: asking((claim) => (claim.queueMs === undefined ? claim : { ...claim, queueMs: 1e9 })),
    caughtBy: 'a waiter that stops asking loses its queue entry, so a dead waiter does not block the queue',
  },
  {
    what: 'a new request overtakes the queue',
    store: newcomerPasses,
    caughtBy: 'small claims do not overtake a big one that waits for capacity',
  },
  {
    what: 'the last waiter is served first',
    store: lastComeFirstServed,
    caughtBy: 'waiters are granted the lock in the order of their arrival',
  },
  {
    what: 'a renewal shortens',
    store: renewalShortens,
    caughtBy: 'a renewal never shortens a lease, even if it arrives late',
  },
  {
    what: 'a renewal does nothing',
    store: mutate((store) => ({
      renew: (renewals) =>
        store
          .renew(renewals.map((item) => ({ ...item, ttlMs: 0 })))
          .map((answer) => (answer.outcome === 'ours' ? { outcome: 'ours', ttlMs: 1_000 } : answer)),
    })),
    caughtBy: 'a renewal keeps a lease beyond its first time to live',
  },
  {
    what: 'a release by another owner is answered released',
    store: mutate((store) => ({
      release: (leases) => (store.release(leases), leases.map(() => ({ outcome: 'released' }))),
    })),
    caughtBy: 'a release is answered released once, and gone from then on',
  },
  {
    what: 'capacity is off by one',
    store: asking((claim) => (claim.capacity === ALL ? claim : { ...claim, capacity: claim.capacity + 1 })),
    caughtBy: 'the weights of all grants of a key add up to the capacity and never more',
  },
  {
    what: 'every claim weighs one',
    store: asking((claim) => (claim.capacity === ALL ? claim : { ...claim, weight: 1 })),
    caughtBy: 'the weights of all grants of a key add up to the capacity and never more',
  },
  {
    what: 'an atomic batch keeps some grants',
    store: mutate((store) => ({ acquire: (claims) => store.acquire(claims) })),
    caughtBy: 'an atomic batch grants no claim if one key is held, and leaves nothing behind',
  },
  {
    what: 'an atomic batch reports no grant and keeps some',
    store: mutate((store) => ({
      acquire: (claims, options) => {
        const answers = store.acquire(claims)
        const none = options?.atomic && answers.some((answer) => answer.granted !== true)
        return none ? answers.map(() => ({ granted: false })) : answers
      },
    })),
    caughtBy: 'an atomic batch grants no claim if one key is held, and leaves nothing behind',
  },
  {
    what: 'a lease never expires',
    store: asking((claim) => ({ ...claim, ttlMs: 1e9 })),
    caughtBy: 'a lease that is not renewed ends by itself, and not before its time',
  },
  {
    what: 'a lease lasts only half its time',
    store: mutate((store) => ({
      acquire: (claims, options) =>
        store
          .acquire(
            claims.map((claim) => ({ ...claim, ttlMs: claim.ttlMs / 2 })),
            options,
          )
          .map((answer) => (answer.granted === true ? { ...answer, ttlMs: answer.ttlMs * 2 } : answer)),
    })),
    caughtBy: 'a lease that is not renewed ends by itself, and not before its time',
  },
  {
    what: 'a ttl above 2^31 overflows',
    store: asking((claim) => (claim.ttlMs > 2 ** 31 ? { ...claim, ttlMs: 1 } : claim)),
    caughtBy: 'a lease of forty days is held and does not expire at once',
  },
  {
    what: 'an owner that acquires again is blocked by its own grant',
    store: mutate((store) => ({
      acquire: (claims, options) => {
        const busy = claims.filter(({ key, owner }) =>
          store.inspect(key).holders.some((holder) => holder.owner === owner),
        )
        if (busy.length === 0) return store.acquire(claims, options)
        return claims.map(
          (claim): Answer => (busy.includes(claim) ? { granted: false } : (store.acquire([claim])[0] as Answer)),
        )
      },
    })),
    caughtBy: 'an owner that acquires again gets its own grant, with the same token',
  },
  {
    what: 'an owner that acquires again gets a new token',
    store: (() => {
      let extra = 0n
      return mutate((store) => ({
        acquire: (claims, options) =>
          store
            .acquire(claims, options)
            .map((answer) => (answer.granted === true ? { ...answer, token: answer.token + ++extra } : answer)),
      }))
    })(),
    caughtBy: 'an owner that acquires again gets its own grant, with the same token',
  },
  {
    what: 'all readers share one expiry',
    store: readersShareExpiry,
    caughtBy: 'every reader expires by itself: a dead reader is not kept alive by the others',
  },
  {
    what: 'a lease that was handed off lasts for the whole ttl',
    store: asking((claim) =>
      claim.queueMs === undefined ? claim : { ...claim, queueMs: Math.max(claim.queueMs, claim.ttlMs) },
    ),
    caughtBy: 'a waiter that dies at the head of the queue blocks it for queueMs, not for ttlMs',
  },
  {
    what: 'a release sends no event',
    store: silent('granted', 'freed'),
    caughtBy: 'a release wakes a waiter that watches the key, also in another client',
  },
  {
    what: 'a revoked holder is not told',
    store: mutate((store) => ({ watchRevoked: () => store.watchRevoked(() => {}) })),
    caughtBy: 'a holder is told that its lease was revoked, through the one subscription of its client',
  },
  {
    what: 'changes are not announced',
    store: silent('changed'),
    caughtBy: 'every watch is told when an announced lease begins, changes its value and ends',
  },
  {
    what: 'a closed watch still reports events',
    store: mutate((store) => ({
      watch: (key, listener) => ({
        ...store.watch(key, listener),
        close: () => {},
      }),
    })),
    caughtBy: 'two watches of one key both get its events, and closing one keeps the other',
  },
  {
    what: 'a batch is answered in the wrong order',
    store: mutate((store) => ({ acquire: (claims, options) => store.acquire(claims, options).toReversed() })),
    caughtBy: 'two locks of one key in a batch: the first is granted, the second is refused',
  },
  {
    what: 'one key twice in a batch is requested once',
    store: mutate((store) => ({
      release: (leases) => {
        const once = new Map(leases.map((lease) => [`${lease.key} ${lease.owner}`, store.release([lease])[0]]))
        return leases.map((lease) =>
          once.get(`${lease.key} ${lease.owner}`)?.outcome === 'gone' ? { outcome: 'gone' } : { outcome: 'released' },
        )
      },
    })),
    caughtBy: 'two locks of one key in a batch: the first is granted, the second is refused',
  },
  {
    what: 'revoke starves the queue',
    store: mutate((store) => ({
      revoke: (key) => {
        const { waiters } = store.inspect(key)
        for (const { owner } of waiters) store.release([{ key, owner }])
        return store.revoke(key)
      },
    })),
    caughtBy: 'revoke() lets the next waiter in, and no other client',
  },
  {
    what: 'a steal is ignored',
    store: asking((claim) => ({ ...claim, steal: false })),
    caughtBy: 'a steal takes the lock from any holder and has a larger token',
  },
  {
    what: 'a renewal cannot change the value',
    store: mutate((store) => ({
      renew: (renewals) => store.renew(renewals.map(({ key, owner, ttlMs }) => ({ key, owner, ttlMs }))),
    })),
    caughtBy: 'a renewal with a value replaces it, and a renewal without one keeps it',
  },
  {
    what: 'values are cut at a kilobyte',
    store: asking((claim) => ({ ...claim, value: claim.value?.slice(0, 1_024) })),
    caughtBy: 'values are read as they were written, whatever they contain',
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
    caughtBy: 'names of 255 characters work, and differ by their last character',
  },
  {
    what: 'a prefix is treated as a pattern',
    store: mutate((store) => ({
      holders: (prefix) => store.holders('').filter((view) => like(prefix).test(view.key)),
    })),
    caughtBy: 'holders() treats a prefix as text, not as a pattern',
  },
  {
    what: 'the queue is listed backwards',
    store: mutate((store) => ({
      inspect: (key) => ({ ...store.inspect(key), waiters: store.inspect(key).waiters.toReversed() }),
    })),
    caughtBy: 'inspect() reports the queue in order, and holders() reports its length',
  },
  {
    what: 'limits that would pass are charged although another limit refuses',
    store: mutate((store) => ({
      take: (requests) =>
        requests.map(({ key, cost, limits }) => {
          const apart = limits.map((limit, i) => ({ key: `${key}/${i}`, cost, limits: [limit] }))
          const answers = store.take(apart)
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
    what: 'half a second is rounded down to nothing',
    store: taking((request) => ({ ...request, limits: request.limits.map(inWholeSeconds) })),
    caughtBy: 'token-bucket: a period of a fraction of a second counts exactly',
  },
  {
    what: 'a sliding window is a token bucket',
    store: taking((request) => ({
      ...request,
      limits: request.limits.map((limit) => ({ ...limit, algorithm: 'token-bucket' })),
    })),
    caughtBy: 'sliding-window: no interval of the length of the window ever has more takes than the limit',
  },
  {
    what: 'fractions of a cost are lost',
    store: taking((request) => ({ ...request, cost: Math.floor(request.cost) })),
    caughtBy: 'token-bucket: a cost is charged in full or not at all, and fractions count',
  },
]
