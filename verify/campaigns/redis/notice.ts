import { Redis } from 'ioredis'
import { createLocks } from '../../../src/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import { startRedis } from '../../../testbed/servers/index.js'

/** Milliseconds from the reconnect to the loss, when a server comes back without its data: the heartbeat is 20 s away. */
export async function lossNoticed(rounds: number): Promise<number[]> {
  await using server = await startRedis()
  const client = new Redis(server.url, { retryStrategy: () => 20 })
  client.on('error', () => {})
  const locks = createLocks(redis(client))
  const times: number[] = []
  for (let round = 0; round < rounds; round++) {
    const lock = await locks.acquire('job', { ttl: '60s', wait: '20s' })
    const lost = new Promise((resolve) => lock.signal.addEventListener('abort', resolve))
    let readyAt = 0
    client.once('ready', () => {
      readyAt = performance.now()
    })
    await server.restart({ keepData: false })
    await lost
    times.push(performance.now() - readyAt)
  }
  await locks.close()
  client.disconnect()
  return times
}
