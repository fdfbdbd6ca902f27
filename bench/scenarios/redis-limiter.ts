// Rate limits on one Redis.
import type * as library from '../../src/index.js'
import type * as redisStore from '../../src/stores/redis/index.js'
import type { Scenario } from '../harness/types.js'
import { LIMIT_CASES, limitScenario, type OpenTake, PER_MS } from '../libraries/limits.js'
import { connect } from '../libraries/redis.js'

const TARGETS = ['≥ 3.3x of the floor', '≥ 1.5x of the floor', '≥ 45x of the floor']

/** A counter that ends with its window. */
const COUNT = `local count = redis.call('INCRBY', KEYS[1], 1)
  if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return count <= tonumber(ARGV[1]) and 1 or 0`

const bareScript: OpenTake = async (context, { limit }) => {
  const redis = await connect(context)
  const sha = String(await redis.script('LOAD', COUNT))
  return (key) => redis.evalsha(sha, 1, key, limit, PER_MS)
}

const leasehold: OpenTake = async (context, { limit }) => {
  const { createLocks } = await context.leasehold<typeof library>('index.js')
  const { redis } = await context.leasehold<typeof redisStore>('stores/redis/index.js')
  const limiter = createLocks(redis(await connect(context))).limiter('bench', { limit, per: PER_MS })
  return (key) => limiter.take(key)
}

const ignore = (): void => {}

const flexible =
  (blocks: boolean): OpenTake =>
  async (context, { limit }) => {
    const { RateLimiterRedis } = context.peer<{
      RateLimiterRedis: new (options: object) => { consume(key: string): Promise<unknown> }
    }>('rate-limiter-flexible')
    const limiter = new RateLimiterRedis({
      storeClient: await connect(context),
      points: limit,
      duration: PER_MS / 1_000,
      ...(blocks ? { inMemoryBlockOnConsumed: limit } : {}),
    })
    return (key) => limiter.consume(key).catch(ignore)
  }

export const redisLimiter: Scenario[] = LIMIT_CASES.map((limit, i) =>
  limitScenario(
    limit,
    { prefix: 'redis-limiter', where: 'on one Redis', place: 'redis', target: TARGETS[i] as string, batch: 4 },
    {
      'a script per take': { kind: 'floor', take: bareScript },
      leasehold: { kind: 'ours', take: leasehold },
      'rate-limiter-flexible': { kind: 'peer', take: flexible(false) },
      'rate-limiter-flexible, tuned': { kind: 'peer', settings: 'blocks in memory', take: flexible(true) },
    },
  ),
)
