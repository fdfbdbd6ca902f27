// Takes and gives back one lock after the other, and prints how many milliseconds each took to get.
//
//   tsx test/stores/redlock/contender.ts <maxTtl> <port,port,…>
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createLocks } from '../../../src/index.js'
import { redlock, type RedlockOptions } from '../../../src/stores/redlock/index.js'

const [maxTtl = '', ports = ''] = process.argv.slice(2)
const clients = ports.split(',').map((port) => new Redis(Number(port), '127.0.0.1'))
const locks = createLocks(redlock(clients, { maxTtl } as RedlockOptions), { ttl: '20s' })
for (let i = 0; ; i++) {
  const began = performance.now()
  const lock = await locks.tryAcquire(`contender:${i % 50}`).catch(() => null)
  process.stdout.write(`${lock ? (performance.now() - began).toFixed(3) : 'failed'}\n`)
  await lock?.release()
  await sleep(1)
}
