// A process that has just started: how long the import takes, and the first lock on Redis after it.
import type { Calls, Context, Figures, Library, Member, Scenario } from '../harness/types.js'
import type { OpenLocker } from '../libraries/locker.js'
import { bare, leasehold, redisSemaphore, redlock4, redlock5, redlockUniversal, verrou } from '../libraries/redis.js'

const IMPORT = 'import'
const FIRST_LOCK = 'first lock'

/** Times are taken inside of the process: starting Node itself is the same for all. */
const starting =
  (load: (context: Context) => unknown, open: OpenLocker) =>
  async (context: Context): Promise<Calls> => {
    const beganAt = performance.now()
    await load(context)
    const loadedAt = performance.now()
    const locker = await open(context)
    const release = await locker.acquire(context.name(0))
    await release()
    const doneAt = performance.now()
    return { run: () => ({ [IMPORT]: loadedAt - beganAt, [FIRST_LOCK]: doneAt - beganAt }) }
  }

const loadClient = (): Promise<unknown> => import('ioredis')

const peer = (open: OpenLocker, ...packages: string[]): Library => ({
  kind: 'peer',
  open: starting(async (context) => {
    await loadClient()
    for (const name of packages) context.peer(name)
  }, open),
})

export const startUp: Scenario[] = [
  {
    name: 'start-up',
    title: 'import with the Redis client, and the first lock, in a new process',
    target: 'no row slower than before',
    place: 'redis',
    fresh: true,
    metrics: [
      { name: IMPORT, unit: 'ms', better: 'lower' },
      { name: FIRST_LOCK, unit: 'ms', better: 'lower' },
    ],
    seconds: 25,
    libraries: {
      'ioredis alone': { kind: 'floor', open: starting(loadClient, bare()) },
      leasehold: {
        kind: 'ours',
        open: starting(async (context) => {
          await loadClient()
          await context.leasehold('index.js')
          await context.leasehold('stores/redis/index.js')
        }, leasehold()),
      },
      'redlock@5': peer(redlock5(), 'redlock5'),
      'redlock@4': peer(redlock4(), 'redlock4'),
      'redis-semaphore': peer(redisSemaphore(), 'redis-semaphore'),
      verrou: peer(verrou(), '@verrou/core', '@verrou/core/drivers/redis'),
      'redlock-universal': peer(redlockUniversal(), 'redlock-universal'),
    },
    async drive([member]: readonly Member[]): Promise<Figures> {
      return (member as Member).call<Figures>('run')
    },
  },
]
