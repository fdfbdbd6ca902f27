// Locks and limits inside one process.
import type * as library from '../../src/index.js'
import type { Calls, Context, Library, Scenario } from '../harness/types.js'
import { KeyedFifo } from '../libraries/keyed-fifo.js'
import { loop } from '../libraries/locker.js'
import { memoryLimits } from '../libraries/memory-limits.js'

const TTL_MS = 30_000
const TASKS = 100
/** A look at the clock costs as much as a lock here. */
const BATCH = 100

type Cycle = (name: string) => Promise<void>
type OpenCycle = (context: Context) => Promise<Cycle>

/** As people write it: every call that returns a promise is awaited. */
const cycles: Record<string, Omit<Library, 'open'> & { open: OpenCycle }> = {
  'keyed FIFO': {
    kind: 'floor',
    async open() {
      const locks = new KeyedFifo()
      return async (name) => {
        const release = await locks.acquire(name)
        release()
      }
    },
  },
  leasehold: {
    kind: 'ours',
    async open(context) {
      const { createLocks, memory } = await context.leasehold<typeof library>('index.js')
      const locks = createLocks(memory(), { ttl: TTL_MS, wait: TTL_MS })
      return async (name) => {
        const lock = await locks.acquire(name)
        await lock.release()
      }
    },
  },
  'async-lock': {
    kind: 'peer',
    settings: 'no ttl',
    async open(context) {
      const AsyncLock =
        context.peer<new (options: object) => { acquire(name: string, work: () => Promise<void>): Promise<void> }>(
          'async-lock',
        )
      // Its default of 1,000 waiting tasks is a limit that nobody meets here.
      const locks = new AsyncLock({})
      const work = async (): Promise<void> => {}
      return (name) => locks.acquire(name, work)
    },
  },
  'async-mutex': {
    kind: 'peer',
    settings: 'no ttl, a Map of mutexes',
    async open(context) {
      const { Mutex } = context.peer<{ Mutex: new () => { acquire(): Promise<() => void> } }>('async-mutex')
      const mutexes = new Map<string, InstanceType<typeof Mutex>>()
      return async (name) => {
        let mutex = mutexes.get(name)
        if (!mutex) mutexes.set(name, (mutex = new Mutex()))
        const release = await mutex.acquire()
        release()
      }
    },
  },
  verrou: {
    kind: 'peer',
    async open(context) {
      const { LockFactory } = context.peer<{
        LockFactory: new (
          store: unknown,
        ) => { createLock(name: string, ttlMs: number): { acquire(): Promise<boolean>; release(): Promise<void> } }
      }>('@verrou/core')
      const { memoryStore } = context.peer<{ memoryStore(): { factory(): unknown } }>('@verrou/core/drivers/memory')
      const factory = new LockFactory(memoryStore().factory())
      return async (name) => {
        const lock = factory.createLock(name, TTL_MS)
        if (!(await lock.acquire())) throw new Error(`verrou did not get ${name}`)
        await lock.release()
      }
    },
  },
  'redlock-universal': {
    kind: 'peer',
    settings: 'lean, retry every 1 ms',
    async open(context) {
      const { createLock, MemoryAdapter } = context.peer<{
        createLock(options: object): { acquire(): Promise<object>; release(handle: object): Promise<boolean> }
        MemoryAdapter: new () => object
      }>('redlock-universal')
      const adapter = new MemoryAdapter()
      const retry = { retryAttempts: 100, retryDelay: 1 }
      return async (name) => {
        const lock = createLock({ adapter, key: name, ttl: TTL_MS, performance: 'lean', ...retry })
        await lock.release(await lock.acquire())
      }
    },
  },
}

const librariesWith = (workload: (cycle: Cycle, context: Context) => Calls): Record<string, Library> =>
  Object.fromEntries(
    Object.entries(cycles).map(([name, { open, ...library }]) => [
      name,
      { ...library, open: async (context: Context) => workload(await open(context), context) },
    ]),
  )

export const memory: Scenario[] = [
  {
    name: 'memory-lock',
    title: 'one lock after the other in memory, 256 names',
    target: '≥ 0.35x of the floor, ahead of every peer with a ttl',
    place: 'none',
    metrics: [{ name: 'locks per second', unit: '/s', better: 'higher' }],
    seconds: 15,
    sliceMs: 150,
    libraries: librariesWith((cycle, { name }) => ({
      run: ({ ms }: { ms: number }) => loop((n) => cycle(name(n)), { ms, batch: BATCH }),
    })),
  },
  {
    name: 'memory-contended',
    title: `${TASKS} tasks that want one name in memory`,
    target: '≥ 0.54x of the floor, ahead of every peer with a ttl',
    place: 'none',
    metrics: [{ name: 'locks per second', unit: '/s', better: 'higher' }],
    seconds: 15,
    sliceMs: 150,
    libraries: librariesWith((cycle, { name }) => ({
      run: ({ ms }: { ms: number }) => loop(() => cycle(name(0)), { ms, tasks: TASKS }),
    })),
  },
  ...memoryLimits,
]
