/** Three ways to acquire the same thing, so that one model describes them all. */
import type { World } from '../../../src/util/world.js'
import { Locks } from '../../../src/locks.js'
import { ALL, type Store } from '../../../src/store.js'

export const EXPIRING_TTL = 20_000
const TTL = 6_000

export interface AcquireWish {
  weight: number
  /** True: do not wait. */
  once?: boolean
  /** True: the lease is never renewed, and so expires when its time has passed. */
  expires?: boolean
  steal?: boolean
}

/** One acquisition. */
export interface SubjectAcquisition {
  readonly id: number
  readonly wish: AcquireWish
  /** True once it has held. */
  hasHeld: boolean
  /** True while it holds, by its own knowledge. */
  holds(): boolean
  /** Why it will never hold (again). Undefined: it waits or holds. */
  over: string | undefined
  cancel(): void
  release(): Promise<void>
}

export interface AcquireSubject {
  readonly key: string
  readonly capacity: number
  /** The weights that may be requested. */
  readonly weights: readonly number[]
  readonly steals: boolean
  ask(id: number, wish: AcquireWish): SubjectAcquisition
  /** Ends every holding and waiting acquisition. */
  close(): Promise<void>
}

export type SubjectKind = 'semaphore' | 'readWrite' | 'request'

function acquisition(id: number, wish: AcquireWish, cancel: () => void): SubjectAcquisition {
  return { id, wish, hasHeld: false, over: undefined, cancel, holds: () => false, release: async () => {} }
}

/** Every acquisition in its own process (instance), because those of one process take turns with other processes. */
function lockSubject(store: Store, world: World, kind: 'semaphore' | 'readWrite', permits: number): AcquireSubject {
  const all: Locks[] = []
  const ask = (id: number, wish: AcquireWish): SubjectAcquisition => {
    const locks = new Locks(store, { ttl: TTL, wait: 'forever' }, world)
    all.push(locks)
    const cancel = new AbortController()
    const acquiring = acquisition(id, wish, () => cancel.abort())
    const { signal } = cancel
    const options = {
      signal,
      ...(wish.once && { wait: 0 }),
      ...(wish.expires && { ttl: EXPIRING_TTL, autoRenew: false }),
    }
    const asked =
      kind === 'semaphore'
        ? locks.semaphore('subject', permits).acquire({ ...options, weight: wish.weight })
        : locks.readWrite('subject')[wish.weight === ALL ? 'acquireWrite' : 'acquireRead'](options)
    asked.then(
      (lock) => {
        acquiring.hasHeld = true
        acquiring.holds = () => lock.isHeld
        acquiring.release = async () => {
          acquiring.over = (await lock.release()) ? 'released' : 'lost'
        }
      },
      (error: Error) => (acquiring.over = error.name),
    )
    return acquiring
  }
  return {
    key: kind === 'semaphore' ? 'semaphore:subject' : 'lock:subject',
    capacity: kind === 'semaphore' ? permits : ALL,
    weights: kind === 'semaphore' ? Array.from({ length: permits }, (_, i) => i + 1) : [1, 1, ALL],
    steals: false,
    ask,
    close: async () => void (await Promise.all(all.map((locks) => locks.close({ grace: 0 })))),
  }
}

/** Requests of three processes: they are queued in the store in the order of the calls, whichever process calls. */
function requestSubject(store: Store, world: World): AcquireSubject {
  const all = [0, 1, 2].map(() => new Locks(store, { ttl: TTL }, world))
  const ask = (id: number, wish: AcquireWish): SubjectAcquisition => {
    const cancel = new AbortController()
    const acquiring = acquisition(id, wish, () => cancel.abort())
    const { once, steal } = wish
    const options = {
      mode: wish.weight === ALL ? ('exclusive' as const) : ('shared' as const),
      ...(once ? { ifAvailable: true } : steal ? { steal } : { signal: cancel.signal }),
    }
    const outcome = (all[id % all.length] as Locks).request('subject', options, (lock) => {
      if (!lock) return 'refused'
      acquiring.hasHeld = true
      acquiring.holds = () => acquiring.over === undefined
      return new Promise<string>((resolve) => {
        acquiring.release = async () => {
          resolve('released')
          await outcome
        }
      })
    })
    outcome.then(
      (how) => (acquiring.over = how),
      (error: Error) => (acquiring.over = error.name),
    )
    return acquiring
  }
  return {
    key: 'lock:subject',
    capacity: ALL,
    weights: [1, 1, ALL],
    steals: true,
    ask,
    close: async () => void (await Promise.all(all.map((locks) => locks.close({ grace: 0 })))),
  }
}

export function openSubject(kind: SubjectKind, store: Store, world: World, permits: number): AcquireSubject {
  return kind === 'request' ? requestSubject(store, world) : lockSubject(store, world, kind, permits)
}
