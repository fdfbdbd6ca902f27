// One Redis, one name that many want: hand-offs, herds in four processes, and tasks of one process.
import type { Library, Metric, Scenario } from '../harness/types.js'
import { driveHandoffs, driveHerd, HERD_METRICS, herding, takingTurns } from '../libraries/contention.js'
import { contending } from '../libraries/locker.js'
import { type ClientName, leasehold, redisSemaphore, redlock4, redlock5, verrou } from '../libraries/redis.js'
import { blpop, cohort, sharedLock } from '../libraries/redis-floors.js'

/** An interval at which peers that poll serve their waiters soon without flooding the server. */
const RETRY_MS = 5
const PROCESSES = 4
const TUNED = `retry every ${RETRY_MS} ms`
const HANDOFF = 'hand-off'

function handoff(client: ClientName, target: string): Scenario {
  const tuned = { client, retryMs: RETRY_MS }
  return {
    name: client === 'ioredis' ? 'redis-handoff' : 'redis-handoff-ioredis5',
    title: `from the release in one process to the lock in another (${client === 'ioredis' ? 'ioredis 6' : 'ioredis 5'})`,
    target,
    place: 'redis',
    processes: 2,
    metrics: [{ name: HANDOFF, unit: 'ms', better: 'lower' }],
    seconds: 30,
    sliceMs: 600,
    libraries: {
      BLPOP: { kind: 'floor', open: takingTurns(blpop(client)) },
      leasehold: { kind: 'ours', open: takingTurns(leasehold({ client })) },
      'redis-semaphore': { kind: 'peer', open: takingTurns(redisSemaphore({ client })) },
      'redis-semaphore, tuned': { kind: 'peer', settings: TUNED, open: takingTurns(redisSemaphore(tuned)) },
      'redlock@5': { kind: 'peer', open: takingTurns(redlock5({ client })) },
      'redlock@5, tuned': { kind: 'peer', settings: TUNED, open: takingTurns(redlock5(tuned)) },
      'redlock@4, tuned': { kind: 'peer', settings: TUNED, open: takingTurns(redlock4(tuned)) },
      'verrou, tuned': { kind: 'peer', settings: TUNED, open: takingTurns(verrou(tuned)) },
    },
    drive: driveHandoffs(HANDOFF),
  }
}

const herdMetrics: [Metric, ...Metric[]] = [
  { name: HERD_METRICS.time, unit: 'ms', better: 'lower' },
  { name: HERD_METRICS.commands, unit: '', better: 'lower', absolute: true },
  { name: HERD_METRICS.fairness, unit: '', better: 'lower', absolute: true },
]

/** Default settings of the peers give up long before the last waiter had its turn: only tuned ones take part. */
function herd(tasks: number, times: number, seconds: number): Scenario {
  const size = { tasks, times, holdMs: 1 }
  const peer = (open: Library['open']): Library => ({ kind: 'peer', settings: TUNED, open })
  return {
    name: `redis-herd-${tasks * PROCESSES}`,
    title: `${tasks * PROCESSES} waiters for one name in ${PROCESSES} processes, each holds for 1 ms`,
    target: '≤ 1.25x of the best floor, ≤ 5 commands per lock, longest / mean wait ≤ 2.2',
    place: 'redis',
    processes: PROCESSES,
    metrics: herdMetrics,
    seconds,
    libraries: {
      'BLPOP, passed on in the process': { kind: 'floor', open: herding(cohort, size) },
      'BLPOP by every waiter': { kind: 'floor', open: herding(blpop('ioredis', tasks), size) },
      leasehold: { kind: 'ours', open: herding(leasehold(), size) },
      'redis-semaphore': peer(herding(redisSemaphore({ retryMs: RETRY_MS }), size)),
      'redlock@5': peer(herding(redlock5({ retryMs: RETRY_MS }), size)),
    },
    drive: driveHerd,
  }
}

const TASKS = 100

export const redisContention: Scenario[] = [
  handoff('ioredis', '≤ 1.4x of BLPOP'),
  handoff('ioredis5', '≤ 1.6x of BLPOP'),
  herd(25, 4, 25),
  herd(200, 2, 60),
  {
    name: 'redis-same-process',
    title: `${TASKS} tasks of one process that want one name`,
    target: '≥ 20,000 locks per second',
    place: 'redis',
    metrics: [{ name: 'locks per second', unit: '/s', better: 'higher' }],
    seconds: 25,
    sliceMs: 500,
    libraries: {
      'one lock shared by 64': { kind: 'floor', open: contending(sharedLock, TASKS) },
      leasehold: { kind: 'ours', open: contending(leasehold(), TASKS) },
      'redis-semaphore': {
        kind: 'peer',
        settings: TUNED,
        open: contending(redisSemaphore({ retryMs: RETRY_MS }), TASKS),
      },
      'redlock@5': { kind: 'peer', settings: TUNED, open: contending(redlock5({ retryMs: RETRY_MS }), TASKS) },
    },
  },
]
