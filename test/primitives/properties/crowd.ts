/** What must hold of a crowd on any store, in real time: who is inside together, in which order, and that all get in. */
import { strict as assert } from 'node:assert'
import fc from 'fast-check'
import { createLocks, type Lock, type Locks, LockTimeoutError } from '../../../src/index.js'
import { ALL, type HolderView, type Store } from '../../../src/store.js'

/** Independent clients of one place. */
export interface Venue {
  readonly clients: readonly Store[]
  /** Whatever must happen happens within this, or never. */
  readonly patienceMs: number
}

/** Long enough for a slow machine, short enough to wait for. */
const MORTAL_TTL = 400

let counter = 0
/** Nobody else uses these, in this process or another. */
const fresh = (): string => `property-${process.pid}-${Date.now()}-${++counter}`

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

async function within<T>({ patienceMs }: Venue, what: string, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${patienceMs} ms`)), patienceMs)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

async function until({ patienceMs }: Venue, what: string, look: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + patienceMs
  while (!(await look())) {
    if (performance.now() > deadline) assert.fail(`${what}: not within ${patienceMs} ms`)
    await sleep(2)
  }
}

interface Visitor {
  weight: number
  stayMs: number
  /** Never lets go, and is not renewed. */
  dies: boolean
}

const visitor: fc.Arbitrary<Visitor> = fc.record({
  weight: fc.nat(20),
  stayMs: fc.nat(6),
  dies: fc.integer({ min: 0, max: 7 }).map((n) => n === 0),
})

/** Those inside at the moment, each with what it holds. */
class Room {
  readonly #inside = new Map<Lock, number>()
  readonly #capacity: number

  constructor(capacity: number) {
    this.#capacity = capacity
  }

  enter(lock: Lock, weight: number): void {
    this.#inside.set(lock, weight)
    let held = 0
    // Whoever has died counts for as long as it believes to live, and not longer.
    for (const [other, itsWeight] of this.#inside) if (other.isHeld) held += itsWeight
    assert.ok(held <= this.#capacity, `${held} of ${this.#capacity} are inside`)
  }

  leave(lock: Lock): void {
    this.#inside.delete(lock)
  }
}

interface Entrance {
  capacity: number
  acquire(locks: Locks, weight: number, options: { ttl?: number; autoRenew?: boolean }): Promise<Lock>
  kind: string
}

function entrance(venue: Venue, what: 'semaphore' | 'readWrite', name: string, permits: number): Entrance {
  const { line, counting } = (venue.clients[0] as Store).features
  if (what === 'readWrite') {
    const starvation = line ? {} : ({ starvation: 'accepted' } as const)
    return {
      kind: 'lock',
      capacity: ALL,
      acquire: (locks, weight, options) =>
        locks.readWrite(name, starvation)[weight === ALL ? 'acquireWrite' : 'acquireRead'](options),
    }
  }
  return {
    kind: 'semaphore',
    capacity: permits,
    acquire: (locks, weight, options) =>
      locks.semaphore(name, permits).acquire(counting ? { ...options, weight } : options),
  }
}

function weightOf(what: 'semaphore' | 'readWrite', venue: Venue, permits: number, n: number): number {
  if (what === 'readWrite') return n % 3 === 0 ? ALL : 1
  return venue.clients[0]?.features.counting ? 1 + (n % permits) : 1
}

