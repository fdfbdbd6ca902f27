/**
 * Properties of many concurrent callers on any store, in real time: who holds together, in which order, and that all
 * are served.
 */
import { strict as assert } from 'node:assert'
import fc from 'fast-check'
import { createLocks, type Lock, type Locks, LockTimeoutError } from '../../../src/index.js'
import { ALL, type HolderView, type Store } from '../../../src/store.js'

/** Independent clients of one store. */
export interface PropertyClients {
  readonly clients: readonly Store[]
  /** Everything that must happen happens within this time, or never. */
  readonly patienceMs: number
}

/** EXPIRING_TTL: the ttl of a caller that dies. Long enough for a slow machine, short enough to wait for. */
const EXPIRING_TTL = 400

/** CLEANUP_MS: within this time nothing is left of a caller that has ended. Far less than the ttl of 30 s. */
const CLEANUP_MS = 2_000

let counter = 0
/** A name that no other test uses, in this process or another. */
const fresh = (): string => `property-${process.pid}-${Date.now()}-${++counter}`

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

async function within<T>({ patienceMs }: PropertyClients, what: string, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${patienceMs} ms`)), patienceMs)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

async function until({ patienceMs }: PropertyClients, what: string, look: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + patienceMs
  for (;;) {
    // Read before the look: a process that stood still past the deadline looks once more.
    const isLast = performance.now() > deadline
    if (await look()) return
    if (isLast) assert.fail(`${what}: not within ${patienceMs} ms`)
    await sleep(2)
  }
}

interface Caller {
  weight: number
  stayMs: number
  /** Never releases, and is not renewed. */
  dies: boolean
}

const anyCaller: fc.Arbitrary<Caller> = fc.record({
  weight: fc.nat(20),
  stayMs: fc.nat(6),
  dies: fc.integer({ min: 0, max: 7 }).map((n) => n === 0),
})

/** The current holders, each with its weight. */
class Holders {
  readonly #held = new Map<Lock, number>()
  readonly #capacity: number

  constructor(capacity: number) {
    this.#capacity = capacity
  }

  add(lock: Lock, weight: number): void {
    this.#held.set(lock, weight)
    let held = 0
    // A caller that died counts for as long as it believes to hold, and not longer.
    for (const [other, itsWeight] of this.#held) if (other.isHeld) held += itsWeight
    assert.ok(held <= this.#capacity, `${held} of ${this.#capacity} are held`)
  }

  remove(lock: Lock): void {
    this.#held.delete(lock)
  }
}

interface Acquirer {
  capacity: number
  acquire(locks: Locks, weight: number, options: { ttl?: number; autoRenew?: boolean }): Promise<Lock>
  kind: string
}

