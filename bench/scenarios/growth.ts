// How the price of one lock grows with what is held and with who waits. Ratios refer to the smallest size.
import type { Library, Scenario } from '../harness/types.js'
import { driveHerd, HERD_METRICS, herding } from '../libraries/contention.js'
import { type OpenLocker, serially } from '../libraries/locker.js'
import { leasehold } from '../libraries/redis.js'

const HELD = [100, 1_000, 10_000, 100_000]
/** Waiters in each of two processes, and how many locks each of them takes. */
const WAITERS = [
  { waiters: 2, times: 150 },
  { waiters: 20, times: 20 },
  { waiters: 200, times: 3 },
  { waiters: 2_000, times: 1 },
]
/** Nothing is renewed within a run: heartbeats have a scenario of their own. */
const LONG_TTL_MS = 3_600_000
const CHUNK = 1_000

const sizeOf = (count: number): string => count.toLocaleString('en')

const besides =
  (held: number): OpenLocker =>
  async (context) => {
    const locker = await leasehold({ ttlMs: LONG_TTL_MS })(context)
    for (let done = 0; done < held; done += CHUNK)
      await Promise.all(
        Array.from({ length: Math.min(CHUNK, held - done) }, (_, i) =>
          locker.acquire(`${context.prefix}:held:${done + i}`),
        ),
      )
    return locker
  }

const entriesOf = <T>(items: readonly T[], of: (item: T) => [string, Library]): Record<string, Library> =>
  Object.fromEntries(items.map(of))

export const growth: Scenario[] = [
  {
    name: 'growth-held',
    title: 'one lock after the other on one Redis while others are held',
    target: 'as much with 100,000 as with 100',
    place: 'redis',
    base: `leasehold, ${sizeOf(HELD[0] as number)} held`,
    metrics: [{ name: 'time per lock', unit: 'µs', better: 'lower' }],
    seconds: 25,
    libraries: entriesOf(HELD, (held) => [
      `leasehold, ${sizeOf(held)} held`,
      { kind: 'ours', open: serially(besides(held)) },
    ]),
  },
  {
    name: 'growth-waiters',
    title: 'one name on one Redis with more and more waiters in two processes, released at once',
    target: 'as much with 2,000 as with 2',
    place: 'redis',
    processes: 2,
    base: `leasehold, ${sizeOf(WAITERS[0]?.waiters as number)} waiters`,
    metrics: [
      { name: HERD_METRICS.time, unit: 'ms', better: 'lower' },
      { name: HERD_METRICS.commands, unit: '', better: 'lower', absolute: true },
    ],
    seconds: 30,
    libraries: entriesOf(WAITERS, ({ waiters, times }) => [
      `leasehold, ${sizeOf(waiters)} waiters`,
      { kind: 'ours', open: herding(leasehold(), { tasks: waiters / 2, times, holdMs: 0 }) },
    ]),
    drive: driveHerd,
  },
]
