// One process of the crowd: asks for the lock many times at once, and reports when it had it.
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createLocks } from '../../../src/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import { type Turn, WAITERS_EACH } from './crowd.js'

// The parent was interrupted.
process.on('disconnect', () => process.exit())
const locks = createLocks(redis(new Redis(process.argv[2] as string)), { wait: '60s' })
const turns: Turn[] = []
const all = Array.from({ length: WAITERS_EACH }, async (_, nth) => {
  const lock = await locks.acquire('crowd')
  turns.push({ token: String(lock.fencingToken), pid: process.pid, nth })
  await sleep(1)
  await lock.release()
})
await sleep(200)
process.send?.({ asked: true })
await Promise.all(all)
await locks.close()
process.send?.({ turns }, () => process.exit())
