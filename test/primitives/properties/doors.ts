/** Three ways to ask for the same thing, so that one model describes them all. */
import type { World } from '../../../src/kit/world.js'
import { Locks } from '../../../src/locks.js'
import { ALL, type Store } from '../../../src/store.js'

export const MORTAL_TTL = 20_000
const TTL = 6_000

export interface Wish {
  weight: number
  /** Do not wait. */
  once?: boolean
  /** Is never renewed, and so dies when its time has passed. */
  mortal?: boolean
  steal?: boolean
}

/** Somebody who asked. */
export interface Person {
  readonly id: number
  readonly wish: Wish
  /** Was inside at some time. */
  entered: boolean
  /** Right now, by its own knowledge. */
  inside(): boolean
  /** Why it will never be inside (again); undefined: it waits or is inside. */
  over: string | undefined
  cancel(): void
  letGo(): Promise<void>
}

export interface Door {
  readonly key: string
  readonly capacity: number
  /** What may be asked for. */
  readonly weights: readonly number[]
  readonly steals: boolean
  ask(id: number, wish: Wish): Person
  /** Ends everything that anybody holds or waits for. */
  close(): Promise<void>
}

export type DoorKind = 'semaphore' | 'readWrite' | 'request'

function person(id: number, wish: Wish, cancel: () => void): Person {
  return { id, wish, entered: false, over: undefined, cancel, inside: () => false, letGo: async () => {} }
}

/** Every acquisition in a process of its own: those of one process take turns with other processes. */
function lockDoor(store: Store, world: World, kind: 'semaphore' | 'readWrite', permits: number): Door {
  const all: Locks[] = []
  const ask = (id: number, wish: Wish): Person => {
    const locks = new Locks(store, { ttl: TTL, wait: 'forever' }, world)
    all.push(locks)
    const cancel = new AbortController()
    const someone = person(id, wish, () => cancel.abort())
    const { signal } = cancel
    const options = { signal, ...(wish.once && { wait: 0 }), ...(wish.mortal && { ttl: MORTAL_TTL, autoRenew: false }) }
    const asked =
      kind === 'semaphore'
        ? locks.semaphore('door', permits).acquire({ ...options, weight: wish.weight })
        : locks.readWrite('door')[wish.weight === ALL ? 'acquireWrite' : 'acquireRead'](options)
    asked.then(
      (lock) => {
        someone.entered = true
        someone.inside = () => lock.isHeld
        someone.letGo = async () => {
          someone.over = (await lock.release()) ? 'released' : 'lost'
        }
      },
      (error: Error) => (someone.over = error.name),
    )
    return someone
  }
  return {
    key: kind === 'semaphore' ? 'semaphore:door' : 'lock:door',
    capacity: kind === 'semaphore' ? permits : ALL,
    weights: kind === 'semaphore' ? Array.from({ length: permits }, (_, i) => i + 1) : [1, 1, ALL],
    steals: false,
    ask,
    close: async () => void (await Promise.all(all.map((locks) => locks.close({ grace: 0 })))),
  }
}

/** Requests of three processes: they stand in the store's line in the order of asking, whoever asks. */
function requestDoor(store: Store, world: World): Door {
  const all = [0, 1, 2].map(() => new Locks(store, { ttl: TTL }, world))
  const ask = (id: number, wish: Wish): Person => {
    const cancel = new AbortController()
    const someone = person(id, wish, () => cancel.abort())
    const { once, steal } = wish
    const options = {
      mode: wish.weight === ALL ? ('exclusive' as const) : ('shared' as const),
      ...(once ? { ifAvailable: true } : steal ? { steal } : { signal: cancel.signal }),
    }
    const outcome = (all[id % all.length] as Locks).request('door', options, (lock) => {
      if (!lock) return 'refused'
      someone.entered = true
      someone.inside = () => someone.over === undefined
      return new Promise<string>((resolve) => {
        someone.letGo = async () => {
          resolve('released')
          await outcome
        }
      })
    })
    outcome.then(
      (how) => (someone.over = how),
      (error: Error) => (someone.over = error.name),
    )
    return someone
  }
  return {
    key: 'lock:door',
    capacity: ALL,
    weights: [1, 1, ALL],
    steals: true,
    ask,
    close: async () => void (await Promise.all(all.map((locks) => locks.close({ grace: 0 })))),
  }
}

export function openDoor(kind: DoorKind, store: Store, world: World, permits: number): Door {
  return kind === 'request' ? requestDoor(store, world) : lockDoor(store, world, kind, permits)
}
