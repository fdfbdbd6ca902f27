import { join } from 'node:path'
import { expect, test } from 'vitest'
import { ALL, type Answer, type Claim, type LeaseId, type Limit, type Store } from '../../../src/store.js'
import { memory } from '../../../src/stores/memory/index.js'
import { directory, open } from './fixture.js'

/** A small generator of pseudo-random numbers: the same numbers for the same seed. */
function generator(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
}

const KEYS = ['lock:a', 'lock:ab', 'semaphore:a', 'lock:ä']
const OWNERS = ['o1', 'o2', 'o3', 'o4', 'o5', 'o6']
const LIMITS: Limit[] = [
  { algorithm: 'token-bucket', limit: 5, perMs: 400, burst: 7 },
  { algorithm: 'sliding-window', limit: 4, perMs: 300, burst: 4 },
]

/** The token under which this owner was last granted this key, by the store that is compared. */
type TokenOf = (key: string, owner: string) => bigint | undefined
type Step = { what: string; run: (store: Store, tokenOf: TokenOf) => unknown }

function steps(random: () => number, advance: (ms: number) => void): Step {
  const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)] as T
  const maybe = <T>(probability: number, value: T): T | undefined => (random() < probability ? value : undefined)
  const someClaim = (owner = pick(OWNERS)): Claim => {
    const key = pick(KEYS)
    const [weight, capacity] = key === 'semaphore:a' ? [pick([1, 2]), 3] : [pick([1, ALL]), ALL]
    return {
      key,
      owner,
      weight,
      capacity,
      ttlMs: pick([20, 100, 500]),
      value: maybe(0.3, `"${owner}"`),
      queueMs: maybe(0.6, pick([30, 200])),
      announce: maybe(0.3, true),
      steal: maybe(0.03, true),
    }
  }
  const kind = random()
  if (kind < 0.15) {
    const ms = Math.floor(random() * 60)
    return { what: `${ms} ms pass`, run: () => advance(ms) }
  }
  if (kind < 0.5) {
    const claims = Array.from({ length: pick([1, 1, 2, 5]) }, () => someClaim())
    return { what: `acquire ${JSON.stringify(claims)}`, run: (store) => store.acquire(claims) }
  }
  if (kind < 0.55) {
    const claims = [...KEYS].sort(() => random() - 0.5).slice(0, 2)
    const owner = `all-${Math.floor(random() * 1e9)}`
    const atomic = claims.map((key) => ({ ...someClaim(owner), key, weight: 1, capacity: 3, steal: undefined }))
    return { what: `all or none ${JSON.stringify(atomic)}`, run: (store) => store.acquire(atomic, { atomic: true }) }
  }
  const lease = { key: pick(KEYS), owner: pick(OWNERS) }
  const compared = pick(['no token', 'its token', 'another token'] as const)
  /** Tokens differ from store to store: both get the token of the same grant. */
  const withToken = <T extends LeaseId>(item: T, tokenOf: TokenOf): T => {
    if (compared === 'no token') return item
    const token = tokenOf(item.key, item.owner) ?? 7n
    return { ...item, token: compared === 'its token' ? token : token + 1n }
  }
  if (kind < 0.7) {
    const renewal = { ...lease, ttlMs: pick([10, 100, 400]), value: maybe(0.3, '"new"') }
    const entry = { key: pick(KEYS), owner: pick(OWNERS), ttlMs: pick([50, 300]), queued: true }
    const order = pick([[0], [1], [0, 1], [1, 0, 1]])
    const run: Step['run'] = (store, tokenOf) =>
      store.renew(order.map((i) => (i === 0 ? withToken(renewal, tokenOf) : entry)))
    return { what: `renew ${JSON.stringify(order.map((i) => [renewal, entry][i]))} with ${compared}`, run }
  }
  if (kind < 0.85) {
    const leases = [lease, { key: pick(KEYS), owner: pick(OWNERS) }].slice(0, pick([1, 2]))
    return {
      what: `release ${JSON.stringify(leases)} with ${compared}`,
      run: (store, tokenOf) => store.release(leases.map((item) => withToken(item, tokenOf))),
    }
  }
  if (kind < 0.87) return { what: `revoke ${lease.key}`, run: (store) => store.revoke?.(lease.key) }
  if (kind < 0.92) return { what: `inspect ${lease.key}`, run: (store) => store.inspect?.(lease.key) }
  if (kind < 0.94) {
    const prefix = pick(['', 'lock:', 'lock:a', 'lock:ä', 'semaphore:', 'nothing'])
    return { what: `holders of ${prefix}`, run: (store) => sorted(store.holders?.(prefix)) }
  }
  const request = {
    key: pick(['limiter:x', 'limiter:y']),
    cost: pick([0, 1, 2, 9]),
    limits: LIMITS.slice(0, pick([1, 2])),
  }
  return { what: `take ${JSON.stringify(request)}`, run: (store) => store.take?.([request]) }
}

