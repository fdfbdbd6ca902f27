// What waiting costs while nothing is released: one process waits, another one holds.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Calls, Context, Figures, Library, Member, Scenario, Slice } from '../harness/types.js'
import type { OpenLocker } from '../libraries/locker.js'
import { ownSeconds, secondsIn } from '../libraries/processor.js'
import { leasehold, redisSemaphore } from '../libraries/redis.js'

const WAITERS = 1_000
/** Heartbeats of queue entries come once a second. */
const HEARTBEAT_MS = 1_000
const CLIENT = 'client'
const SERVER = 'server'

const waiting =
  (open: OpenLocker, names: number) =>
  async (context: Context): Promise<Calls> => {
    const locker = await open(context)
    const nameOf = (i: number): string => `${context.prefix}:wanted:${i % names}`
    let held = false
    let isWaiting = false
    let failure: unknown
    return {
      async hold() {
        if (!held) await Promise.all(Array.from({ length: names }, (_, i) => locker.acquire(nameOf(i))))
        held = true
      },
      // From the first warm-up to the end of the process: begun anew for each slice, what is measured would be code that V8 has not
      // compiled yet, and the garbage of a thousand acquisitions.
      wait() {
        if (isWaiting) return
        isWaiting = true
        const granted = (): never => {
          throw new Error('a waiter was granted what is held')
        }
        for (let i = 0; i < WAITERS; i++)
          void locker
            .acquire(nameOf(i))
            .then(granted)
            .catch((error: unknown) => (failure = error))
      },
      processor() {
        if (failure !== undefined) throw failure
        return ownSeconds()
      },
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
  const before = await look()
  await sleep(Math.max(1, Math.round(ms / HEARTBEAT_MS)) * HEARTBEAT_MS)
  const after = await look()
  const seconds = after[2] - before[2]
  return {
    [CLIENT]: ((after[0] - before[0]) / seconds) * 100,
    [SERVER]: ((after[1] - before[1]) / seconds) * 100,
  }
}

/** The holder keeps what it holds for longer than the scenario lasts without a heartbeat, and nobody gives up: only waiting is measured. */
const FOREVER_MS = 3_600_000
const PATIENT = { ttlMs: FOREVER_MS, waitMs: FOREVER_MS }

function waitingFor(names: number): Scenario {
  const peer = (retryMs: number): Library => ({
    kind: 'peer',
    settings: `retry every ${retryMs} ms`,
    open: waiting(redisSemaphore({ retryMs, ...PATIENT }), names),
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
    ownServers: true,
    sliceMs: 6_000,
    minSliceMs: 4_000,
    // What waits does so for a while: half a minute of heartbeats is behind each library before it is measured.
    warmUpMs: 15_000,
    libraries: {
      leasehold: { kind: 'ours', open: waiting(leasehold(PATIENT), names) },
      'redis-semaphore, tuned': peer(100),
    },
    drive,
  }
}

export const redisWaiting: Scenario[] = [waitingFor(WAITERS), waitingFor(1)]