/** Everybody asks while somebody is inside, one after the other where there is a line; then the doors open. */
export function crowd(venue: Venue, what: 'semaphore' | 'readWrite'): fc.IAsyncProperty<unknown> {
  const visitors = fc.array(visitor, { minLength: 2, maxLength: 7 })
  return fc.asyncProperty(visitors, fc.integer({ min: 1, max: 4 }), async (people, permits) => {
    const { clients } = venue
    const { line } = (clients[0] as Store).features
    const name = fresh()
    const door = entrance(venue, what, name, permits)
    const room = new Room(door.capacity)
    const instances = people.map((_, i) =>
      createLocks(clients[i % clients.length] as Store, { wait: venue.patienceMs }),
    )
    const doorkeeper = createLocks(clients[0] as Store, { wait: venue.patienceMs })
    const weights = people.map(({ weight }) => weightOf(what, venue, permits, weight))
    const all = clients[0]?.features.counting || what === 'readWrite' ? [door.capacity] : Array<number>(permits).fill(1)
    const gates = await Promise.all(all.map((weight) => door.acquire(doorkeeper, weight, {})))
    const tokens: bigint[] = []
    const visit = async (i: number): Promise<void> => {
      const { stayMs, dies } = people[i] as Visitor
      const lock = await door.acquire(
        instances[i] as Locks,
        weights[i] as number,
        dies ? { ttl: MORTAL_TTL, autoRenew: false } : {},
      )
      tokens[i] = lock.fencingToken
      room.enter(lock, weights[i] as number)
      await sleep(stayMs)
      if (dies) return
      room.leave(lock)
      assert.ok(await lock.release(), `${i} held it until now`)
    }
    try {
      const visits: Promise<void>[] = []
      for (const i of people.keys()) {
        visits.push(visit(i))
        visits[i]?.catch(() => {})
        const inLine = async (): Promise<boolean> =>
          (await doorkeeper.waiters(name, { kind: door.kind })).length === i + 1
        if (line) await until(venue, `${i} stands in line`, inLine)
      }
      await Promise.all(gates.map((gate) => gate.release()))
      await within(venue, 'everybody gets in', Promise.all(visits))
      // Tokens tell in which order the store granted; readers who come in together may share one. Not those of the
      // mortal: on a slow machine the little time they have may pass before they hear of it, and they begin anew.
      const served = line ? tokens.filter((_, i) => !people[i]?.dies) : []
      for (const [i, token] of served.entries()) {
        assert.ok(token >= (served[i - 1] ?? 0n), `not in the order of the line: ${served}`)
      }
    } finally {
      await Promise.all([doorkeeper, ...instances].map((locks) => locks.close({ grace: 0 })))
    }
    await until(
      venue,
      'nothing is held after close',
      async () => (await holdersOf(clients[0] as Store, `${door.kind}:${name}`)).length === 0,
    ) // prettier-ignore
  })
}

async function holdersOf(store: Store, prefix: string): Promise<HolderView[]> {
  return (await store.holders?.(prefix)) ?? []
}

interface Errand {
  names: number[]
  stayMs: number
  once: boolean
}

const errand: fc.Arbitrary<Errand> = fc.record({
  names: fc.array(fc.nat(3), { minLength: 1, maxLength: 5 }),
  stayMs: fc.nat(4),
  once: fc.boolean(),
})

/** Several names at once, in any order and some twice: all or nothing, alone on each, no deadlock, nothing left. */
export function errands(venue: Venue): fc.IAsyncProperty<unknown> {
  return fc.asyncProperty(fc.array(errand, { minLength: 2, maxLength: 8 }), async (people) => {
    const { clients } = venue
    const base = fresh()
    const busy = new Map<string, { token: bigint; inside: boolean }>()
    const instances = people.map((_, i) =>
      createLocks(clients[i % clients.length] as Store, { wait: venue.patienceMs }),
    )
    const run = async (i: number): Promise<void> => {
      const { names, stayMs, once } = people[i] as Errand
      const locks = instances[i] as Locks
      try {
        const wanted = names.map((n) => `${base}-${n}`)
        await locks.withLocks(
          wanted,
          async (group) => {
            assert.deepEqual(group.names, [...new Set(wanted)].sort(), 'each once')
            for (const [name, token] of group.fencingTokens) {
              const before = busy.get(name)
              assert.ok(!before?.inside, `${name} is somebody else's`)
              assert.ok(token > (before?.token ?? 0n), `the tokens of ${name} grow`)
              busy.set(name, { token, inside: true })
            }
            await sleep(stayMs)
            assert.ok(group.isHeld, 'all of them until the end')
            for (const [name, token] of group.fencingTokens) busy.set(name, { token, inside: false })
          },
          once ? { wait: 0 } : {},
        )
      } catch (error) {
        if (!(error instanceof LockTimeoutError && once)) throw error
      }
      // Done or refused: either way nothing of it is left.
      const mine = (await holdersOf(clients[0] as Store, `lock:${base}`)).filter(({ owner }) =>
        owner.startsWith(locks.clientId),
      )
      assert.deepEqual(mine, [])
    }
    try {
      await within(venue, 'no deadlock', Promise.all(people.map((_, i) => run(i))))
    } finally {
      await Promise.all(instances.map((locks) => locks.close({ grace: 0 })))
    }
    await until(
      venue,
      'nothing is held after close',
      async () => (await holdersOf(clients[0] as Store, `lock:${base}`)).length === 0,
    ) // prettier-ignore
  })
}