function sorted(views: unknown): unknown {
  const order = ({ key, token }: { key: string; token: bigint }): string => `${key}/${token}`
  return [...(views as never[])].sort((a, b) => (order(a) < order(b) ? -1 : 1))
}

/**
 * An answer without what may differ between stores. Tokens are replaced by the number of the grant they belong to, and the
 * newest only has to be there: an atomic attempt that was rolled back may have used one. The number of waiters is exact only where that costs nothing, so it is compared as none or some.
 */
function reader(): (answer: unknown) => unknown {
  const tokens = new Map<bigint, number>()
  const named = (token: bigint): string => {
    if (!tokens.has(token)) tokens.set(token, tokens.size)
    return `grant ${tokens.get(token)}`
  }
  const read = (name: string, value: unknown): unknown => {
    if (name === 'newest') return value !== undefined
    // SQLite reserves tokens with every hand-off of a lock.
    if (name === 'tokens') return undefined
    if (typeof value === 'bigint') return named(value)
    if (name === 'ahead' || name === 'waiting') return Math.min(value as number, 1)
    return value === Number.POSITIVE_INFINITY ? 'never' : value
  }
  return (answer) => JSON.parse(JSON.stringify(answer ?? null, read))
}

/** One store, the events it sent, and the tokens it granted. */
function recorded(store: Store): { store: Store; events: () => unknown; tokenOf: TokenOf } {
  const sent: unknown[] = []
  const revoked: unknown[] = []
  const tokens = new Map<string, bigint>()
  for (const key of KEYS) {
    store.watch?.(key, (event) => {
      // Stores may notice the expiry of an announced lease at different times.
      if (event.type !== 'changed') sent.push(event)
      if (event.type === 'granted') tokens.set(`${key}/${event.owner}`, event.token)
    })
  }
  store.watchRevoked?.((lease) => revoked.push(lease))
  const acquire: Store['acquire'] = (claims, options) => {
    const answers = store.acquire(claims, options) as Answer[]
    for (const [i, answer] of answers.entries()) {
      if (answer.granted === true) tokens.set(`${claims[i]?.key}/${answer.owner}`, answer.token)
    }
    return answers
  }
  const recording = new Proxy(store, {
    get: (target, name) => {
      const value = name === 'acquire' ? acquire : Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  // Each subscription is compared by itself: their order among each other is not part of the contract.
  return {
    store: recording,
    events: () => [revoked.splice(0), sent.splice(0)],
    tokenOf: (key, owner) => tokens.get(`${key}/${owner}`),
  }
}

test.each([1, 2, 3, 4, 5, 6])(
  'the store answers and notifies as the memory store does for any sequence of calls (seed %i)',
  (seed) => {
    let now = 1_700_000_000_000
    const random = generator(seed)
    const clock = { now: () => now, date: () => now, random, after: () => () => {}, bytes: () => new Uint8Array(16) }
    const reference = recorded(memory({ world: clock }))
    const tried = recorded(
      open(join(directory(), 'locks.db'), { world: clock, machine: { boot: 'b', now: () => now } }),
    )
    const [ofReference, ofStore] = [reader(), reader()]
    const log: string[] = []
    for (let i = 0; i < 1_500; i++) {
      const step = steps(random, (ms) => (now += ms))
      log.push(step.what)
      const expected = ofReference(step.run(reference.store, reference.tokenOf))
      if (step.what.endsWith('ms pass')) continue
      const recently = log.slice(-12).join('\n')
      expect(ofStore(step.run(tried.store, tried.tokenOf)), recently).toEqual(expected)
      expect(ofStore(tried.events()), recently).toEqual(ofReference(reference.events()))
    }
  },
)
