/** The reference store with one change. */
import { type MemoryStore, memory } from '../../src/stores/memory/index.js'
import type {
  Claim,
  HolderView,
  LeaseId,
  Store,
  StoreEvent,
  TakeAnswer,
  TakeRequest,
  WaiterView,
  Watch,
} from '../../src/store.js'

/** The store that memory() returns, with all of its optional methods present and synchronous. */
export interface FullMemoryStore extends MemoryStore {
  watch(key: string, listener: (event: StoreEvent) => void): Watch
  holders(prefix: string): HolderView[]
  inspect(key: string): { holders: HolderView[]; waiters: WaiterView[] }
  revoke(key: string): HolderView[]
  take(requests: readonly TakeRequest[]): TakeAnswer[]
  watchRevoked(listener: (lease: LeaseId) => void): Watch
  now(): number
}

/** The memory store with some methods replaced. */
export function mutate(change: (store: FullMemoryStore) => Partial<Store>): () => Store {
  return () => {
    const store = memory() as FullMemoryStore
    const right: Store = {
      name: 'mutant',
      expiry: 'timed',
      features: store.features,
      // As a store behind a network: calls are batched.
      timeoutMs: 2_000,
      acquire: (claims, options) => store.acquire(claims, options),
      renew: (renewals) => store.renew(renewals),
      release: (leases) => store.release(leases),
      watch: (key, listener) => store.watch(key, listener),
      holders: (prefix) => store.holders(prefix),
      inspect: (key) => store.inspect(key),
      revoke: (key) => store.revoke(key),
      watchRevoked: (listener) => store.watchRevoked(listener),
      take: (requests) => store.take(requests),
      now: () => store.now(),
      close: () => store.close(),
    }
    return { ...right, ...change(store) }
  }
}

/** The wrapper without any defect. It must pass, or the mutants fail because of the wrapper. */
export const unharmed: () => Store = mutate(() => ({}))

/** Changes every claim before it is sent. */
export const asking = (change: (claim: Claim) => Claim): (() => Store) =>
  mutate((store) => ({ acquire: (claims, options) => store.acquire(claims.map(change), options) }))

/** Changes every take request before it is sent. */
export const taking = (change: (request: TakeRequest) => TakeRequest): (() => Store) =>
  mutate((store) => ({ take: (requests) => store.take(requests.map(change)) }))

/** Changes every key: keys that the change makes equal collide. */
export const renaming = (change: (key: string) => string): (() => Store) =>
  mutate((store) => {
    const item = <T extends { key: string }>(old: T): T => ({ ...old, key: change(old.key) })
    return {
      acquire: (claims, options) => store.acquire(claims.map(item), options),
      renew: (renewals) => store.renew(renewals.map(item)),
      release: (leases) => store.release(leases.map(item)),
      watch: (key, listener) => store.watch(change(key), listener),
    }
  })

/** Suppresses events of these types. */
export const silent = (...types: StoreEvent['type'][]): (() => Store) =>
  mutate((store) => ({
    watch: (key, listener) => store.watch(key, (event) => !types.includes(event.type) && listener(event)),
  }))
