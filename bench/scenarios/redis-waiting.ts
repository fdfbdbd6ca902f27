// What waiting costs while nothing is released: one process waits, another one holds.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Calls, Context, Figures, Library, Member, Scenario, Slice } from '../harness/types.js'
import type { OpenLocker, Release } from '../libraries/locker.js'
import { ownSeconds, secondsIn } from '../libraries/processor.js'
import { leasehold, redisSemaphore } from '../libraries/redis.js'

const WAITERS = 1_000
const SETTLE_MS = 1_000
const CLIENT = 'client'
const SERVER = 'server'

const waiting =
  (open: OpenLocker, names: number) =>
  async (context: Context): Promise<Calls> => {
    const locker = await open(context)
    const nameOf = (i: number): string => `${context.prefix}:wanted:${i % names}`
    let held: Release[] = []
    let pending: Promise<unknown>[] = []
    return {
      async hold() {
        held = await Promise.all(Array.from({ length: names }, (_, i) => locker.acquire(nameOf(i))))
      },
      async release() {
        await Promise.all(held.map((release) => release()))
      },
      wait() {
        pending = Array.from({ length: WAITERS }, async (_, i) => (await locker.acquire(nameOf(i)))())
      },
      async finish() {
        await Promise.all(pending)
      },
      processor: ownSeconds,
    }
  }

async function drive(members: readonly Member[], { ms, servers: [server] }: Slice): Promise<Figures> {
  const [waiter, holder] = members as [Member, Member]
  const look = async (): Promise<[number, number, number]> => [
    await waiter.call<number>('processor'),
    secondsIn(String(await server?.command('INFO', 'cpu'))),
    performance.now() / 1_000,
  ]
  await holder.call('hold')
  await waiter.call('wait')
  await sleep(SETTLE_MS)
  const before = await look()
  await sleep(ms)
  const after = await look()
  const finished = waiter.call('finish')
  await Promise.all([holder.call('release'), finished])
  const seconds = after[2] - before[2]
  return {
    [CLIENT]: ((after[0] - before[0]) / seconds) * 100,
    [SERVER]: ((after[1] - before[1]) / seconds) * 100,
  }
}

/** The holder keeps what it holds for longer than a slice without a heartbeat, so that only waiting is measured. */
const LONG_TTL_MS = 600_000

function waitingFor(names: number): Scenario {
  const peer = (retryMs: number): Library => ({
    kind: 'peer',
    settings: `retry every ${retryMs} ms`,
    open: waiting(redisSemaphore({ retryMs, ttlMs: LONG_TTL_MS }), names),
  })
  return {
    name: names === 1 ? 'redis-waiting-one-name' : 'redis-waiting',
    title: `${WAITERS.toLocaleString('en')} waiters of one process for ${names === 1 ? 'one name' : `${names.toLocaleString('en')} names`} on one Redis, nothing is released`,
    target: 'below 0.5 % of a core',
    place: 'redis',
    processes: 2,
    metrics: [
      { name: CLIENT, unit: '% of a core', better: 'lower', absolute: true },
      { name: SERVER, unit: '% of a core', better: 'lower', absolute: true },
    ],
    seconds: 30,
    sliceMs: 6_000,
    minSliceMs: 4_000,
    warmUpMs: 500,
    libraries: {
      leasehold: { kind: 'ours', open: waiting(leasehold({ ttlMs: LONG_TTL_MS }), names) },
      // A thousand of its waiters for one name need minutes until each had its turn, and the next slice would wait for them.
      ...(names === 1 ? {} : { 'redis-semaphore, tuned': peer(100) }),
    },
    drive,
  }
}

export const redisWaiting: Scenario[] = [waitingFor(WAITERS), waitingFor(1)]
