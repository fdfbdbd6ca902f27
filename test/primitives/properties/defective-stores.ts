/** The reference store with one defect each, in virtual time: every property has to fail on one of them. */
import { memory, type MemoryStore } from '../../../src/stores/memory/index.js'
import { ALL, type Claim, type Store, type StoreEvent, type Watch } from '../../../src/store.js'
import type { VirtualWorld } from '../../../testbed/virtual-world.js'

interface FullStore extends MemoryStore {
  watch(key: string, listener: (event: StoreEvent) => void): Watch
}

export type StoreIn = (world: VirtualWorld) => Store

/** Replaces some methods. Without any it is the store itself, behind the same wrapper. */
export function broken(change: (store: FullStore) => Partial<Store>): StoreIn {
  return (world) => {
    const store = memory({ world }) as FullStore
    const right: Store = {
      name: 'broken',
      expiry: 'timed',
      features: store.features,
      timeoutMs: store.timeoutMs,
      watchRevoked: (listener) => store.watchRevoked?.(listener) as Watch,
      acquire: (claims, options) => store.acquire(claims, options),
      renew: (renewals) => store.renew(renewals),
      release: (leases) => store.release(leases),
      watch: (key, listener) => store.watch(key, listener),
      holders: (prefix) => store.holders(prefix),
      inspect: (key) => store.inspect(key),
      revoke: (key) => store.revoke(key),
      close: () => store.close(),
    }
    return { ...right, ...change(store) }
  }
}

export const whole: StoreIn = broken(() => ({}))

const asking = (change: (claim: Claim) => Claim): StoreIn =>
  broken((store) => ({ acquire: (claims, options) => store.acquire(claims.map(change), options) }))

export const oneTooMany: StoreIn = asking((claim) => ({ ...claim, capacity: claim.capacity + 1 }))

export const writersAreReaders: StoreIn = asking((claim) =>
  claim.capacity === ALL ? { ...claim, weight: 1, capacity: claim.weight === ALL ? 1 : ALL } : claim,
)

/** Each new waiter is put before all others. */
export const lastComeFirstServed: StoreIn = broken((store) => ({
  acquire: (claims, options) => {
    const [claim] = claims as [Claim]
    const { waiters } = store.inspect(claim.key)
    const stands = waiters.some(({ owner }) => owner === claim.owner)
    if (claims.length > 1 || claim.queueMs === undefined || stands) return store.acquire(claims, options)
    const answer = store.acquire(claims)
    if (answer[0]?.granted !== false) return answer
    for (const { owner, weight, capacity } of waiters) {
      store.release([{ key: claim.key, owner }])
      store.acquire([{ ...claim, owner, weight, capacity }])
    }
    return answer
  },
}))

export const nobodyIsWoken: StoreIn = broken((store) => ({
  watch: (key) => store.watch(key, () => {}),
}))

/** A waiter that gives up keeps its queue entry, and is handed a lease that it no longer wants. */
export const entriesStay: StoreIn = broken((store) => ({
  release: (leases) =>
    leases.map((lease) => {
      const holds = store.inspect(lease.key).holders.some(({ owner }) => owner === lease.owner)
      return holds ? (store.release([lease])[0] as { outcome: 'released' }) : { outcome: 'released' }
    }),
}))

export const nothingIsRenewed: StoreIn = broken((store) => ({
  renew: (renewals) => renewals.map(({ ttlMs }) => (store.now?.(), { outcome: 'ours', ttlMs })),
}))

export const releasesNothing: StoreIn = broken((store) => ({
  release: (leases) => leases.map((): { outcome: 'released' } => (store.inspect('x'), { outcome: 'released' })),
}))

export const nothingIsStolen: StoreIn = asking((claim) => ({ ...claim, steal: false }))