function acquirerOf(shared: PropertyClients, what: 'semaphore' | 'readWrite', name: string, permits: number): Acquirer {
  const { queue: hasQueue, counting } = (shared.clients[0] as Store).features
  if (what === 'readWrite') {
    const starvation = hasQueue ? {} : ({ starvation: 'accepted' } as const)
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

function weightOf(what: 'semaphore' | 'readWrite', shared: PropertyClients, permits: number, n: number): number {
  if (what === 'readWrite') return n % 3 === 0 ? ALL : 1
  return shared.clients[0]?.features.counting ? 1 + (n % permits) : 1
}

/**
 * All callers ask while the lock is held, one after the other where the store has a queue. Then the lock is released.
 */
export function contention(shared: PropertyClients, what: 'semaphore' | 'readWrite'): fc.IAsyncProperty<unknown> {
  const anyCallers = fc.array(anyCaller, { minLength: 2, maxLength: 7 })
  return fc.asyncProperty(anyCallers, fc.integer({ min: 1, max: 4 }), async (callers, permits) => {
    const { clients } = shared
    const { queue: hasQueue } = (clients[0] as Store).features
    const name = fresh()
    const subject = acquirerOf(shared, what, name, permits)
    const holders = new Holders(subject.capacity)
    const instances = callers.map((_, i) =>
      createLocks(clients[i % clients.length] as Store, { wait: shared.patienceMs }),
    )
    const blocker = createLocks(clients[0] as Store, { wait: shared.patienceMs })
    const weights = callers.map(({ weight }) => weightOf(what, shared, permits, weight))
    const all =
      clients[0]?.features.counting || what === 'readWrite' ? [subject.capacity] : Array<number>(permits).fill(1)
    const blocking = await Promise.all(all.map((weight) => subject.acquire(blocker, weight, {})))
    const tokens: bigint[] = []
    const run = async (i: number): Promise<void> => {
      const { stayMs, dies } = callers[i] as Caller
      const lock = await subject.acquire(
        instances[i] as Locks,
        weights[i] as number,
        dies ? { ttl: EXPIRING_TTL, autoRenew: false } : {},
      )
      tokens[i] = lock.fencingToken
      holders.add(lock, weights[i] as number)
      await sleep(stayMs)
      if (dies) return
      holders.remove(lock)
      assert.ok(await lock.release(), `${i} held it until its release`)
    }
    try {
      const runs: Promise<void>[] = []
      for (const i of callers.keys()) {
        runs.push(run(i))
        runs[i]?.catch(() => {})
        const untilQueued = async (): Promise<boolean> =>
          (await blocker.waiters(name, { kind: subject.kind })).length === i + 1
        if (hasQueue) await until(shared, `${i} is queued`, untilQueued)
      }
      await Promise.all(blocking.map((lock) => lock.release()))
      await within(shared, 'every caller is served', Promise.all(runs))
      // Tokens show in which order the store granted; readers that are granted together may share one. Callers that die
      // are excluded: on a slow machine their ttl may pass before the grant arrives, and they start again.
      const served = hasQueue ? tokens.filter((_, i) => !callers[i]?.dies) : []
      for (const [i, token] of served.entries()) {
        assert.ok(token >= (served[i - 1] ?? 0n), `not in the order of the queue: ${served}`)
      }
    } finally {
      await Promise.all([blocker, ...instances].map((locks) => locks.close({ grace: 0 })))
    }
    await until(
      shared,
      'nothing is held after close',
      async () => (await holdersOf(clients[0] as Store, `${subject.kind}:${name}`)).length === 0,
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

/**
 * Several names at once, in any order and some twice: all or none are held, exclusively, without deadlock, and nothing
 * is left.
 */
export function severalNames(shared: PropertyClients): fc.IAsyncProperty<unknown> {
  return fc.asyncProperty(fc.array(errand, { minLength: 2, maxLength: 8 }), async (callers) => {
    const { clients } = shared
    const base = fresh()
    const busy = new Map<string, { token: bigint; held: boolean }>()
    const instances = callers.map((_, i) =>
      createLocks(clients[i % clients.length] as Store, { wait: shared.patienceMs }),
    )
    const run = async (i: number): Promise<void> => {
      const { names, stayMs, once } = callers[i] as Errand
      const locks = instances[i] as Locks
      try {
        const wanted = names.map((n) => `${base}-${n}`)
        await locks.withLocks(
          wanted,
          async (group) => {
            assert.deepEqual(group.names, [...new Set(wanted)].sort(), 'each once')
            for (const [name, token] of group.fencingTokens) {
              const before = busy.get(name)
              assert.ok(!before?.held, `${name} has no other holder`)
              assert.ok(token > (before?.token ?? 0n), `the tokens of ${name} grow`)
              busy.set(name, { token, held: true })
            }
            await sleep(stayMs)
            assert.ok(group.isHeld, 'all of them are held until the end')
            for (const [name, token] of group.fencingTokens) busy.set(name, { token, held: false })
          },
          once ? { wait: 0 } : {},
        )
      } catch (error) {
        if (!(error instanceof LockTimeoutError && once)) throw error
      }
      // Done or refused: either way nothing of it is left. A request that was in flight when its grant was pushed may be
      // granted once more after the release, and is taken back as soon as it is answered.
      await until({ ...shared, patienceMs: CLEANUP_MS }, 'nothing is left of a caller that has ended', async () =>
        (await holdersOf(clients[0] as Store, `lock:${base}`)).every(({ owner }) => !owner.startsWith(locks.clientId)),
      )
    }
    try {
      await within(shared, 'no deadlock', Promise.all(callers.map((_, i) => run(i))))
    } finally {
      await Promise.all(instances.map((locks) => locks.close({ grace: 0 })))
    }
    await until(
      shared,
      'nothing is held after close',
      async () => (await holdersOf(clients[0] as Store, `lock:${base}`)).length === 0,
    ) // prettier-ignore
  })
}
