/** The reference store with one mistake each, in virtual time: every property has to fail on one of them. */
import { memory, type MemoryStore } from '../../../src/stores/memory/index.js'
import { ALL, type Claim, type Store, type StoreEvent, type Watch } from '../../../src/store.js'
import type { VirtualWorld } from './virtual-world.js'

interface Place extends MemoryStore {
  watch(key: string, listener: (event: StoreEvent) => void): Watch
}

export type StoreIn = (world: VirtualWorld) => Store

/** Some methods replaced. Without any it is the store itself, behind the same wrapper. */
export function broken(change: (place: Place) => Partial<Store>): StoreIn {
  return (world) => {
    const place = memory({ world }) as Place
    const right: Store = {
      name: 'broken',
      expiry: 'timed',
      features: place.features,
      timeoutMs: place.timeoutMs,
      immediate: true,
      watchRevoked: (listener) => place.watchRevoked?.(listener) as Watch,
      acquire: (claims, options) => place.acquire(claims, options),
      renew: (renewals) => place.renew(renewals),
      release: (leases) => place.release(leases),
      watch: (key, listener) => place.watch(key, listener),
      holders: (prefix) => place.holders(prefix),
      inspect: (key) => place.inspect(key),
      revoke: (key) => place.revoke(key),
      close: () => place.close(),
    }
    return { ...right, ...change(place) }
  }
}

export const whole: StoreIn = broken(() => ({}))

const asking = (change: (claim: Claim) => Claim): StoreIn =>
  broken((place) => ({ acquire: (claims, options) => place.acquire(claims.map(change), options) }))

export const oneTooMany: StoreIn = asking((claim) => ({ ...claim, capacity: claim.capacity + 1 }))

export const writersAreReaders: StoreIn = asking((claim) =>
  claim.capacity === ALL ? { ...claim, weight: 1, capacity: claim.weight === ALL ? 1 : ALL } : claim,
)

/** Each newcomer stands before everybody who waits already. */
export const lastComeFirstServed: StoreIn = broken((place) => ({
  acquire: (claims, options) => {
    const [claim] = claims as [Claim]
    const { waiters } = place.inspect(claim.key)
    const stands = waiters.some(({ owner }) => owner === claim.owner)
    if (claims.length > 1 || claim.placeMs === undefined || stands) return place.acquire(claims, options)
    const answer = place.acquire(claims)
    if (answer[0]?.granted !== false) return answer
    for (const { owner, weight, capacity } of waiters) {
      place.release([{ key: claim.key, owner }])
      place.acquire([{ ...claim, owner, weight, capacity }])
    }
    return answer
  },
}))

export const nobodyIsWoken: StoreIn = broken((place) => ({
  watch: (key) => place.watch(key, () => {}),
}))

/** Whoever gives up waiting keeps its place, and is handed what it no longer wants. */
export const placesStay: StoreIn = broken((place) => ({
  release: (leases) =>
    leases.map((lease) => {
      const holds = place.inspect(lease.key).holders.some(({ owner }) => owner === lease.owner)
      return holds ? (place.release([lease])[0] as { outcome: 'released' }) : { outcome: 'released' }
    }),
}))

export const nothingIsRenewed: StoreIn = broken((place) => ({
  renew: (renewals) => renewals.map(({ ttlMs }) => (place.now?.(), { outcome: 'ours', ttlMs })),
}))

export const releasesNothing: StoreIn = broken((place) => ({
  release: (leases) => leases.map((): { outcome: 'released' } => (place.inspect('x'), { outcome: 'released' })),
}))

export const nobodyIsRobbed: StoreIn = asking((claim) => ({ ...claim, steal: false }))
