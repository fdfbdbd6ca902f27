// One Redis, names that nobody else wants: one lock after the other, and 64 at once.
import type { Calls, Context, Library, Scenario } from '../harness/types.js'
import { inFlight, loop, type OpenLocker, serially } from '../libraries/locker.js'
import {
  bare,
  connect,
  leasehold,
  redisSemaphore,
  redlock4,
  redlock5,
  redlockUniversal,
  TTL_MS,
  verrou,
} from '../libraries/redis.js'

const IN_FLIGHT = 64

const LOCKERS: Record<string, Omit<Library, 'open'> & { locker: OpenLocker }> = {
  'SET NX PX + script': { kind: 'floor', locker: bare() },
  leasehold: { kind: 'ours', locker: leasehold() },
  'redlock@5': { kind: 'peer', locker: redlock5() },
  'redlock@4': { kind: 'peer', locker: redlock4() },
  'redis-semaphore': { kind: 'peer', locker: redisSemaphore() },
  verrou: { kind: 'peer', locker: verrou() },
  'redlock-universal': { kind: 'peer', settings: 'lean', locker: redlockUniversal() },
}

const librariesWith = (workload: (locker: OpenLocker) => Library['open']): Record<string, Library> =>
  Object.fromEntries(
    Object.entries(LOCKERS).map(([name, { locker, ...library }]) => [name, { ...library, open: workload(locker) }]),
  )

/** All locks of a round in one script each: the least that commands for 64 locks can cost. */
const SET_ALL = `for i, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2], 'NX') end return 1`
const RELEASE_ALL = `local held = redis.call('MGET', unpack(KEYS))
  for i, key in ipairs(KEYS) do if held[i] ~= ARGV[1] then return 0 end end
  return redis.call('DEL', unpack(KEYS))`

async function batched(context: Context): Promise<Calls> {
  const redis = await connect(context)
  const [setAll, releaseAll] = (await Promise.all(
    [SET_ALL, RELEASE_ALL].map((script) => redis.script('LOAD', script)),
  )) as [string, string]
  const cycle = async (n: number): Promise<void> => {
    const names = Array.from({ length: IN_FLIGHT }, (_, i) => context.name(n * IN_FLIGHT + i))
    await redis.evalsha(setAll, names.length, ...names, context.prefix, TTL_MS)
    await redis.evalsha(releaseAll, names.length, ...names, context.prefix)
  }
  return {
    async run({ ms }: { ms: number }) {
      const { count, ms: took } = await loop(cycle, { ms })
      return { count: count * IN_FLIGHT, ms: took }
    },
  }
}

export const redisLock: Scenario[] = [
  {
    name: 'redis-serial',
    title: 'one lock after the other on one Redis, 256 names',
    target: '≤ 1.35x of the floor, ≤ 1.15x of redlock@5',
    place: 'redis',
    metrics: [{ name: 'time per lock', unit: 'µs', better: 'lower' }],
    seconds: 30,
    libraries: librariesWith(serially),
  },
  {
    name: 'redis-in-flight',
    title: '64 locks in flight on one Redis, 256 names',
    target: '≥ 1.7x of the floor, ahead of every peer',
    place: 'redis',
    metrics: [{ name: 'locks per second', unit: '/s', better: 'higher' }],
    seconds: 30,
    libraries: {
      ...librariesWith((locker) => inFlight(locker, IN_FLIGHT)),
      'one script for 64': { kind: 'floor', open: batched },
    },
  },
]
