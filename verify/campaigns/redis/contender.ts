// A process of the campaign `redis-listings`: takes and gives back one lock after the other, and prints how many milliseconds
// each took to get.
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createLocks } from '../../../src/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import { redlock } from '../../../src/stores/redlock/index.js'

const [kind = '', ports = ''] = process.argv.slice(2)
const clients = ports.split(',').map((port) => new Redis(Number(port), '127.0.0.1'))
const store = kind === 'redlock' ? redlock(clients, { maxTtl: '20m' }) : redis(clients[0] as Redis)
const locks = createLocks(store, { ttl: '20s' })
for (let i = 0; ; i++) {
  const began = performance.now()
  const lock = await locks.tryAcquire(`contender:${i % 50}`).catch(() => null)
  process.stdout.write(`${lock ? (performance.now() - began).toFixed(3) : 'failed'}\n`)
  await lock?.release()
  await sleep(1)
}
