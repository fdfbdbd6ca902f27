// What locks cost while they are held and nothing else happens: processor time of the client and of the server.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Redis } from 'ioredis'
import type { Calls, Context, Figures, Member, Scenario, Slice } from '../harness/types.js'
import type { OpenLocker, Release } from '../libraries/locker.js'
import { ownSeconds, serverSeconds } from '../libraries/processor.js'
import { connect, leasehold, redisSemaphore } from '../libraries/redis.js'

/** Every library renews after a third of it. */
const TTL_MS = 6_000
const PERIOD_MS = TTL_MS / 3
/** Locks that are acquired or released at once. */
const CHUNK = 1_000
const PER = 10_000
const CLIENT = 'client CPU per 10,000 heartbeats'
const SERVER = 'server CPU per 10,000 heartbeats'

interface Spent {
  client: number
  server: number
  heartbeats: number
}

/** Whole periods, so that every lock is renewed equally often. */
const windowOf = (ms: number): number => Math.max(1, Math.round(ms / PERIOD_MS)) * PERIOD_MS

async function inChunks<T>(items: readonly T[], work: (item: T) => unknown): Promise<void> {
  for (let i = 0; i < items.length; i += CHUNK) await Promise.all(items.slice(i, i + CHUNK).map(work))
}

const namesOf = (context: Context, count: number): string[] =>
  Array.from({ length: count }, (_, i) => `${context.prefix}:held:${i}`)

const holding =
  (open: OpenLocker, count: number) =>
  async (context: Context): Promise<Calls> => {
    const locker = await open(context)
    const redis = await connect(context)
    const releases: Release[] = []
    return {
      async run({ ms }: { ms: number }): Promise<Spent> {
        // Held from the first warm-up to the end of the process: taken anew for each slice, what is measured would be code that V8 has
        // not compiled yet, and garbage of the acquisitions.
        if (releases.length === 0) {
          await inChunks(namesOf(context, count), async (name) => releases.push(await locker.acquire(name)))
          await sleep(PERIOD_MS)
        }
        const windowMs = windowOf(ms)
        const before = { client: ownSeconds(), server: await serverSeconds(redis) }
        await sleep(windowMs)
        const after = { client: ownSeconds(), server: await serverSeconds(redis) }
        return {
          client: after.client - before.client,
          server: after.server - before.server,
          heartbeats: (count * windowMs) / PERIOD_MS,
        }
      },
    }
  }

const RENEW =
  "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
const RENEW_ALL = `local held = redis.call('MGET', unpack(KEYS))
  local answers = {}
  for i, key in ipairs(KEYS) do
    answers[i] = held[i] == ARGV[i + 1] and redis.call('PEXPIRE', key, ARGV[1]) or 0
  end
  return answers`
const FLOOR_BATCH = 100

type Renew = (held: ReadonlyMap<string, string>) => Promise<unknown>

/** One script per lock, all of them in one write. */
async function pipelined(redis: Redis): Promise<Renew> {
  const sha = String(await redis.script('LOAD', RENEW))
  return (held) => {
    const pipeline = redis.pipeline()
    for (const [name, owner] of held) pipeline.evalsha(sha, 1, name, owner, TTL_MS)
    return pipeline.exec()
  }
}

/** One script for 100 locks, with an answer for each of them. */
async function batched(redis: Redis): Promise<Renew> {
  const sha = String(await redis.script('LOAD', RENEW_ALL))
  return (held) => {
    const names = [...held.keys()]
    const batches = Array.from({ length: Math.ceil(names.length / FLOOR_BATCH) }, (_, i) =>
      names.slice(i * FLOOR_BATCH, (i + 1) * FLOOR_BATCH),
    )
    return Promise.all(
      batches.map((keys) =>
        redis.evalsha(sha, keys.length, ...keys, TTL_MS, ...keys.map((name) => held.get(name) as string)),
      ),
    )
  }
}

const floor =
  (open: (redis: Redis) => Promise<Renew>, count: number): OpenLocker =>
  async (context) => {
    const redis = await connect(context)
    const renew = await open(redis)
    const held = new Map<string, string>()
    let owners = 0
    return {
      async acquire(name) {
        const owner = `${context.prefix}/${owners++}`
        if ((await redis.set(name, owner, 'PX', TTL_MS, 'NX')) !== 'OK') throw new Error(`${name} is held`)
        held.set(name, owner)
        if (held.size === count) setInterval(() => void renew(held), PERIOD_MS)
        return () => redis.del(name)
      },
    }
  }

async function drive([member]: readonly Member[], { ms }: Slice): Promise<Figures> {
  const spent = await (member as Member).call<Spent>('run', { ms })
  const per = (seconds: number): number => (seconds * 1_000 * PER) / spent.heartbeats
  return { [CLIENT]: per(spent.client), [SERVER]: per(spent.server) }
}

function heartbeats(count: number, seconds: number): Scenario {
  return {
    name: `redis-heartbeats-${count}`,
    title: `${count.toLocaleString('en')} locks held on one Redis, each renewed every ${PERIOD_MS / 1_000} s`,
    target: count === 10_000 ? '≤ 2.2x (client) and ≤ 1.5x (server) of the batched floor' : 'no row slower than before',
    place: 'redis',
    metrics: [
      { name: CLIENT, unit: 'ms', better: 'lower' },
      { name: SERVER, unit: 'ms', better: 'lower' },
    ],
    seconds,
    ownServers: true,
    sliceMs: 2 * PERIOD_MS,
    warmUpMs: 2 * PERIOD_MS,
    libraries: {
      [`a script for ${FLOOR_BATCH} locks`]: { kind: 'floor', open: holding(floor(batched, count), count) },
      'a script per lock, one write': { kind: 'floor', open: holding(floor(pipelined, count), count) },
      leasehold: { kind: 'ours', open: holding(leasehold({ ttlMs: TTL_MS }), count) },
      'redis-semaphore': { kind: 'peer', open: holding(redisSemaphore({ ttlMs: TTL_MS }), count) },
    },
    drive,
  }
}

export const redisHeartbeats: Scenario[] = [heartbeats(1_000, 35), heartbeats(10_000, 45)]
