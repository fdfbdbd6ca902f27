import type { Scenario } from '../harness/types.js'
import { etcd } from './etcd.js'
import { growth } from './growth.js'
import { harness } from './harness.js'
import { memory } from './memory.js'
import { postgres } from './postgres.js'
import { redisContention } from './redis-contention.js'
import { redisHeartbeats } from './redis-heartbeats.js'
import { redisLimiter } from './redis-limiter.js'
import { redisLock } from './redis-lock.js'
import { redisWaiting } from './redis-waiting.js'
import { redlock } from './redlock.js'
import { sqlite } from './sqlite.js'
import { startUp } from './start-up.js'
import { telemetry } from './telemetry.js'

export const scenarios: readonly Scenario[] = [
  ...harness,
  ...redisLock,
  ...redisContention,
  ...redisHeartbeats,
  ...redisWaiting,
  ...redisLimiter,
  ...redlock,
  ...memory,
  ...sqlite,
  ...postgres,
  ...etcd,
  ...startUp,
  ...telemetry,
  ...growth,
]
