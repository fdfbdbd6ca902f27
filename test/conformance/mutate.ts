/** The reference store with one thing changed. */
import { type MemoryStore, memory } from '../../src/stores/memory/index.js'
import type {
  Claim,
  HolderView,
  Lease,
  Store,
  StoreEvent,
  TakeAnswer,
  TakeRequest,
  WaiterView,
  Watch,
} from '../../src/store.js'

/** What memory() really is: everything is there, and answers at once. */
export interface Place extends MemoryStore {
  watch(key: string, listener: (event: StoreEvent) => void): Watch
  holders(prefix: string): HolderView[]
  inspect(key: string): { holders: HolderView[]; waiters: WaiterView[] }
  revoke(key: string): HolderView[]
  take(requests: readonly TakeRequest[]): TakeAnswer[]
  watchRevoked(listener: (lease: Lease) => void): Watch
  now(): number
}

/** Memory with some methods replaced. */
export function mutate(change: (place: Place) => Partial<Store>): () => Store {
  return () => {
    const place = memory() as Place
    const right: Store = {
      name: 'mutant',
      expiry: 'timed',
      features: place.features,
      timeoutMs: place.timeoutMs,
      acquire: (claims, options) => place.acquire(claims, options),
      renew: (renewals) => place.renew(renewals),
      release: (leases) => place.release(leases),
      watch: (key, listener) => place.watch(key, listener),
      holders: (prefix) => place.holders(prefix),
      inspect: (key) => place.inspect(key),
      revoke: (key) => place.revoke(key),
      watchRevoked: (listener) => place.watchRevoked(listener),
      take: (requests) => place.take(requests),
      now: () => place.now(),
      close: () => place.close(),
    }
    return { ...right, ...change(place) }
  }
}

/** The wrapper without any mistake, so that what is noticed is the mistake and not the wrapping. */
export const unharmed: () => Store = mutate(() => ({}))

/** Every claim changed before it is asked. */
export const asking = (change: (claim: Claim) => Claim): (() => Store) =>
  mutate((place) => ({ acquire: (claims, options) => place.acquire(claims.map(change), options) }))

/** Every limiter's request changed before it is asked. */
export const taking = (change: (request: TakeRequest) => TakeRequest): (() => Store) =>
  mutate((place) => ({ take: (requests) => place.take(requests.map(change)) }))

/** Each key under another name: whatever the change makes equal collides. */
export const renaming = (change: (key: string) => string): (() => Store) =>
  mutate((place) => {
    const item = <T extends { key: string }>(old: T): T => ({ ...old, key: change(old.key) })
    return {
      acquire: (claims, options) => place.acquire(claims.map(item), options),
      renew: (renewals) => place.renew(renewals.map(item)),
      release: (leases) => place.release(leases.map(item)),
      watch: (key, listener) => place.watch(change(key), listener),
    }
  })

/** Nobody hears of events of this kind. */
export const silent = (...types: StoreEvent['type'][]): (() => Store) =>
  mutate((place) => ({
    watch: (key, listener) => place.watch(key, (event) => !types.includes(event.type) && listener(event)),
  }))
