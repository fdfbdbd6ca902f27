import type * as library from '../../src/index.js'
import type { Scenario } from '../harness/types.js'
import { LIMIT_CASES, limitScenario, type OpenTake, PER_MS } from './limits.js'

const TARGETS = ['ahead of rate-limiter-flexible', 'level with rate-limiter-flexible', 'ahead of rate-limiter-flexible']

/** A counter and the end of its window per key, behind a promise as all others are. */
const bareCounters: OpenTake = async (_context, { limit }) => {
  const windows = new Map<string, { count: number; endsAt: number }>()
  return async (key) => {
    const now = performance.now()
    const window = windows.get(key)
    if (!window || window.endsAt <= now) {
      windows.set(key, { count: 1, endsAt: now + PER_MS })
      return true
    }
    if (window.count >= limit) return false
    window.count++
    return true
  }
}

const leasehold: OpenTake = async (context, { limit }) => {
  const { createLocks, memory } = await context.leasehold<typeof library>('index.js')
  const limiter = createLocks(memory()).limiter('bench', { limit, per: PER_MS })
  return (key) => limiter.take(key)
}

const ignore = (): void => {}

/** What it refuses, it throws. */
const flexible: OpenTake = async (context, { limit }) => {
  const { RateLimiterMemory } = context.peer<{
    RateLimiterMemory: new (options: object) => { consume(key: string): Promise<unknown> }
  }>('rate-limiter-flexible')
  const limiter = new RateLimiterMemory({ points: limit, duration: PER_MS / 1_000 })
  return (key) => limiter.consume(key).catch(ignore)
}

export const memoryLimits: Scenario[] = LIMIT_CASES.map((limit, i) =>
  limitScenario(
    limit,
    { prefix: 'memory-limiter', where: 'in memory', place: 'none', target: TARGETS[i] as string, batch: 20 },
    {
      'a Map of counters': { kind: 'floor', take: bareCounters },
      leasehold: { kind: 'ours', take: leasehold },
      'rate-limiter-flexible': { kind: 'peer', take: flexible },
    },
  ),
)
